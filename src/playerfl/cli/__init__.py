"""The command line: one file per command, and everything that prints."""
