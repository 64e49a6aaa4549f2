"""The tables: every metric; fairness of each; incentivised participation of each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np

from playerfl.report.compute.comparison import fairness, incentive, metrics_of
from playerfl.report.compute.grid import MAJORITY, RunGrid
from playerfl.report.compute.statistics import Array, apart, median, percentile_interval, resampled, worst_for_nan
from playerfl.runs.measures.declared import Declared
from playerfl.runs.measures.row_intervals import row_interval

Kind = Literal["score", "fairness", "incentive"]
KINDS: tuple[Kind, ...] = ("score", "fairness", "incentive")


@dataclass(frozen=True)
class Choices:
    """How a report averages and compares."""

    baseline_local: str | None = None
    baseline_global: str | None = None
    """The algorithms used as training alone and as plain averaging; None where they were not run."""
    client_average: Literal["samples", "uniform"] = "samples"
    per_run: bool = False
    """Fairness and incentive per run, then their median; otherwise from each site's median over runs."""

    @property
    def baselines(self) -> tuple[str, ...]:
        return tuple(name for name in (self.baseline_local, self.baseline_global) if name is not None)


@dataclass(frozen=True)
class ScoreCell:
    """One algorithm on one task: the estimate, its 95 % interval over runs, and how many runs that is."""

    value: float
    low: float
    high: float
    runs: int
    per_run: tuple[float, ...]
    """The value of each run, in the order of seeds."""
    seeds: tuple[int, ...]
    best: bool = False
    rows: tuple[float, float] = (np.nan, np.nan)
    """The 95 % interval over test rows, of scores only; NaN where the runs do not hold their rows."""
    tie: bool = False
    """The interval of its difference from the best, in resamples of the seeds both have, contains 0."""


@dataclass(frozen=True)
class ScoreTable:
    """One measure of one metric: algorithms × tasks."""

    kind: Kind
    metric: str
    algorithms: tuple[str, ...]
    tasks: tuple[str, ...]
    cells: dict[tuple[str, str], ScoreCell]
    ranked: tuple[str, ...]
    """The algorithms that compete: fairness and incentive leave the two baselines out, as the paper does."""
    declared: Declared
    majority: Mapping[str, ScoreCell] = field(default_factory=dict)
    """The baseline by task, where it is known: shown for reference, but neither ranked nor tested."""
    baseline_name: str = MAJORITY

    @property
    def name(self) -> str:
        return self.metric if self.kind == "score" else f"{self.kind}_{self.metric}"

    @property
    def lower_is_better(self) -> bool:
        return self.kind == "fairness" or (self.kind == "score" and self.declared.lower_is_better)


def tables(grid: RunGrid, choices: Choices) -> list[ScoreTable]:
    """Every measure of every metric."""
    every = (_table(grid, kind, metric, choices) for kind in KINDS for metric in grid.metrics)
    return [table for table in every if table.cells]


def _table(grid: RunGrid, kind: Kind, metric: str, choices: Choices) -> ScoreTable:
    left_out = choices.baselines if kind != "score" else ()
    rows = [name for name in grid.algorithms if kind != "incentive" or name not in left_out]
    cells = {
        (algorithm, task): cell
        for task in grid.tasks
        for algorithm in rows
        if (cell := _cell(grid, kind, metric, task, algorithm, choices))
    }
    present = tuple(name for name in rows if any((name, task) in cells for task in grid.tasks))
    ranked = tuple(name for name in present if name not in left_out)
    shown = tuple(task for task in grid.tasks if any((name, task) in cells for name in present))
    majority = {task: cell for task in shown if (cell := _majority_cell(grid, kind, metric, task, choices))}
    declared, name = grid.declared[metric], grid.baseline_name(shown)
    table = ScoreTable(kind, metric, present, shown, cells, ranked, declared, majority, name)
    for task in shown:
        cells |= _marked(grid, table, task, choices)
    return table


def _cell(grid: RunGrid, kind: Kind, metric: str, task: str, algorithm: str, choices: Choices) -> ScoreCell | None:
    seeds = sorted(grid.results(task, algorithm))
    if kind == "incentive":
        for baseline in (choices.baseline_local, choices.baseline_global):
            if baseline is None:
                return None
            seeds = [seed for seed in seeds if seed in grid.results(task, baseline)]
    if not seeds or metric not in metrics_of(grid.results(task, algorithm)[seeds[0]]):
        return None
    if not grid.sites(task, metric):
        return None
    measured = _Estimate(grid, kind, metric, task, algorithm, choices)
    low, high = percentile_interval(measured.resampled(seeds)) if len(seeds) > 1 else (np.nan, np.nan)
    return ScoreCell(
        value=float(measured.value(seeds)),
        low=float(low),
        high=float(high),
        runs=len(seeds),
        per_run=tuple(map(float, measured.per_run(seeds))),
        seeds=tuple(seeds),
        rows=_row_interval(grid, task, algorithm, metric, seeds, choices) if kind == "score" else (np.nan, np.nan),
    )


def _row_interval(
    grid: RunGrid, task: str, algorithm: str, metric: str, seeds: Sequence[int], choices: Choices
) -> tuple[float, float]:
    """The interval of the cell's value over resamples of every site's test rows."""
    drawn = grid.row_resamples(task, algorithm, metric, seeds)
    if drawn is None:
        return np.nan, np.nan
    shares = _shares(grid, task, algorithm, metric, seeds, choices)[:, None, :]
    return row_interval(median(np.sum(drawn * shares, axis=0) / np.sum(shares, axis=0)))


def _shares(grid: RunGrid, task: str, algorithm: str, metric: str, seeds: Sequence[int], choices: Choices) -> Array:
    """What each site counts for in an average: sites × runs."""
    examples = grid.examples(task, algorithm, seeds, metric)
    return examples if choices.client_average == "samples" else np.ones_like(examples)


def _majority_cell(grid: RunGrid, kind: Kind, metric: str, task: str, choices: Choices) -> ScoreCell | None:
    if not np.isfinite(grid.scores(task, MAJORITY, metric)).all():
        return None
    cell = _cell(grid, kind, metric, task, MAJORITY, choices)
    # Runs that share one split share one value, which has no interval.
    return replace(cell, low=np.nan, high=np.nan) if cell and cell.low == cell.high else cell


@dataclass(frozen=True)
class _Estimate:
    """One measure of one algorithm on one task: over some runs, per run, and in resamples of them."""

    grid: RunGrid
    kind: Kind
    metric: str
    task: str
    algorithm: str
    choices: Choices

    def value(self, seeds: Sequence[int]) -> Array:
        if self._per_run_median:
            return median(self.per_run(seeds))
        return self._measure(*(median(self._scores(name, seeds)) for name in self._names))

    def per_run(self, seeds: Sequence[int]) -> Array:
        if self.kind != "score":
            return self._measure(*(self._scores(name, seeds) for name in self._names))
        scores = self._scores(self.algorithm, seeds)
        shares = _shares(self.grid, self.task, self.algorithm, self.metric, seeds, self.choices)
        return np.asarray(np.sum(scores * shares, axis=0) / np.sum(shares, axis=0))

    def resampled(self, seeds: Sequence[int]) -> Array:
        """The value in every resample of the runs; methods with the same seeds share the draws."""
        if self._per_run_median:
            return resampled(median, self.per_run(seeds))
        medians = (
            self.grid.resampled_medians(self.task, name, self.metric, seeds, global_model=self._is_global(name))
            for name in self._names
        )
        return self._measure(*medians)

    @property
    def _per_run_median(self) -> bool:
        """Whether the value is the median of per-run values; otherwise it comes from each site's median over runs."""
        return self.kind == "score" or self.choices.per_run

    @property
    def _names(self) -> tuple[str, ...]:
        return (self.algorithm, *(self.choices.baselines if self.kind == "incentive" else ()))

    def _scores(self, name: str, seeds: Sequence[int]) -> Array:
        return self.grid.scores(self.task, name, self.metric, seeds, global_model=self._is_global(name))

    def _is_global(self, name: str) -> bool:
        return self.kind == "incentive" and name == self.choices.baseline_global

    def _measure(self, scores: Array, *baselines: Array) -> Array:
        if self.kind == "incentive":
            local, federated = baselines
            lower_is_better = self.grid.declared[self.metric].lower_is_better
            return incentive(scores, local, federated, lower_is_better=lower_is_better)
        return worst_for_nan(fairness(scores), lower_is_better=True)


def _marked(grid: RunGrid, table: ScoreTable, task: str, choices: Choices) -> dict[tuple[str, str], ScoreCell]:
    """A column's cells; marks the best, and those whose difference from it is within seed noise."""
    rivals = {name: table.cells[name, task] for name in table.ranked if (name, task) in table.cells}
    if len(rivals) < 2:
        return {}
    best = (min if table.lower_is_better else max)(rivals, key=lambda name: rivals[name].value)
    if not np.isfinite(rivals[best].value):
        return {}

    def ties(name: str) -> bool:
        seeds = [seed for seed in rivals[name].seeds if seed in rivals[best].seeds]
        if len(seeds) < 2:
            return False
        drawn = (
            _Estimate(grid, table.kind, table.metric, task, label, choices).resampled(seeds) for label in (name, best)
        )
        low, high = percentile_interval(apart(*drawn))
        return bool(low <= 0 <= high)

    marked = {}
    for name, cell in rivals.items():
        is_best = cell.value == rivals[best].value
        marked[name, task] = replace(cell, best=is_best, tie=not is_best and ties(name))
    return marked
