"""Algorithms side by side: averages, fairness, gains and losses of sites, and cost."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal, TypeVar

import numpy as np
from numpy.typing import NDArray

from playerfl.errors import ConfigError, one_of
from playerfl.runs.measures.baseline import baseline_scores
from playerfl.runs.measures.declared import Declared, declarations
from playerfl.runs.result import RunResult

Array = NDArray[np.float64]
Score = TypeVar("Score", float, Array)
ClientAverage = Literal["samples", "uniform"]


def fairness(scores: Array) -> Array:
    """The population variance over sites (the first axis): 0 is perfectly even; NaN where a score is not finite.

    >>> float(fairness(np.array([0.0, 1.0])))
    0.25
    """
    with np.errstate(invalid="ignore"):
        return np.asarray(np.var(scores, axis=0))


def gain(score: Score, baseline: Score, *, lower_is_better: bool) -> Score:
    """How much better a score is than a baseline, positive for better.

    >>> round(gain(0.2, 0.5, lower_is_better=True), 10), round(gain(0.2, 0.5, lower_is_better=False), 10)
    (0.3, -0.3)
    """
    return baseline - score if lower_is_better else score - baseline


def incentive(scores: Array, local: Array, federated: Array, *, lower_is_better: bool) -> Array:
    """The percentage of sites (the first axis) strictly better off than training alone and plain averaging (IPR).

    >>> scores, local, federated = np.array([0.9, 0.5]), np.array([0.8, 0.5]), np.array([0.7, 0.4])
    >>> float(incentive(scores, local, federated, lower_is_better=False))
    50.0
    """
    with np.errstate(invalid="ignore"):
        better = gain(scores, local, lower_is_better=lower_is_better) > 0
        better &= gain(scores, federated, lower_is_better=lower_is_better) > 0
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
    metrics: dict[str, Declared]
    """The declarations of each metric, the first one to show first."""
    undefined: dict[str, dict[str, str]]
    """Metric, then site: why it has no value there. Averages, fairness and incentive leave these sites out."""
    test_rows: dict[str, int]
    """By site, where that is known."""
    baseline: dict[str, dict[str, float]]
    """Site, then metric: the score of predicting the same for every test row, where that is known."""
    bytes_down: int
    bytes_up: int
    seconds: float
    bytes_up_per_round: float
    """From one site, averaged over sites and rounds."""
    full_fine_tuning_bytes: int | None = None
    """What a site would send per round if nothing were frozen; None if nothing is."""


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
    sites, metrics = result.site_scores, declared_metrics([result])
    undefined = {metric: result.undefined(metric) for metric in metrics}
    others = [run for run in baselines if run is not result]
    average, evenness, incentives = {}, {}, {}
    gains: dict[str, dict[str, dict[str, float]]] = {run.algorithm: {} for run in others}
    for metric, declared in metrics.items():
        measured = [site for site in sites if site not in undefined[metric]]
        lower = declared.lower_is_better
        scores = _by_site(sites, metric, measured)
        weights = [result.num_examples[site] if client_average == "samples" else 1 for site in measured]
        weighted = sum(score * weight for score, weight in zip(scores.tolist(), weights, strict=True))
        average[metric] = weighted / sum(weights) if measured else math.nan
        evenness[metric] = float(fairness(scores)) if measured else math.nan
        for run in others:
            reference = _by_site(run.site_scores, metric, measured)
            differences = gain(scores, reference, lower_is_better=lower).tolist()
            gains[run.algorithm][metric] = dict(zip(measured, differences, strict=True))
        if len(others) == 2 and measured:
            rivals = [
                _by_site(global_scores(run) if run.algorithm == baseline_global else run.site_scores, metric, measured)
                for run in others
            ]
            incentives[metric] = float(incentive(scores, rivals[0], rivals[1], lower_is_better=lower))
    return AlgorithmSummary(
        algorithm=result.algorithm,
        average=average,
        sites=sites,
        fairness=evenness,
        incentive=incentives if len(others) == 2 else None,
        gains=gains,
        metrics=metrics,
        undefined={metric: of_metric for metric, of_metric in undefined.items() if of_metric},
        test_rows=result.test_rows,
        baseline=baseline_scores(result) or {},
        bytes_down=sum(int(row[3]) for row in result.traffic_rows),
        bytes_up=sum(int(row[4]) for row in result.traffic_rows),
        seconds=float(result.timing["wall_seconds"]),
        bytes_up_per_round=result.bytes_up_per_round,
        full_fine_tuning_bytes=result.full_fine_tuning_bytes,
    )


def baseline_average(result: RunResult) -> dict[str, float]:
    """The average over sites, weighted by examples, if each predicts the same for all rows: see `baseline_scores`."""
    scores, shares = baseline_scores(result) or {}, result.num_examples
    metrics = dict.fromkeys(metric for of_site in scores.values() for metric in of_site)
    averages = {}
    for metric in metrics:
        sites = [site for site in scores if site not in result.undefined(metric)]
        if sites and all(metric in scores[site] for site in sites):
            total = sum(scores[site][metric] * shares[site] for site in sites)
            averages[metric] = total / sum(shares[site] for site in sites)
    return averages


def _by_site(scores: Mapping[str, Mapping[str, float]], metric: str, sites: Sequence[str]) -> Array:
    return np.array([scores[site].get(metric, math.nan) for site in sites])


def declared_metrics(results: Sequence[RunResult]) -> dict[str, Declared]:
    """The metrics of these runs with their declarations, in the order in which they are shown; the loss comes last.

    That is the order in which runs declare them; F1 and accuracy come first in runs that did not.
    """
    recorded = dict.fromkeys(metric for result in results for metric in metrics_of(result))
    given = [name for result in results for name in result.data.get("metrics", {})]
    order = {name: place for place, name in enumerate(dict.fromkeys([*given, "f1", "accuracy"]))}
    names = sorted(recorded, key=lambda name: (name == "loss", order.get(name, len(order)), name))
    return declarations((result.data for result in results), names)


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
        **({"unseen": result.unseen_scores} if result.unseen_scores else {}),
        "chosen_rounds": result.chosen_rounds,
        "fairness": summary.fairness,
        "incentive": summary.incentive,
        "gains": summary.gains,
        "bytes_down": summary.bytes_down,
        "bytes_up": summary.bytes_up,
        "bytes_up_per_site_and_round": summary.bytes_up_per_round,
        "full_fine_tuning_bytes": summary.full_fine_tuning_bytes,
        "wall_seconds": summary.seconds,
        "cut": result.layers.get("decision"),
        "metrics": {name: asdict(declared) for name, declared in summary.metrics.items()},
        "undefined": summary.undefined,
        "test_rows": summary.test_rows,
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
