"""The nine tables: F1, accuracy and loss; fairness of each; incentivised participation of each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np

from playerfl import paper
from playerfl.report.comparison import LOWER_IS_BETTER, incentive_rate, variance
from playerfl.report.grid import Grid
from playerfl.report.statistics import Array, bootstrap_interval, median, percentile_interval, worst_for_nan

Kind = Literal["score", "fairness", "incentive"]
KINDS: tuple[Kind, ...] = ("score", "fairness", "incentive")


@dataclass(frozen=True)
class Choices:
    """How a report counts."""

    baseline_local: str | None = None
    baseline_global: str | None = None
    """Labels of the algorithms that stand for training alone and for plain averaging; None where there is none."""
    client_average: Literal["samples", "uniform"] = "samples"
    per_run: bool = False
    """Fairness and incentive in each run, then their median; else of each site's median over runs."""

    @property
    def baselines(self) -> tuple[str, ...]:
        return tuple(name for name in (self.baseline_local, self.baseline_global) if name is not None)


@dataclass(frozen=True)
class Cell:
    """One algorithm on one task: the estimate, its 95 % interval over runs, and how many runs that is."""

    value: float
    low: float
    high: float
    runs: int
    per_run: tuple[float, ...]
    """What each run gives, in the order of seeds."""
    seeds: tuple[int, ...]
    best: bool = False
    tie: bool = False
    """Its value lies inside the interval of the best."""


@dataclass(frozen=True)
class Table:
    """One measure of one metric: algorithms × tasks."""

    kind: Kind
    metric: str
    algorithms: tuple[str, ...]
    tasks: tuple[str, ...]
    cells: dict[tuple[str, str], Cell]
    ranked: tuple[str, ...]
    """The algorithms that compete: as in the paper, fairness and incentive leave the two baselines out."""
    printed: dict[tuple[str, str], str] = field(default_factory=dict)
    """What the paper prints in a cell."""

    @property
    def name(self) -> str:
        return self.metric if self.kind == "score" else f"{self.kind}_{self.metric}"

    @property
    def lower_is_better(self) -> bool:
        return self.kind == "fairness" or (self.kind == "score" and self.metric in LOWER_IS_BETTER)


def tables(grid: Grid, choices: Choices) -> list[Table]:
    """Every measure of every metric, those of the paper in its order."""
    found = []
    for kind in KINDS:
        for metric in grid.metrics:
            made = _table(grid, kind, metric, choices)
            if made.cells:
                found.append(made)
    return found


def _table(grid: Grid, kind: Kind, metric: str, choices: Choices) -> Table:
    left_out = choices.baselines if kind != "score" else ()
    rows = [name for name in grid.algorithms if kind != "incentive" or name not in left_out]
    cells = {}
    for task in grid.tasks:
        for algorithm in rows:
            cell = _cell(grid, kind, metric, task, algorithm, choices)
            if cell is not None:
                cells[algorithm, task] = cell
    present = tuple(name for name in rows if any((name, task) in cells for task in grid.tasks))
    ranked = tuple(name for name in present if name not in left_out)
    shown = tuple(task for task in grid.tasks if any((name, task) in cells for name in present))
    table = Table(kind, metric, present, shown, cells, ranked, _printed(grid, kind, metric, present))
    for task in shown:
        cells |= _marked(table, task)
    return table


def _cell(grid: Grid, kind: Kind, metric: str, task: str, algorithm: str, choices: Choices) -> Cell | None:
    seeds = sorted(grid.results(task, algorithm))
    if kind == "incentive":
        for baseline in (choices.baseline_local, choices.baseline_global):
            if baseline is None:
                return None
            seeds = [seed for seed in seeds if seed in grid.results(task, baseline)]
    if not seeds or metric not in _metrics_of(grid, task, algorithm):
        return None
    scores = grid.scores(task, algorithm, metric, seeds)
    if kind == "score":
        shares = grid.examples(task, algorithm) if choices.client_average == "samples" else np.ones_like(scores)
        per_run = np.sum(scores * shares, axis=0) / np.sum(shares, axis=0)
        return _median_of(per_run, seeds)

    def measure(own: Array, *baselines: Array) -> Array:
        if kind == "incentive":
            return incentive_rate(metric, own, *baselines)
        return worst_for_nan(variance(own), lower_is_better=True)

    names = (algorithm, *(choices.baselines if kind == "incentive" else ()))
    tables_of = [grid.scores(task, name, metric, seeds) for name in names]
    per_run = measure(*tables_of)
    if choices.per_run:
        return _median_of(per_run, seeds)
    low, high = np.array(np.nan), np.array(np.nan)
    if len(seeds) > 1:
        drawn = measure(*(grid.resampled_medians(task, name, metric, seeds) for name in names))
        low, high = percentile_interval(drawn)
    return _made(measure(*map(median, tables_of)), low, high, per_run, seeds)


def _median_of(per_run: Array, seeds: Sequence[int]) -> Cell:
    return _made(median(per_run), *bootstrap_interval(median, per_run), per_run, seeds)


def _made(value: Array, low: Array, high: Array, per_run: Array, seeds: Sequence[int]) -> Cell:
    return Cell(float(value), float(low), float(high), len(seeds), tuple(map(float, per_run)), tuple(seeds))


def _metrics_of(grid: Grid, task: str, algorithm: str) -> set[str]:
    result = next(iter(grid.results(task, algorithm).values()))
    return {metric for own in result.site_scores.values() for metric in own}


def _marked(table: Table, task: str) -> dict[tuple[str, str], Cell]:
    """The best of a column, and those that its interval does not tell from it."""
    rivals = {name: table.cells[name, task] for name in table.ranked if (name, task) in table.cells}
    if len(rivals) < 2:
        return {}
    best = (min if table.lower_is_better else max)(rivals.values(), key=lambda cell: cell.value)
    if not np.isfinite(best.value):
        return {}
    found = {}
    for name, cell in rivals.items():
        is_best = cell.value == best.value
        tie = not is_best and bool(best.low <= cell.value <= best.high)
        found[name, task] = replace(cell, best=is_best, tie=tie)
    return found


def _printed(grid: Grid, kind: Kind, metric: str, algorithms: Sequence[str]) -> dict[tuple[str, str], str]:
    rows = paper.facts()["tables"].get(metric if kind == "score" else f"{kind}_{metric}", {}).get("rows", {})
    found = {}
    for task in grid.tasks:
        dataset = grid.printed_name(task)
        for algorithm in algorithms:
            cell = rows.get(paper.ALGORITHM_NAMES.get(grid.plain_name(algorithm), ""), {}).get(dataset or "")
            if cell:
                found[algorithm, task] = str(cell["printed"])
    return found
