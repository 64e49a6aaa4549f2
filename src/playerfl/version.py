"""The version, where it can be read without importing torch."""

__version__ = "0.1.0"
