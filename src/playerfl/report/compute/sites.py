"""Which sites gain and which lose: each site's difference from training alone and plain averaging, paired by seed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from playerfl.report.compute.comparison import gain, metrics_of
from playerfl.report.compute.grid import RunGrid
from playerfl.report.compute.statistics import (
    bootstrap_interval,
    differences,
    holm,
    median,
    smallest_wilcoxon_p,
    wilcoxon,
)
from playerfl.report.compute.tables import Choices

Verdict = Literal["gains", "loses", "unclear"]
LEVEL = 0.05


@dataclass(frozen=True)
class Difference:
    """The median over seeds of a site's gain on a baseline, with its interval; positive is better for the site."""

    value: float
    low: float
    high: float
    runs: int
    p: float
    """Wilcoxon's over seeds, with Holm's correction over the sites of the table."""

    @property
    def verdict(self) -> Verdict:
        """Clear only where p is below 0.05."""
        if self.p >= LEVEL or self.value == 0:
            return "unclear"
        return "gains" if self.value > 0 else "loses"


@dataclass(frozen=True)
class SiteRow:
    """One site under one algorithm and metric."""

    site: str
    examples: int
    score: float
    to_local: Difference | None
    to_global: Difference | None

    @property
    def harmed(self) -> bool:
        """Whether the median is worse than training alone."""
        return self.to_local is not None and self.to_local.value < 0


@dataclass(frozen=True)
class SiteTable:
    """All sites of a task under one algorithm, worst off first."""

    task: str
    algorithm: str
    metric: str
    rows: tuple[SiteRow, ...]


@dataclass(frozen=True)
class UnseenRow:
    """One method at a site that took no part in training and then tuned its own part: the median over runs."""

    task: str
    algorithm: str
    site: str
    metric: str
    value: float
    runs: int


def unseen_rows(grid: RunGrid) -> list[UnseenRow]:
    """A row for every task, method, unseen site and metric."""
    rows = []
    for task, algorithm, results in grid.cells():
        runs = [run.unseen_scores for run in results.values()]
        for site in sorted({site for scores in runs for site in scores}):
            for metric in grid.metrics:
                values = [scores[site][metric] for scores in runs if metric in scores.get(site, {})]
                if values:
                    rows.append(UnseenRow(task, algorithm, site, metric, float(np.median(values)), len(values)))
    return rows


def site_tables(grid: RunGrid, choices: Choices) -> list[SiteTable]:
    """A table for every task, algorithm and metric."""
    return [
        _table(grid, task, algorithm, metric, choices)
        for task, algorithm, results in grid.cells()
        for metric in grid.metrics
        if any(metric in metrics_of(run) for run in results.values())
    ]


def _table(grid: RunGrid, task: str, algorithm: str, metric: str, choices: Choices) -> SiteTable:
    scores = median(grid.scores(task, algorithm, metric))
    sizes = median(grid.examples(task, algorithm))
    local = _differences(grid, task, algorithm, metric, choices.baseline_local)
    averaged = _differences(grid, task, algorithm, metric, choices.baseline_global)
    rows = [
        SiteRow(site, int(sizes[i]), float(scores[i]), local[i], averaged[i]) for i, site in enumerate(grid.sites(task))
    ]
    return SiteTable(task, algorithm, metric, tuple(sorted(rows, key=_worst_first)))


def _worst_first(row: SiteRow) -> tuple[float, float, str]:
    against = row.to_local or row.to_global
    return (against.value if against else 0.0, row.score, row.site)


def _differences(
    grid: RunGrid, task: str, algorithm: str, metric: str, baseline: str | None
) -> list[Difference] | list[None]:
    nothing: list[None] = [None] * len(grid.sites(task))
    if baseline is None or baseline == algorithm:
        return nothing
    seeds = sorted(grid.results(task, algorithm).keys() & grid.results(task, baseline).keys())
    if not seeds:
        return nothing
    scores, reference = (grid.scores(task, name, metric, seeds) for name in (algorithm, baseline))
    with np.errstate(invalid="ignore"):
        # Two diverged runs are equal.
        gains = np.where(scores == reference, 0.0, gain(metric, scores, reference))
    low, high = bootstrap_interval(median, gains)
    p = holm(wilcoxon(differences(gains, np.zeros_like(gains))))
    return [
        Difference(float(value), float(low[i]), float(high[i]), len(seeds), float(p[i]))
        for i, value in enumerate(median(gains))
    ]


def runs_needed(sites: int) -> int:
    """The fewest runs with which any of this many sites can be below 5 % after Holm's correction.

    >>> runs_needed(1), runs_needed(4), runs_needed(300)
    (6, 8, 14)
    """
    return next(runs for runs in range(1, 100) if sites * smallest_wilcoxon_p(runs) < LEVEL)
