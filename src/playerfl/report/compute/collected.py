"""Collected: what there is to report, and what is missing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from playerfl.runs.result import RunResult


@dataclass(frozen=True)
class Gap:
    """A run that was meant to be there and is not, and why."""

    task: str
    algorithm: str
    seed: int | None
    reason: str
    tuning: bool = False
    """Whether the run would only help to choose a learning rate, and not be reported."""


@dataclass(frozen=True)
class Collected:
    """Finished runs; those that have not finished; those that failed or cannot be read."""

    results: Sequence[RunResult] = ()
    missing: Sequence[Gap] = ()
    failed: Sequence[Gap] = ()
    tuning_runs: int = 0
    """Finished runs that chose learning rates; they are on other seeds and are not reported."""
