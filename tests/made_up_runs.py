"""Invented runs with given scores, for reports of any size and kind."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np
from torch import nn

from playerfl.data.sites import SiteRecord
from playerfl.layers.cut import choose_cut
from playerfl.report.compute.collected import Collected
from playerfl.report.compute.report import Report, build_report
from playerfl.report.view.answers import answers
from playerfl.runs.directory import Row
from playerfl.runs.environment import environment
from playerfl.runs.files import LayersFile
from playerfl.runs.result import RunResult

LAYERS = {"conv1": 100, "conv2": 400, "fc": 1500}
SITES = ("north", "south", "west")
Counts = Mapping[str, int]
"""Examples by class."""
ScoreOf = Callable[[int, int], Mapping[str, float]]
"""Site number and round to a score by metric."""


def report_of(*results: RunResult, **options: Any) -> Report:
    """A report on these runs."""
    return build_report(Collected(results), **options)


def sentences(report: Report) -> str:
    """The answers of a report, as one text."""
    return " ".join(sentence for answer in answers(report) for sentence in answer.sentences)


def made_up(
    algorithm: str = "player_fl",
    seed: int = 0,
    *,
    task: str = "digits",
    sites: Sequence[str] = SITES,
    examples: Sequence[int] | None = None,
    rounds: int = 2,
    score: ScoreOf | None = None,
    finish: ScoreOf | None = None,
    paper: str | None = None,
    scores_of_layers: Mapping[str, Sequence[float]] | None = None,
    layers: Mapping[str, int] = LAYERS,
    options: Mapping[str, Any] = MappingProxyType({}),
    classes: Sequence[tuple[Counts, Counts]] | None = None,
    partition: str | None = "same",
    **changes: Any,
) -> RunResult:
    """One run. Without `score`, sites get numbers that depend on algorithm and seed and improve with rounds.

    `classes` are each site's class counts in the training and the test data; then they decide its `examples`.
    """
    if classes is not None:
        examples = [sum(train.values()) for train, _ in classes]
    sizes = list(examples or [10 * (number + 1) for number in range(len(sites))])
    score = score or plausible(algorithm, seed, rounds)
    rows: list[Row] = []
    stages: list[tuple[str, int, ScoreOf]] = [("round", r, score) for r in range(1, rounds + 1)]
    stages += [("finish", rounds, finish)] if finish else []
    for stage, round_, score_of in stages:
        for number, site in enumerate(sites):
            found = score_of(number, round_)
            for split in ("validation", "test"):
                rows += [(stage, round_, site, split, metric, value) for metric, value in found.items()]
            rows.append((stage, round_, site, "train", "loss", found["loss"]))
    settings = {
        "task": task,
        "seed": seed,
        "rounds": rounds,
        "data": {},
        "eval_point": "post_agg",
        "participation": 1.0,
        "selection": "last",
        "training": {"learning_rate": 0.1, "betas": [0.9, 0.999]},
        "algorithm": {"name": algorithm, **options},
    }
    return RunResult(
        experiment={**settings, **changes},
        environment=environment("cpu", 1),
        score_rows=rows,
        traffic_rows=[(r, site, "fit", 8000, 8000) for r in range(rounds) for site in sites],
        layers=_layers(layers, scores_of_layers, dict(zip(sites, sizes, strict=True))),
        data={
            "notes": [],
            "paper": paper,
            "partition_hash": partition,
            "model": {},
            "trainer": "loop",
            "sites": _sites(sites, sizes, classes),
        },
        weights={},
        build_model=nn.Identity,
        timing={"wall_seconds": 2.5, "runs_side_by_side": 1},
    )


def _sites(
    names: Sequence[str], sizes: Sequence[int], classes: Sequence[tuple[Counts, Counts]] | None
) -> dict[str, SiteRecord]:
    if classes is None:
        return {site: {"train": {"examples": size}} for site, size in zip(names, sizes, strict=True)}
    return {
        site: {
            "train": {"examples": sum(train.values()), "classes": dict(train)},
            "validation": {"examples": 5},
            "test": {"examples": sum(test.values()), "classes": dict(test)},
        }
        for site, (train, test) in zip(names, classes, strict=True)
    }


def _layers(
    sizes: Mapping[str, int], scores: Mapping[str, Sequence[float]] | None, examples: Mapping[str, int]
) -> LayersFile:
    found: LayersFile = {
        "layers": [{"name": name, "entries": [name], "parameters": size} for name, size in sizes.items()],
        "decision": None,
        "profiles": {},
    }
    if scores:
        found["decision"] = choose_cut(
            {site: dict(zip(sizes, own, strict=True)) for site, own in scores.items()}
        ).to_json()
        found["profiles"] = {
            site: {
                "layers": list(sizes),
                "batches": [list(own)],
                "batch_sizes": [8],
                "num_examples": examples[site],
                "weight_batches": False,
            }
            for site, own in scores.items()
        }
    return found


def plausible(algorithm: str, seed: int, rounds: int) -> ScoreOf:
    """Scores between 0 and 1 that rise with rounds, vary with the seed, and differ by algorithm and site."""
    draw = np.random.default_rng([seed, *algorithm.encode()])
    level = np.random.default_rng(list(algorithm.encode())).uniform(0.5, 0.8)
    noise = draw.normal(0, 0.02, size=1000)

    def score(site: int, round_: int) -> dict[str, float]:
        value = float(np.clip((level + 0.03 * np.sin(site) + noise[site % 1000]) * (0.5 + 0.5 * round_ / rounds), 0, 1))
        return {"loss": 2.0 * (1 - value), "f1": value, "accuracy": min(1.0, value + 0.05)}

    return score


def constant(**scores: float) -> ScoreOf:
    """The same scores for every site and round."""
    return lambda site, round_: scores


def by_site(metric: str, values: Sequence[float]) -> ScoreOf:
    """A metric with a value for each site; the loss mirrors it."""
    return lambda site, round_: {"loss": 1 - values[site], metric: values[site]}
