"""How much memory a process holds, and settings that make it hold on to freed memory."""

from __future__ import annotations

import ctypes
import gc
import os
import sys
from pathlib import Path


def resident() -> int:
    """Bytes of this process in memory now; its peak if the system does not report it, and 0 if it reports neither."""
    try:
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError, AttributeError):
        return peak()


def peak() -> int:
    """The most bytes this process has held; 0 if the system does not report it."""
    try:
        import resource
    except ImportError:  # Windows
        return 0
    # Linux counts kilobytes, macOS bytes.
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def keep_freed_memory() -> None:
    """Makes this process hold on to freed memory, if the C library allows it (glibc).

    A stack's activations are a few megabytes each: by default they go back to the system after every operation and are
    cleared page by page when the next one asks, which takes a tenth of the time.
    """
    trim_threshold, mmap_threshold = -1, -3
    most = 2**31 - 1
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError, TypeError):
        return
    # Older versions accept at most 32 MiB. If this threshold cannot be set, setting the other one alone would only turn
    # off glibc's own adjustment.
    if mallopt(mmap_threshold, most) or mallopt(mmap_threshold, 2**25):
        mallopt(trim_threshold, most)


def large_pages() -> dict[str, str]:
    """Environment variables for a new process that make its C library use large pages (glibc; others ignore them).

    A step of a stack passes through tens of megabytes: with pages of four kilobytes, looking up where they are takes
    a twentieth of the time.
    """
    name = "GLIBC_TUNABLES"
    users = os.environ.get(name)
    return {name: "glibc.malloc.hugetlb=1" + (f":{users}" if users else "")}


def settle_imports() -> None:
    """Takes everything loaded so far out of garbage collection, and collects less often.

    torch brings hundreds of thousands of objects, and a stacked study makes many small ones: looking through all of
    them took a twelfth of the time, and through the new ones alone still took a fiftieth, so it is done less often.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 100)
