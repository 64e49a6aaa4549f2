"""Bytes on disk: atomic files, locks, and trees of tensors as one file."""
