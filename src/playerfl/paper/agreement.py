"""Do the results agree with the paper? The rank correlation of scores and of ranks with the printed ones."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from playerfl.report.compute.statistics import Array, mean, median, percentile_interval, ranks, resampled, spearman

if TYPE_CHECKING:
    from playerfl.report.compute.report import Report
    from playerfl.report.compute.tables import ScoreTable

# Over two methods, a correlation is 1 or -1.
_FEWEST_METHODS = 3


@dataclass(frozen=True)
class Rho:
    """Spearman's correlation, with its 95 % bootstrap interval over runs."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class Agreement:
    """One measure on one task, over the methods that the paper compares."""

    table: str
    task: str
    methods: int
    runs: int
    values: Rho
    """Of the medians over runs with the printed values."""
    ranks: Rho
    """Of the mean ranks over runs, among these methods, with the ranks of the printed values."""


def agreements(report: Report) -> list[Agreement]:
    """For every score and task that the paper prints."""
    every = (
        _agreement(report, table, task) for table in report.tables if table.kind == "score" for task in table.tasks
    )
    return [agreement for agreement in every if agreement]


def _agreement(report: Report, table: ScoreTable, task: str) -> Agreement | None:
    printed = {name: number for name in table.ranked if (number := _printed(report, table, name, task)) is not None}
    if len(printed) < _FEWEST_METHODS:
        return None
    cells = [table.cells[name, task] for name in printed]
    seeds = sorted(set.intersection(*(set(cell.seeds) for cell in cells)))
    if not seeds:
        return None
    scores = np.array([[cell.per_run[cell.seeds.index(seed)] for seed in seeds] for cell in cells])
    lower = table.lower_is_better
    positions = ranks(scores.T, lower_is_better=lower).T
    theirs = np.array(list(printed.values()))
    their_ranks = ranks(theirs[None], lower_is_better=lower)[0]
    return Agreement(
        table.name,
        task,
        len(printed),
        len(seeds),
        _rho(median(scores), resampled(median, scores), theirs),
        _rho(mean(positions), resampled(mean, positions), their_ranks),
    )


def _printed(report: Report, table: ScoreTable, algorithm: str, task: str) -> float | None:
    if report.paper is None or (algorithm, task) not in table.cells:
        return None
    return report.paper.number(table.name, algorithm, task)


def _rho(ours: Array, drawn: Array, theirs: Array) -> Rho:
    """`drawn`: ours in every resample of the runs (methods × resamples)."""
    known = spearman(drawn.T, theirs)
    low, high = percentile_interval(known[np.isfinite(known)]) if np.isfinite(known).any() else (np.nan, np.nan)
    return Rho(float(spearman(ours, theirs)), float(low), float(high))
