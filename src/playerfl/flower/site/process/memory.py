"""Keeps a process that waits most of the time small, where the C library allows it (glibc)."""

from __future__ import annotations

import ctypes
import sys

_ARENA_MAX = -8


def _library() -> ctypes.CDLL | None:
    return ctypes.CDLL(None) if sys.platform == "linux" else None


def use_one_arena() -> None:
    """Lets all threads share one pool of memory; by default every thread that answers a message gets its own."""
    library = _library()
    if library is not None and hasattr(library, "mallopt"):
        library.mallopt(_ARENA_MAX, 1)


def return_freed_memory() -> None:
    """Gives memory that training has freed back to the system."""
    library = _library()
    if library is not None and hasattr(library, "malloc_trim"):
        library.malloc_trim(0)
