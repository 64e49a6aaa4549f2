"""Which sites gain and which lose: each site's difference from training alone and plain averaging, paired by seed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from playerfl.report.compute.comparison import gain, metrics_of
from playerfl.report.compute.grid import MAJORITY, RunGrid
from playerfl.report.compute.statistics import (
    Array,
    bootstrap_interval,
    differences,
    holm,
    mean,
    median,
    smallest_wilcoxon_p,
    wilcoxon,
)
from playerfl.report.compute.tables import Choices
from playerfl.runs.measures.declared import Declared
from playerfl.runs.measures.row_intervals import row_interval

Verdict = Literal["gains", "loses", "unclear"]
LEVEL = 0.05


@dataclass(frozen=True)
class Difference:
    """The median over seeds of a site's gain over a baseline, with its interval; positive is better for the site."""

    value: float
    low: float
    high: float
    runs: int
    p: float
    """Wilcoxon's over seeds, with Holm's correction over the sites of the table."""
    rows: tuple[float, float] = (np.nan, np.nan)
    """Its 95 % interval over the site's test rows; NaN where the runs do not hold them."""

    @property
    def verdict(self) -> Verdict:
        """Clear only where p is below 0.05."""
        if self.p >= LEVEL or self.value == 0:
            return "unclear"
        return "gains" if self.value > 0 else "loses"

    @property
    def beyond_rows(self) -> bool:
        """Whether the interval over test rows excludes 0."""
        return self.rows[0] > 0 or self.rows[1] < 0


@dataclass(frozen=True)
class SiteRow:
    """One site under one algorithm and metric."""

    site: str
    examples: int
    score: float
    to_local: Difference | None
    to_global: Difference | None
    test_rows: int | None = None
    rows: tuple[float, float] = (np.nan, np.nan)
    """The 95 % interval of the score over the site's test rows."""
    undefined: str = ""
    """Why the metric has no value here; the score is NaN then."""
    baseline: float | None = None
    """The score of predicting the same for every test row, if it is known."""

    @property
    def harmed(self) -> bool:
        """Whether the median is worse than training alone."""
        return self.to_local is not None and self.to_local.value < 0


@dataclass(frozen=True)
class SiteComparison:
    """All sites of a task under one algorithm, worst off first."""

    task: str
    algorithm: str
    metric: str
    rows: tuple[SiteRow, ...]
    declared: Declared


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


def site_tables(grid: RunGrid, choices: Choices) -> list[SiteComparison]:
    """A table for every task, algorithm and metric."""
    return [
        _table(grid, task, algorithm, metric, choices)
        for task, algorithm, results in grid.cells()
        for metric in grid.metrics
        if any(metric in metrics_of(run) for run in results.values())
    ]


def _table(grid: RunGrid, task: str, algorithm: str, metric: str, choices: Choices) -> SiteComparison:
    scores = median(grid.scores(task, algorithm, metric))
    drawn = grid.row_resamples(task, algorithm, metric, sorted(grid.results(task, algorithm)))
    sizes = median(grid.examples(task, algorithm))
    tested = _test_rows(grid, task, algorithm)
    local = _differences(grid, task, algorithm, metric, choices.baseline_local)
    averaged = _differences(grid, task, algorithm, metric, choices.baseline_global)
    place_of = {site: place for place, site in enumerate(grid.sites(task, metric))}
    undefined = grid.undefined(task, metric)
    baseline = _constant_scores(grid, task, algorithm, metric)
    rows = []
    for number, site in enumerate(grid.sites(task)):
        size = int(sizes[number])
        if site in undefined:
            rows.append(SiteRow(site, size, np.nan, None, None, tested.get(site), undefined=undefined[site]))
            continue
        i = place_of[site]
        interval = (np.nan, np.nan) if drawn is None else row_interval(median(drawn[i]))
        known = baseline.get(site)
        row = SiteRow(site, size, float(scores[i]), local[i], averaged[i], tested.get(site), interval, baseline=known)
        rows.append(row)
    return SiteComparison(task, algorithm, metric, tuple(sorted(rows, key=_worst_first)), grid.declared[metric])


def _constant_scores(grid: RunGrid, task: str, algorithm: str, metric: str) -> dict[str, float]:
    """Each site's baseline, the median over the runs of an algorithm; empty if it is not known."""
    seeds = sorted(grid.results(task, algorithm).keys() & grid.results(task, MAJORITY).keys())
    if not seeds:
        return {}
    scores = median(grid.scores(task, MAJORITY, metric, seeds))
    return {site: float(x) for site, x in zip(grid.sites(task, metric), scores, strict=True) if np.isfinite(x)}


def _test_rows(grid: RunGrid, task: str, algorithm: str) -> dict[str, int]:
    """Each site's number of test rows, the median over runs."""
    runs = list(grid.results(task, algorithm).values())
    sites = [site for site in grid.sites(task) if all(site in run.test_rows for run in runs)]
    return {site: int(np.median([run.test_rows[site] for run in runs])) for site in sites}


def _worst_first(row: SiteRow) -> tuple[bool, float, float, str]:
    against = row.to_local or row.to_global
    return (bool(row.undefined), against.value if against else 0.0, row.score, row.site)


def _differences(
    grid: RunGrid, task: str, algorithm: str, metric: str, baseline: str | None
) -> list[Difference] | list[None]:
    nothing: list[None] = [None] * len(grid.sites(task))
    if baseline is None or baseline == algorithm:
        return nothing
    seeds = sorted(grid.results(task, algorithm).keys() & grid.results(task, baseline).keys())
    if not seeds or not grid.sites(task, metric):
        return nothing
    lower_is_better = grid.declared[metric].lower_is_better
    gains = _gains(grid, task, algorithm, metric, baseline, seeds)
    low, high = bootstrap_interval(median, gains)
    p = holm(wilcoxon(differences(gains, np.zeros_like(gains))))
    drawn, others = (grid.row_resamples(task, name, metric, seeds) for name in (algorithm, baseline))
    paired = None if drawn is None or others is None else median(gain(drawn, others, lower_is_better=lower_is_better))
    return [
        Difference(
            float(value),
            float(low[i]),
            float(high[i]),
            len(seeds),
            float(p[i]),
            (np.nan, np.nan) if paired is None else row_interval(paired[i]),
        )
        for i, value in enumerate(median(gains))
    ]


def _gains(grid: RunGrid, task: str, algorithm: str, metric: str, baseline: str, seeds: Sequence[int]) -> Array:
    """How much better each site is than under the baseline: sites × runs."""
    scores, reference = (grid.scores(task, name, metric, seeds) for name in (algorithm, baseline))
    with np.errstate(invalid="ignore"):
        # Two diverged runs are equal.
        gains = gain(scores, reference, lower_is_better=grid.declared[metric].lower_is_better)
        return np.where(scores == reference, 0.0, gains)


@dataclass(frozen=True)
class MeanGain:
    """A site's mean gain over training alone, with its 95 % bootstrap interval over runs."""

    site: str
    value: float
    low: float
    high: float
    ahead: int
    """In how many runs the site is better off."""

    @property
    def clear(self) -> bool:
        """Whether the interval excludes 0."""
        return self.low > 0 or self.high < 0


@dataclass(frozen=True)
class MethodGains:
    """What one method means to every site of a task."""

    task: str
    algorithm: str
    metric: str
    runs: int
    sites: tuple[MeanGain, ...]
    declared: Declared

    @property
    def better(self) -> int:
        """The number of sites that gain, by their intervals."""
        return sum(site.clear and site.value > 0 for site in self.sites)

    @property
    def ahead(self) -> int:
        """In how many pairs of a site and a run the site is better off."""
        return sum(site.ahead for site in self.sites)

    @property
    def worse(self) -> int:
        return sum(site.clear and site.value < 0 for site in self.sites)


def method_gains(grid: RunGrid, choices: Choices, metric: str) -> list[MethodGains]:
    """For every task and method other than training alone: each site's mean gain over it."""
    alone, every = choices.baseline_local, list[MethodGains]()
    for task, algorithm, results in grid.cells():
        sites = grid.sites(task, metric)
        seeds = sorted(results.keys() & grid.results(task, alone or "").keys())
        if alone is None or algorithm == alone or not sites or not seeds:
            continue
        gains = _gains(grid, task, algorithm, metric, alone, seeds)
        low, high = bootstrap_interval(mean, gains)
        columns = (mean(gains), low, high, np.sum(gains > 0, axis=-1))
        found = [MeanGain(*one) for one in zip(sites, *(column.tolist() for column in columns), strict=True)]
        every.append(MethodGains(task, algorithm, metric, len(seeds), tuple(found), grid.declared[metric]))
    return every


def runs_needed(sites: int) -> int:
    """The fewest runs with which any of this many sites can be below 5 % after Holm's correction.

    >>> runs_needed(1), runs_needed(4), runs_needed(300)
    (6, 8, 14)
    """
    return next(runs for runs in range(1, 100) if sites * smallest_wilcoxon_p(runs) < LEVEL)
