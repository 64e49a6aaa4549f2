"""How long the rest of some work will take, and how to say so."""

from __future__ import annotations

import time
from collections.abc import Callable


class TimeLeft:
    """An estimate from the pace since the first report, so that work done before a resume does not distort it.

    >>> clock = iter([0.0, 10.0]).__next__
    >>> left = TimeLeft(5, clock)
    >>> left.seconds(1), left.seconds(2)
    (None, 30.0)
    """

    def __init__(self, total: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._total = total
        self._clock = clock
        self._first: tuple[int, float] | None = None

    def seconds(self, done: int) -> float | None:
        """Seconds until everything is done, given how much is `done` now; None while the pace is unknown."""
        now = self._clock()
        if self._first is None:
            self._first = (done, now)
        begun, since = self._first
        return (now - since) / (done - begun) * (self._total - done) if done > begun else None


def duration(seconds: float) -> str:
    """In the two largest units.

    >>> duration(3.2), duration(75), duration(7300)
    ('3 s', '1 min 15 s', '2 h 1 min')
    """
    whole = round(max(seconds, 0))
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


def left_text(seconds: float | None) -> str:
    """What a progress line says.

    >>> left_text(75), left_text(None)
    ('1 min 15 s left', 'time left unknown')
    """
    return "time left unknown" if seconds is None else f"{duration(seconds)} left"
