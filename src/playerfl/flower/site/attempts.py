"""Attempts: how many questions about its data, each with a new job, a site answers before it answers no more."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

DAY = 24 * 3600.0


@dataclass
class Attempts:
    """Each job that does not fit reveals something to the server, such as a missing column: only a few a day.

    >>> attempts = Attempts(most=2, clock=iter([0.0, 1.0, 2.0, 3.0, DAY + 0.5]).__next__)
    >>> attempts.note("one"), attempts.note("one"), attempts.note("other")    # asked again, it tells nothing new
    (None, None, None)
    >>> attempts.spent(), attempts.spent()
    (True, False)
    """

    most: int = 20
    clock: Callable[[], float] = time.monotonic
    _times: dict[str, float] = field(default_factory=dict)
    """When a job with these terms was first tried."""

    def note(self, terms: str) -> None:
        """Counts a job, given by a fingerprint of its terms."""
        self._times.setdefault(terms, self.clock())

    def known(self, terms: str) -> bool:
        """Whether it was counted already."""
        return terms in self._times

    def spent(self) -> bool:
        """Whether as many as allowed were counted within a day."""
        now = self.clock()
        self._times = {terms: since for terms, since in self._times.items() if since >= now - DAY}
        return len(self._times) >= self.most
