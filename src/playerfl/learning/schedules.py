"""Learning-rate schedules: the factor on an epoch's rate depends on the round and the epoch alone."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

ScheduleKind = Literal["constant", "exponential", "cosine"]
DEFAULT_FACTOR = 0.9


@dataclass(frozen=True)
class Schedule:
    """How the learning rate falls over a run.

    Rounds and epochs count from 0, and the position of an epoch is t = round · local_epochs + epoch. The rate is
    multiplied by factor^t (exponential) or (1 + cos(π·t / (rounds · local_epochs))) / 2 (cosine).

    An algorithm that trains for more epochs than `local_epochs` stays at the last position of its round, so a round
    never runs ahead of the next one. Tuning after the last round starts afresh and uses the full rate.

    >>> Schedule("exponential", factor=0.5).factors(round_=1, epochs=3, local_epochs=2)
    (0.25, 0.125, 0.125)
    >>> Schedule("cosine", rounds=2).factors(0, 1), Schedule("cosine", rounds=2).factors(2, 1), Schedule().factors(9, 1)
    ((1.0,), (1.0,), ())
    """

    kind: ScheduleKind = "constant"
    factor: float = DEFAULT_FACTOR
    """Per epoch; only with "exponential"."""
    rounds: int | None = None
    """The number of rounds. Without it, cosine is refused, and no training counts as being after the last round."""

    def __post_init__(self) -> None:
        if self.kind == "cosine" and not self.rounds:
            raise ValueError("a cosine schedule needs the number of rounds")

    def factors(self, round_: int, epochs: int, local_epochs: int = 1) -> tuple[float, ...]:
        """One factor per epoch of training in this round; none if the rate is constant."""
        if self.kind == "constant":
            return ()
        if self.rounds is not None and round_ >= self.rounds:
            return (1.0,) * epochs
        first = round_ * local_epochs
        return tuple(self._factor(first + min(epoch, local_epochs - 1), local_epochs) for epoch in range(epochs))

    def _factor(self, position: int, local_epochs: int) -> float:
        if self.kind == "exponential":
            return self.factor**position
        assert self.rounds is not None
        return (1 + math.cos(math.pi * position / (self.rounds * local_epochs))) / 2


CONSTANT = Schedule()
