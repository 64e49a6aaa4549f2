"""Collected: what there is to report, and what is missing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from playerfl.report.compute.multiverse import Multiverse
from playerfl.runs.result import RunResult


@dataclass(frozen=True)
class Gap:
    """A run that is missing, and why."""

    task: str
    algorithm: str
    seed: int | None
    reason: str
    tuning: bool = False
    """Whether the run only helps to choose a learning rate and is not reported."""


@dataclass(frozen=True)
class Collected:
    """Finished runs; those that have not finished; those that failed or cannot be read."""

    results: Sequence[RunResult] = ()
    missing: Sequence[Gap] = ()
    failed: Sequence[Gap] = ()
    tuning_runs: int = 0
    """Finished runs that chose learning rates; they use other seeds and are not reported."""
    multiverses: Sequence[Multiverse] = ()
