"""Checks that run on any machine in seconds: identities between methods, and the contract of a single one."""
