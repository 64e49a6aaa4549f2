"""The multiverse: one ranking of the methods for every protocol, and which choice decides it."""
