"""Learning curves: the sites' average with its spread over runs, and each site by itself."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from playerfl.report.compute.grid import RunGrid
from playerfl.report.compute.statistics import Array, median, percentiles
from playerfl.runs.result import RunResult

_Key = Sequence[str | int | float]
SPLITS = ("test", "validation", "train")


@dataclass(frozen=True)
class Curve:
    """One algorithm on one task, metric and split, by round."""

    task: str
    algorithm: str
    metric: str
    split: str
    rounds: tuple[int, ...]
    middle: Array
    """Median over runs of the average over sites, weighted by examples."""
    low: Array
    high: Array
    """The quartiles over runs."""
    sites: Array
    """Sites × rounds: each site's median over runs."""
    tuned: float | None
    """The average after the finishing phase, where the algorithm has one."""
    diverged: int
    """Runs with a NaN score in some round; from then on they count as the worst, as in the tables."""


def curves(grid: RunGrid) -> list[Curve]:
    """Every algorithm, metric and split of every task."""
    return [
        curve
        for task, algorithm, results in grid.cells()
        for curve in _curves(grid, task, algorithm, list(results.values()))
    ]


def _curves(grid: RunGrid, task: str, algorithm: str, results: Sequence[RunResult]) -> list[Curve]:
    sites = grid.sites(task)
    columns = [(split, metric) for split in SPLITS for metric in grid.metrics]
    rounds = max(int(result.experiment["rounds"]) for result in results)
    # runs × columns × sites × (rounds 0 … R, then the finishing phase)
    values = np.full((len(results), len(columns), len(sites), rounds + 2), np.nan)
    # A recorded NaN means that the run diverged, or that the metric has no value at the site; only rounds that were
    # never evaluated are missing.
    recorded = np.zeros(values.shape[1:], dtype=bool)
    keys: list[_Key] = []
    for run, result in enumerate(results):
        # Runs of one method usually write the same rows in the same order: compute their places once.
        run_keys = [row[:5] for row in result.score_rows]
        if run_keys != keys:
            keys = run_keys
            places, rows = _places(keys, columns, sites, rounds)
        scores = np.fromiter((float(row[5]) for row in result.score_rows), float, len(keys))
        values[run].reshape(-1)[places] = scores[rows]
        recorded.reshape(-1)[places] = True
    worst = np.array([np.inf if grid.declared[metric].lower_is_better else -np.inf for _, metric in columns])
    may_lack = np.array([not grid.declared[metric].always_defined for _, metric in columns])[:, None, None]
    undefined = np.isnan(values) & recorded & may_lack & _finite_loss(values, columns)
    values = np.where(np.isnan(values) & recorded & ~undefined, worst[:, None, None], values)
    shares = np.where(undefined, 0.0, grid.examples(task, algorithm).T[:, None, :, None])
    with np.errstate(invalid="ignore"):
        averages = np.sum(np.where(undefined, 0.0, values) * shares, axis=2) / np.sum(shares, axis=2)
    drawn = []
    for column, (split, metric) in enumerate(columns):
        has_value = ~np.isnan(averages[:, column, : rounds + 1]).any(axis=0)
        known = np.flatnonzero(recorded[column, :, : rounds + 1].any(axis=0) & has_value)
        if not len(known):
            continue
        average = averages[:, column, known]
        low, middle, high = percentiles(average.T, (25, 50, 75))
        finish = averages[:, column, rounds + 1]
        drawn.append(
            Curve(
                task,
                algorithm,
                metric,
                split,
                tuple(int(i) for i in known),
                middle,
                low,
                high,
                sites=median(np.moveaxis(values[:, column][:, :, known], 0, -1)),
                tuned=float(median(finish)) if recorded[column, :, rounds + 1].any() else None,
                diverged=int(np.isinf(average).any(axis=1).sum()),
            )
        )
    return drawn


def _finite_loss(values: Array, columns: Sequence[tuple[str, str]]) -> NDArray[np.bool_]:
    """Whether the loss of the same split is finite: then a metric that is NaN has no value, but nothing diverged."""
    place_of = {split: place for place, (split, metric) in enumerate(columns) if metric == "loss"}
    losses = values[:, [place_of.get(split, 0) for split, _ in columns]]
    has_loss = np.array([split in place_of for split, _ in columns])
    return np.asarray(np.isfinite(losses) & has_loss[:, None, None])


def _places(
    keys: Sequence[_Key], columns: Sequence[tuple[str, str]], sites: Sequence[str], rounds: int
) -> tuple[list[int], list[int]]:
    """Flat positions in columns × sites × rounds, and the rows whose values go there."""
    column_of = {pair: i for i, pair in enumerate(columns)}
    site_of = {site: i for i, site in enumerate(sites)}
    places, rows = [], []
    for row, (stage, round_, site_name, split, metric) in enumerate(keys):
        column, site = column_of.get((str(split), str(metric))), site_of.get(str(site_name))
        if column is not None and site is not None:
            time = rounds + 1 if stage == "finish" else int(round_)
            places.append((column * len(sites) + site) * (rounds + 2) + time)
            rows.append(row)
    return places, rows


def thinned(rounds: Sequence[int], points: int) -> list[int]:
    """Positions of at most `points` rounds, including the first and the last.

    >>> thinned(range(100), 4)
    [0, 33, 66, 99]
    """
    if len(rounds) <= points:
        return list(range(len(rounds)))
    return sorted({round(float(i)) for i in np.linspace(0, len(rounds) - 1, points)})
