"""A line of a benchmark's table with what was promised, and the name of the processor."""

from __future__ import annotations

import platform
from pathlib import Path


def row(title: str, shown: str, value: float, bound: float | None, *, most: bool = False) -> bool:
    """Prints a line; returns whether its promise holds. `most`: the bound is an upper limit."""
    if bound is None:
        print(f"{title:<78} {shown}", flush=True)
        return True
    holds = value <= bound if most else value >= bound
    promise = f"{'at most' if most else 'at least'} {bound:4.2f}  {'ok' if holds else 'BROKEN'}"
    print(f"{title:<78} {shown:<26} {promise}", flush=True)
    return holds


def cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        return next(line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()
