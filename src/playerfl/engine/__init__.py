"""The verbs in motion: one round loop, one client entry point, one scheduler, transports and checkpoints."""
