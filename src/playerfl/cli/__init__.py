"""The command line: one file a command, and everything that prints."""
