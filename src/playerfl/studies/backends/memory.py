"""How much memory a process holds, and what makes memory faster."""

from __future__ import annotations

import atexit
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
    """The peak number of bytes this process has held; 0 if the system does not report it."""
    try:
        import resource
    except ImportError:  # Windows
        return 0
    # Linux counts kilobytes, macOS bytes.
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


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
    them took a twelfth of the time, and through the new ones alone still took a fiftieth.
    """
    gc.collect()
    gc.freeze()
    collect_less()


def collect_less() -> None:
    """Looks for garbage less often, and not at the end of the process.

    Importing torch makes hundreds of thousands of objects, all of which stay: looking through them again and again, and
    once more at the end, took longer than everything else that a run of one round does.
    """
    gc.set_threshold(50_000, 20, 100)
    atexit.register(gc.freeze)
