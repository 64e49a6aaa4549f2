"""Pace: how long Flower's node waits between two polls: briefly while a job is under way, longer otherwise."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

LEAST_SECONDS = {3.0: 1.0, 0.5: 0.1}
"""Flower looks for a message every 3 s and for the app's answer every 0.5 s: the shortest waits in their place. Each
poll for a message is a request to the server, so that wait is not much shorter."""
SHARE = 0.2
"""A wait may add this much to the time since the last message."""


@dataclass
class Pace:
    """Stands in for the module `time` in Flower's loop. Everything else of that module stays as it is.

    >>> waits, now = [], [0.0]
    >>> pace = Pace(clock=lambda: now[0], wait=waits.append)
    >>> pace.sleep(3)
    >>> now[0] = 10.0
    >>> pace.sleep(3), pace.sleep(0.5), pace.sleep(7)
    (None, None, None)
    >>> now[0] = 3600.0
    >>> pace.sleep(3)
    >>> waits
    [1.0, 2.0, 0.5, 7, 3]
    """

    clock: Callable[[], float] = time.monotonic
    wait: Callable[[float], None] = time.sleep
    _last: float = field(default=0.0, init=False)

    def __post_init__(self) -> None:
        self.message()

    def message(self) -> None:
        """Notes that a message has come or gone, so the next one may come soon."""
        self._last = self.clock()

    def sleep(self, seconds: float) -> None:
        since = self.clock() - self._last
        self.wait(min(seconds, max(LEAST_SECONDS.get(seconds, seconds), SHARE * since)))

    def __getattr__(self, name: str) -> Any:
        return getattr(time, name)


def keep_pace(pace: Pace) -> None:
    """Lets Flower's loop wait by this pace."""
    import flwr.supernode.start_client_internal as loop

    if getattr(loop, "time", None) is time:
        loop.__dict__["time"] = pace
