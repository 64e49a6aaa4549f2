"""How much memory a process holds."""

from __future__ import annotations

import os
import sys
from pathlib import Path


def resident() -> int:
    """Bytes of this process in memory now; its peak where the system does not say, 0 where it says nothing."""
    try:
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError, AttributeError):
        return peak()


def peak() -> int:
    """Bytes this process held at most, 0 where the system does not say."""
    try:
        import resource
    except ImportError:  # Windows
        return 0
    # Linux counts kilobytes, macOS bytes.
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
