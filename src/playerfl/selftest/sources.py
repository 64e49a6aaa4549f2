"""Hidden sources of chance: the global random generators of Python, NumPy and torch, and the clock."""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import numpy as np
import torch

_AHEAD = 1_234_567
"""Seconds; odd, so that a parity differs, too."""
_CLOCKS = ("time", "monotonic", "perf_counter", "process_time", "thread_time")
_DATES = ("datetime.now", "datetime.utcnow", "datetime.today", "date.today")


def generators_used(work: Callable[[], object]) -> list[str]:
    """Which global generators `work` draws from, or seeds. Their states are restored afterwards."""
    numpy_generator = np.random.mtrand._rand
    outside = random.getstate(), numpy_generator.get_state(), torch.get_rng_state()
    # A state that no seed of the algorithm's own would lead back to.
    random.seed(_AHEAD)
    numpy_generator.seed(_AHEAD)
    torch.default_generator.manual_seed(_AHEAD)
    before = random.getstate(), numpy_generator.get_state(), torch.get_rng_state()
    try:
        work()
        now = numpy_generator.get_state()
        used = {
            "Python's random": random.getstate() != before[0],
            "numpy.random": any(not np.array_equal(one, other) for one, other in zip(before[1], now, strict=True)),
            "torch": not torch.equal(torch.get_rng_state(), before[2]),
        }
    finally:
        random.setstate(outside[0])
        numpy_generator.set_state(outside[1])
        torch.set_rng_state(outside[2])
    return [name for name, moved in used.items() if moved]


@contextmanager
def clock_readings(file: str) -> Iterator[list[str]]:
    """Collects where code of one file reads the clock, as `time.time() on line 12`."""
    readings: list[str] = []

    def profile(frame: FrameType, event: str, called: Any) -> None:
        if event != "c_call" or frame.f_code.co_filename != file:
            return
        is_time = getattr(called, "__module__", None) == "time" and called.__name__.removesuffix("_ns") in _CLOCKS
        if is_time or getattr(called, "__qualname__", "") in _DATES:
            reading = f"{'time.' if is_time else ''}{called.__qualname__}() on line {frame.f_lineno}"
            if reading not in readings:
                readings.append(reading)

    before = sys.getprofile()
    sys.setprofile(profile)
    try:
        yield readings
    finally:
        sys.setprofile(before)


@contextmanager
def clock_ahead(namespace: dict[str, Any]) -> Iterator[None]:
    """Sets the clocks of the module `time` ahead, even where `namespace` has imported them by name."""
    ahead: dict[Any, Callable[[], Any]] = {}
    for name in _CLOCKS:
        seconds, nanoseconds = getattr(time, name), getattr(time, f"{name}_ns")
        ahead[seconds] = _later(seconds, _AHEAD + 0.37)
        ahead[nanoseconds] = _later(nanoseconds, _AHEAD * 10**9 + 1)
    places = [
        (space, name, value)
        for space in (vars(time), namespace)
        for name, value in space.items()
        if callable(value) and any(value is clock for clock in ahead)
    ]
    for space, name, value in places:
        space[name] = ahead[value]
    try:
        yield
    finally:
        for space, name, value in places:
            space[name] = value


def _later(clock: Callable[[], Any], by: float) -> Callable[[], Any]:
    return lambda: clock() + by
