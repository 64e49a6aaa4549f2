"""The engine that drives the verbs: one round loop, one entry point to a site, one scheduler, and transports."""
