"""Learning curves: the sites' average with its spread over runs, and each site's own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from playerfl.report.grid import Grid
from playerfl.report.statistics import Array
from playerfl.results import RunResult

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


def curves(grid: Grid) -> list[Curve]:
    """Every algorithm, metric and split of every task."""
    found = []
    for task in grid.tasks:
        for algorithm in grid.algorithms:
            results = list(grid.results(task, algorithm).values())
            if results:
                found += _curves(grid, task, algorithm, results)
    return found


def _curves(grid: Grid, task: str, algorithm: str, results: Sequence[RunResult]) -> list[Curve]:
    sites = grid.sites(task)
    columns = [(split, metric) for split in SPLITS for metric in grid.metrics]
    rounds = max(int(result.experiment["rounds"]) for result in results)
    # runs × what × sites × (rounds 0 … R, then the finishing phase)
    values = np.full((len(results), len(columns), len(sites), rounds + 2), np.nan)
    place_of = {pair: i for i, pair in enumerate(columns)}
    row_of = {site: i for i, site in enumerate(sites)}
    for run, result in enumerate(results):
        for stage, round_, client, split, metric, value in result.score_rows:
            place, row = place_of.get((str(split), str(metric))), row_of.get(str(client))
            if place is not None and row is not None:
                values[run, place, row, rounds + 1 if stage == "finish" else int(round_)] = value
    shares = grid.examples(task, algorithm).T[:, None, :, None]
    averages = np.sum(values * shares, axis=2) / np.sum(shares, axis=2)
    found = []
    for place, (split, metric) in enumerate(columns):
        known = np.flatnonzero(~np.isnan(values[:, place, :, : rounds + 1]).all(axis=(0, 1)))
        if not len(known):
            continue
        average = averages[:, place]
        finish = average[:, rounds + 1]
        found.append(
            Curve(
                task,
                algorithm,
                metric,
                split,
                tuple(int(i) for i in known),
                *_quartiles(average[:, known]),
                sites=np.asarray(_quietly(np.nanmedian, values[:, place][:, :, known], axis=0)),
                tuned=None if np.isnan(finish).all() else float(np.nanmedian(finish)),
            )
        )
    return found


def _quartiles(averages: Array) -> tuple[Array, Array, Array]:
    low, middle, high = np.asarray(_quietly(np.nanpercentile, averages, (25, 50, 75), axis=0))
    return middle, low, high


def _quietly(function: object, *arguments: object, **options: object) -> object:
    """A round in which every run diverged has no median; that is no warning, but a gap in the curve."""
    import warnings

    assert callable(function)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "All-NaN", RuntimeWarning)
        return function(*arguments, **options)


def thinned(rounds: Sequence[int], points: int) -> list[int]:
    """Positions of at most so many rounds, the first and the last among them.

    >>> thinned(range(100), 4)
    [0, 33, 66, 99]
    """
    if len(rounds) <= points:
        return list(range(len(rounds)))
    return sorted({round(float(i)) for i in np.linspace(0, len(rounds) - 1, points)})
