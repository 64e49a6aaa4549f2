"""Algorithms side by side: averages, fairness, gains and losses of sites, and cost."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

import numpy as np
from numpy.typing import NDArray

from playerfl.errors import ConfigError, one_of
from playerfl.runs.result import RunResult

Array = NDArray[np.float64]
Score = TypeVar("Score", float, Array)
ClientAverage = Literal["samples", "uniform"]
LOWER_IS_BETTER = frozenset({"loss"})


def fairness(scores: Array) -> Array:
    """The population variance over sites (the first axis): 0 is perfectly even; NaN where a score is not finite.

    >>> float(fairness(np.array([0.0, 1.0])))
    0.25
    """
    with np.errstate(invalid="ignore"):
        return np.asarray(np.var(scores, axis=0))


def gain(metric: str, score: Score, baseline: Score) -> Score:
    """How much better a score is than a baseline, positive for better.

    >>> round(gain("loss", 0.2, 0.5), 10), round(gain("f1", 0.2, 0.5), 10)
    (0.3, -0.3)
    """
    return baseline - score if metric in LOWER_IS_BETTER else score - baseline


def incentive(metric: str, scores: Array, local: Array, federated: Array) -> Array:
    """The percentage of sites (the first axis) strictly better off than training alone and plain averaging (IPR).

    >>> float(incentive("f1", np.array([0.9, 0.5]), np.array([0.8, 0.5]), np.array([0.7, 0.4])))
    50.0
    """
    with np.errstate(invalid="ignore"):
        better = (gain(metric, scores, local) > 0) & (gain(metric, scores, federated) > 0)
    return np.asarray(100.0 * np.mean(better, axis=0))


def global_scores(result: RunResult) -> dict[str, dict[str, float]]:
    """What incentive compares with: for FedAvg, the scores of one global model, even if sites report different rounds.

    Of another method used as plain averaging, the reported scores.
    """
    return result.one_round_scores if result.algorithm == "fedavg" else result.site_scores


def metrics_of(result: RunResult) -> list[str]:
    """The metrics a run evaluated, in their order."""
    return list(dict.fromkeys(metric for scores in result.site_scores.values() for metric in scores))


@dataclass(frozen=True)
class AlgorithmSummary:
    """One algorithm's row of a comparison."""

    algorithm: str
    average: dict[str, float]
    """By metric, over sites."""
    sites: dict[str, dict[str, float]]
    """Test scores: site, then metric."""
    fairness: dict[str, float]
    incentive: dict[str, float] | None
    """By metric; None for the baselines themselves, or where one of them is missing."""
    gains: dict[str, dict[str, dict[str, float]]]
    """Baseline, then metric, then site: how much better the site is than under that baseline."""
    bytes_down: int
    bytes_up: int
    seconds: float


def compare(
    results: Sequence[RunResult],
    *,
    baseline_local: str = "local",
    baseline_global: str = "fedavg",
    client_average: ClientAverage = "samples",
) -> list[AlgorithmSummary]:
    """One summary per run; the runs must share task and seed and differ in the algorithm.

    Averages weight sites by their training examples, or equally (`client_average="uniform"`).
    """
    if not results:
        raise ConfigError("there are no runs to compare")
    if client_average not in ("samples", "uniform"):
        raise ConfigError(one_of(client_average, ("samples", "uniform"), "client_average"))
    names = [result.algorithm for result in results]
    if len(set(names)) != len(names):
        raise ConfigError(f"each algorithm may occur only once in a comparison, not {', '.join(names)}")
    _must_share(results)
    by_name = {result.algorithm: result for result in results}
    baselines = [name for name in (baseline_local, baseline_global) if name in by_name]
    return [
        _summary(result, [by_name[name] for name in baselines], baseline_global, client_average) for result in results
    ]


def _must_share(results: Sequence[RunResult]) -> None:
    """Runs can be compared only on the same data, seed and evaluation."""
    for key in ("task", "seed", "data", "rounds", "participation", "eval_point", "selection"):
        values = [result.experiment.get(key) for result in results]
        if any(value != values[0] for value in values):
            raise ConfigError(f"these runs differ in {key!r}, so they cannot be compared: {values}")
    if any(result.num_examples != results[0].num_examples for result in results):
        raise ConfigError("these runs differ in their sites or the sites' sizes, so they cannot be compared")


def _summary(
    result: RunResult, baselines: Sequence[RunResult], baseline_global: str, client_average: str
) -> AlgorithmSummary:
    sites = result.site_scores
    weights = [result.num_examples[site] if client_average == "samples" else 1 for site in sites]

    def by_metric(found: Mapping[str, Mapping[str, float]]) -> dict[str, Array]:
        return {metric: np.array([found[site][metric] for site in sites]) for metric in metrics_of(result)}

    scores = by_metric(sites)
    others = [run for run in baselines if run is not result]
    references = {run.algorithm: by_metric(run.site_scores) for run in others}
    rivals = [by_metric(global_scores(run) if run.algorithm == baseline_global else run.site_scores) for run in others]
    return AlgorithmSummary(
        algorithm=result.algorithm,
        average={
            metric: sum(score * weight for score, weight in zip(values.tolist(), weights, strict=True)) / sum(weights)
            for metric, values in scores.items()
        },
        sites=sites,
        fairness={metric: float(fairness(values)) for metric, values in scores.items()},
        incentive={
            metric: float(incentive(metric, values, *(rival[metric] for rival in rivals)))
            for metric, values in scores.items()
        }
        if len(rivals) == 2
        else None,
        gains={
            name: {
                metric: dict(zip(sites, gain(metric, values, reference[metric]).tolist(), strict=True))
                for metric, values in scores.items()
            }
            for name, reference in references.items()
        },
        bytes_down=sum(int(row[3]) for row in result.traffic_rows),
        bytes_up=sum(int(row[4]) for row in result.traffic_rows),
        seconds=float(result.timing["wall_seconds"]),
    )


def as_json(result: RunResult, summary: AlgorithmSummary) -> dict[str, Any]:
    """One run as JSON: its settings, results and directory."""
    return {
        "algorithm": result.algorithm,
        "task": result.experiment["task"],
        "seed": result.experiment["seed"],
        "rounds": result.experiment["rounds"],
        "directory": str(result.path) if result.path else None,
        "average": summary.average,
        "sites": summary.sites,
        "chosen_rounds": result.chosen_rounds,
        "fairness": summary.fairness,
        "incentive": summary.incentive,
        "gains": summary.gains,
        "bytes_down": summary.bytes_down,
        "bytes_up": summary.bytes_up,
        "wall_seconds": summary.seconds,
        "cut": result.layers.get("decision"),
        "partition_hash": result.data.get("partition_hash"),
        "notes": result.data.get("notes", []),
    }


def without_nan(tree: Any) -> Any:
    """A copy with None in place of NaN, which JSON does not have.

    >>> without_nan({"loss": float("nan"), "f1": [0.5]})
    {'loss': None, 'f1': [0.5]}
    """
    if isinstance(tree, Mapping):
        return {key: without_nan(value) for key, value in tree.items()}
    if isinstance(tree, list | tuple):
        return [without_nan(value) for value in tree]
    return None if isinstance(tree, float) and not math.isfinite(tree) else tree
