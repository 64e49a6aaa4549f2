"""Settings of the C library that make a process hold on to freed memory while it trains."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
_MOST = 2**31 - 1
LARGEST_KEPT = 2**26
"""During a run, larger tensors still go back to the system at once: the gaps they leave would cost more memory."""
# What glibc adjusts itself to in a process that has freed large blocks.
_USUAL = {_MMAP_THRESHOLD: 2**25, _TRIM_THRESHOLD: 2**26}

_keeping = False  # the C library has one setting per process


def keep_freed_memory(largest: int = _MOST) -> bool:
    """Makes this process hold on to freed memory, if the C library allows it (glibc). Returns whether it does now.

    `largest`: blocks of more bytes are not kept.

    By default, tensors of some megabytes go back to the system when they are freed, and the next ones are cleared page
    by page: a tenth of the time of stacked training, and half of that of a model with ten million parameters.
    """
    global _keeping
    mallopt = _function("mallopt")
    # Older versions accept at most 32 MiB. If this threshold cannot be set, setting the other one alone would only turn
    # off glibc's own adjustment.
    if mallopt and (mallopt(_MMAP_THRESHOLD, largest) or mallopt(_MMAP_THRESHOLD, 2**25)):
        mallopt(_TRIM_THRESHOLD, _MOST)
        _keeping = True
    return _keeping


@contextmanager
def freed_memory_kept() -> Iterator[None]:
    """Holds on to freed memory, and gives it back at the end: the process may not be ours."""
    global _keeping
    if _keeping or not keep_freed_memory(LARGEST_KEPT):
        yield
        return
    try:
        yield
    finally:
        _keeping = False
        mallopt, trim = _function("mallopt"), _function("malloc_trim")
        if mallopt:
            for setting, usual in _USUAL.items():
                mallopt(setting, usual)
        if trim:
            trim(0)


def _function(name: str) -> Callable[..., Any] | None:
    """A function of the C library; None if it does not have it."""
    with suppress(OSError, AttributeError, TypeError):
        return getattr(ctypes.CDLL(None), name)  # type: ignore[no-any-return]
    return None
