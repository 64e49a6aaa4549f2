"""The threshold what-if: which cut every threshold, rule and weighting would give, from the stored layer scores."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np

from playerfl.errors import LayerError
from playerfl.layers.cut import CutRule, cut_ratios, transition_point
from playerfl.layers.sensitivity import ClientWeight, Importance, Normalise, Profile, Reduce, combine_sites, is_usable
from playerfl.report.compute.cost import sends_private_layers
from playerfl.report.compute.grid import RunGrid
from playerfl.report.compute.statistics import Array
from playerfl.runs.result import RunResult

# How many sets of sites a page may hold cuts for, over all tasks; each takes about fifty bytes.
_MOST_SETS = 20_000
BYTES_PER_PARAMETER = 4
_RATIO_RULES: tuple[CutRule, ...] = ("layer_ratio", "cumulative_ratio")
NORMALISATIONS: tuple[Normalise, ...] = ("none", "first_layer", "last")
# How sites are combined: the picker's value, then the arguments of `combine_sites`.
REDUCTIONS: dict[str, tuple[Reduce, ClientWeight]] = {
    "mean": ("mean", "uniform"),
    "samples": ("mean", "samples"),
    "median": ("median", "uniform"),
}


@dataclass(frozen=True)
class LayerScores:
    """Layer scores of one task, by run."""

    task: str
    algorithm: str
    layers: tuple[str, ...]
    parameters: tuple[int, ...]
    runs: dict[int, dict[str, dict[str, float]]]
    """Seed, then site, then s_l of every layer; no site where only their combined scores are known."""
    together: dict[int, dict[str, float]]
    """The scores of all sites combined, where that is all the server of a job across institutions knows."""
    sites: dict[int, int]
    """How many sites took part, by seed."""
    num_examples: dict[int, dict[str, int]]
    settings: dict[str, Any]
    """The rule, threshold and other arguments of `choose_cut` that the runs used."""
    cuts: dict[int, int]
    """The cut each run used."""
    sends_private: bool
    """Whether sites send their private layers too (`private_pull`)."""
    left_out: int
    """Runs whose scores did not fit into a page."""


@dataclass(frozen=True)
class Steps:
    """Every cut that one set of layer scores can give.

    With a ratio rule and threshold t, the cut is that of the first step above t; if there is none, no transition.
    """

    layer_ratio: tuple[tuple[float, int], ...]
    cumulative_ratio: tuple[tuple[float, int], ...]
    max_jump: int | None


@dataclass(frozen=True)
class CombinedSites:
    """All sites of a run, combined in one way."""

    importance: tuple[float, ...]
    ratios: Mapping[str, tuple[float | None, ...]]
    """By rule."""
    steps: Steps
    without: tuple[Steps | None, ...]
    """With each site left out in turn; None where no site is left."""
    warnings: tuple[str, ...]


def layer_scores(grid: RunGrid) -> list[LayerScores]:
    """For each task, the profiles of PLayer-FL, or else of the first algorithm that measured any."""
    by_task = []
    for task in grid.tasks:
        names = [name for name in grid.algorithms if _measured(grid, task, name)]
        if names:
            by_task.append(_layer_scores(grid, task, grid.player_fl_first(names)[0], _MOST_SETS // len(grid.tasks)))
    return by_task


def _measured(grid: RunGrid, task: str, algorithm: str) -> dict[int, RunResult]:
    runs = sorted(grid.results(task, algorithm).items())
    return {seed: run for seed, run in runs if run.layers.get("profiles") or _together(run)}


def _together(result: RunResult) -> dict[str, float]:
    """The scores that the cut was decided on, if there are any."""
    decision = result.layers.get("decision")
    importance = dict(decision.get("importance", {})) if decision else {}
    layers = [layer["name"] for layer in result.layers["layers"]]
    return importance if list(importance) == layers and is_usable(importance) else {}


def _layer_scores(grid: RunGrid, task: str, algorithm: str, most: int) -> LayerScores:
    results = _measured(grid, task, algorithm)
    first = next(iter(results.values()))
    sets_per_run = max(1, len(first.layers.get("profiles", {}))) * (1 + len(NORMALISATIONS) * len(REDUCTIONS))
    kept = {seed: _profiles(results[seed]) for seed in list(results)[: max(1, most // sets_per_run)]}
    return LayerScores(
        task=task,
        algorithm=algorithm,
        layers=tuple(str(layer["name"]) for layer in first.layers["layers"]),
        parameters=tuple(int(layer["parameters"]) for layer in first.layers["layers"]),
        runs={seed: {site: p.importance for site, p in profiles.items()} for seed, profiles in kept.items()},
        together={seed: _together(results[seed]) for seed, profiles in kept.items() if not profiles},
        sites={seed: len(profiles) or len(results[seed].data["sites"]) for seed, profiles in kept.items()},
        num_examples={seed: {site: p.num_examples for site, p in profiles.items()} for seed, profiles in kept.items()},
        settings=_settings(first),
        cuts={seed: result.cut.index for seed, result in results.items() if result.cut is not None},
        sends_private=sends_private_layers(first),
        left_out=len(results) - len(kept),
    )


def _profiles(result: RunResult) -> dict[str, Profile]:
    return {
        str(site): Profile(
            layers=tuple(stored["layers"]),
            batches=tuple(tuple(row) for row in stored["batches"]),
            batch_sizes=tuple(stored["batch_sizes"]),
            num_examples=int(stored["num_examples"]),
            weight_batches=bool(stored["weight_batches"]),
        )
        for site, stored in sorted(result.layers.get("profiles", {}).items())
    }


def _settings(result: RunResult) -> dict[str, Any]:
    """The stored settings, with the defaults of `choose_cut`."""
    stored = result.experiment["algorithm"]
    return {
        "rule": stored.get("rule", "layer_ratio"),
        "threshold": stored.get("threshold"),
        "on_no_transition": stored.get("on_no_transition", "all"),
        "fixed": stored.get("fixed_cut"),
        "client_weight": stored.get("client_weight", "uniform"),
        "normalise": stored.get("normalise", "none"),
        "reduce": stored.get("reduce", "mean"),
    }


def cut_steps(ratios: Sequence[float | None]) -> tuple[tuple[float, int], ...]:
    """The thresholds at which the cut changes: each ratio above all earlier ones, with its position.

    >>> cut_steps((2.0, 0.5, None, 3.0))
    ((2.0, 1), (3.0, 4))
    """
    steps: list[tuple[float, int]] = []
    for position, ratio in enumerate(ratios, start=1):
        if ratio is not None and ratio > (steps[-1][0] if steps else 0.0):
            steps.append((ratio, position))
    return tuple(steps)


def steps_of(importance: Importance) -> Steps:
    """Every cut of one set of layer scores."""
    jump = transition_point(importance, "max_jump", on_no_transition="all")
    if len(importance) == 1:
        return Steps(((math.inf, 1),), ((math.inf, 1),), 1)
    no_jump = all(ratio is None for ratio in jump.ratios)
    cumulative = cut_steps(cut_ratios(importance, "cumulative_ratio"))
    return Steps(cut_steps(jump.ratios), cumulative, None if no_jump else jump.index)


def alone(scores: Mapping[str, Importance]) -> list[Steps | None]:
    """The cuts each site would choose by itself; None for a site without usable scores."""
    return [steps_of(importance) if is_usable(importance) else None for importance in scores.values()]


def combined(
    scores: Mapping[str, Importance], num_examples: Mapping[str, int]
) -> dict[tuple[Normalise, str], CombinedSites | str]:
    """All sites together, by normalisation and reduction; a sentence where they cannot be combined."""
    ways: dict[tuple[Normalise, str], CombinedSites | str] = {}
    for normalise, name in product(NORMALISATIONS, REDUCTIONS):
        reduce, weight = REDUCTIONS[name]
        try:
            together = combine_sites(
                scores, num_examples=num_examples, client_weight=weight, normalise=normalise, reduce=reduce
            )
            ways[normalise, name] = CombinedSites(
                importance=tuple(together.importance.values()),
                ratios={rule: cut_ratios(together.importance, rule) for rule in _RATIO_RULES},
                steps=steps_of(together.importance),
                without=tuple(_without_each(scores, num_examples, normalise, name)),
                warnings=tuple(together.warnings),
            )
        except LayerError as problem:
            ways[normalise, name] = str(problem)
    return ways


def decided(importance: Importance, settings: Mapping[str, Any]) -> dict[tuple[Normalise, str], CombinedSites | str]:
    """Like `combined`, where only the combined scores are known: the way of the run, and why there is no other."""
    own = settings["normalise"], "samples" if settings["client_weight"] == "samples" else settings["reduce"]
    why = "the server of this job knows the sites’ scores only as they were combined, so it cannot combine them again"
    ways: dict[tuple[Normalise, str], CombinedSites | str] = dict.fromkeys(product(NORMALISATIONS, REDUCTIONS), why)
    ways[own] = CombinedSites(
        importance=tuple(importance.values()),
        ratios={rule: cut_ratios(importance, rule) for rule in _RATIO_RULES},
        steps=steps_of(importance),
        without=(),
        warnings=(),
    )
    return ways


def _without_each(
    scores: Mapping[str, Importance], num_examples: Mapping[str, int], normalise: Normalise, reduction: str
) -> list[Steps | None]:
    """Leave-one-out on arrays: `combine_sites` for every one of 300 sites would take minutes."""
    if len(scores) == 1:
        return []
    layers = list(next(iter(scores.values())))
    usable = [site for site in scores if is_usable(scores[site])]
    rows = np.array([[scores[site][layer] for layer in layers] for site in usable])
    rows = rows / np.array([_scale(row, normalise) for row in rows])[:, None]
    weights = np.array([num_examples[site] if reduction == "samples" else 1 for site in usable], dtype=float)
    without: list[Steps | None] = []
    for site in scores:
        kept = np.array([other != site for other in usable])
        if not kept.any():
            without.append(None)
            continue
        if reduction == "median":
            values = np.diff(np.median(np.cumsum(rows[kept], axis=1), axis=0), prepend=0.0)
        else:
            values = weights[kept] @ rows[kept] / weights[kept].sum()
        # Rounding may leave a difference of medians just below 0.
        without.append(steps_of(dict(zip(layers, map(float, np.maximum(values, 0.0)), strict=True))))
    return without


def _scale(row: Array, normalise: Normalise) -> float:
    return {"none": 1.0, "first_layer": float(row[row > 0][0]), "last": float(row.sum())}[normalise]
