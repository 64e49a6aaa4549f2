"""Listeners that stop a run: when time is up, or when it no longer improves."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, field

from playerfl.errors import ConfigError
from playerfl.runs.run import Progress, StopRun
from playerfl.wording import counted


@dataclass
class TimeBudget:
    """Pass it as `listener=`: stops a run after the first exchange that ends later than `seconds` from now, or a study.

    Both can be resumed with another budget. With `finish`, a run ends with a result instead.
    """

    seconds: float
    finish: bool = False
    _start: float = field(default_factory=time.monotonic, repr=False)

    def __post_init__(self) -> None:
        if not self.seconds >= 0:
            raise ConfigError(f"a time budget must be at least 0 s, not {self.seconds}")

    def __call__(self, progress: object) -> None:
        if time.monotonic() - self._start > self.seconds:
            raise StopRun(f"the time budget of {self.seconds:g} s is used up", finish=self.finish)


@dataclass
class Patience:
    """Pass it as `listener=`: ends training when the mean validation loss has not improved for some rounds.

    The setting `early_stopping` does the same and is part of the experiment; this is an example to copy from.
    """

    rounds: int
    _lowest: float = field(default=math.inf, repr=False)
    _at: int = field(default=0, repr=False)

    def __post_init__(self) -> None:
        if self.rounds < 1:
            raise ConfigError(f"patience must be at least 1 round, not {self.rounds}")

    def __call__(self, progress: Progress) -> None:
        if progress.validation_loss < self._lowest:
            self._lowest, self._at = progress.validation_loss, progress.round
        if progress.round - self._at >= self.rounds:
            raise StopRun(f"no lower validation loss for {counted(self.rounds, 'round')}", finish=True)
