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


def fairness(scores: Sequence[float]) -> float:
    """The population variance over sites: 0 is perfectly even, lower is better.

    >>> fairness([0.0, 1.0])
    0.25
    """
    return float(variance(np.array(scores)))


def variance(scores: Array) -> Array:
    """The population variance over the first axis, which holds the sites; NaN where a score is not finite."""
    with np.errstate(invalid="ignore"):
        return np.asarray(np.var(scores, axis=0))


def gain(metric: str, score: Score, baseline: Score) -> Score:
    """How much better a score is than a baseline, positive for better.

    >>> round(gain("loss", 0.2, 0.5), 10), round(gain("f1", 0.2, 0.5), 10)
    (0.3, -0.3)
    """
    return baseline - score if metric in LOWER_IS_BETTER else score - baseline


def incentive(
    metric: str,
    scores: Mapping[str, float],
    local: Mapping[str, float],
    federated: Mapping[str, float],
) -> float:
    """The percentage of sites strictly better off than both training alone and plain averaging (IPR).

    >>> incentive("f1", {"a": 0.9, "b": 0.5}, {"a": 0.8, "b": 0.5}, {"a": 0.7, "b": 0.4})
    50.0
    """
    own, alone, averaged = (np.array([table[site] for site in scores]) for table in (scores, local, federated))
    return float(incentive_rate(metric, own, alone, averaged))


def incentive_rate(metric: str, scores: Array, local: Array, federated: Array) -> Array:
    """The same for arrays whose first axis holds the sites."""
    with np.errstate(invalid="ignore"):
        better = (gain(metric, scores, local) > 0) & (gain(metric, scores, federated) > 0)
    return np.asarray(100.0 * np.mean(better, axis=0))


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
    """Runs of one task and seed, algorithm by algorithm.

    Averages weigh sites by their training examples, or each the same (`client_average="uniform"`).
    """
    if not results:
        raise ConfigError("there are no runs to compare")
    if client_average not in ("samples", "uniform"):
        raise ConfigError(one_of(client_average, ("samples", "uniform"), "client_average"))
    names = [result.algorithm for result in results]
    if len(set(names)) != len(names):
        raise ConfigError(f"each algorithm may occur once in a comparison, not {', '.join(names)}")
    _must_share(results)
    by_name = {result.algorithm: result for result in results}
    baselines = [name for name in (baseline_local, baseline_global) if name in by_name]
    return [_summary(result, [by_name[name] for name in baselines], client_average) for result in results]


def _must_share(results: Sequence[RunResult]) -> None:
    """Runs can be compared only on the same data, seed and evaluation."""
    for key in ("task", "seed", "data", "rounds", "participation", "eval_point", "selection"):
        values = [result.experiment.get(key) for result in results]
        if any(value != values[0] for value in values):
            raise ConfigError(f"these runs differ in {key!r}, so they cannot be compared: {values}")
    if any(result.num_examples != results[0].num_examples for result in results):
        raise ConfigError("these runs differ in their sites or the sites' sizes, so they cannot be compared")


def _summary(result: RunResult, baselines: Sequence[RunResult], client_average: str) -> AlgorithmSummary:
    sites = result.site_scores
    metrics = list(next(iter(sites.values())))
    share = {site: result.num_examples[site] if client_average == "samples" else 1 for site in sites}
    by_metric = {metric: {site: sites[site][metric] for site in sites} for metric in metrics}
    gains = {
        baseline.algorithm: {
            metric: {
                site: gain(metric, score, baseline.site_scores[site][metric])
                for site, score in by_metric[metric].items()
            }
            for metric in metrics
        }
        for baseline in baselines
        if baseline is not result
    }
    rates = None
    if len(gains) == 2:
        local, federated = (baseline.site_scores for baseline in baselines)
        rates = {
            metric: incentive(
                metric,
                by_metric[metric],
                {site: local[site][metric] for site in sites},
                {site: federated[site][metric] for site in sites},
            )
            for metric in metrics
        }
    return AlgorithmSummary(
        algorithm=result.algorithm,
        average={
            metric: sum(values[site] * share[site] for site in sites) / sum(share.values())
            for metric, values in by_metric.items()
        },
        sites=sites,
        fairness={metric: fairness(list(values.values())) for metric, values in by_metric.items()},
        incentive=rates,
        gains=gains,
        bytes_down=sum(int(row[3]) for row in result.traffic_rows),
        bytes_up=sum(int(row[4]) for row in result.traffic_rows),
        seconds=float(result.timing["wall_seconds"]),
    )


def as_json(result: RunResult, summary: AlgorithmSummary) -> dict[str, Any]:
    """One run as JSON: what was asked, what came out, where it is."""
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
    """The same with None in place of NaN, which JSON does not have.

    >>> without_nan({"loss": float("nan"), "f1": [0.5]})
    {'loss': None, 'f1': [0.5]}
    """
    if isinstance(tree, Mapping):
        return {key: without_nan(value) for key, value in tree.items()}
    if isinstance(tree, list | tuple):
        return [without_nan(value) for value in tree]
    return None if isinstance(tree, float) and not math.isfinite(tree) else tree
