"""Scores in resamples of a site's test rows: how much a score would differ with other patients.

Rows are drawn with replacement, or groups of rows where rows belong together (visits of one patient). All models of a
site share the draws, so differences between them are paired.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from playerfl.learning.metrics import predictions
from playerfl.learning.metrics.catalogue import find_metric
from playerfl.learning.metrics.probabilities import ReliabilityBin as ReliabilityBin
from playerfl.learning.metrics.probabilities import reliability
from playerfl.learning.metrics.scoring import probabilities_of
from playerfl.runs.measures.outcomes import SiteOutcomes
from playerfl.seeding import seed_for

Array = NDArray[np.float64]
RESAMPLES = 1000
# With fewer, ten bins would have too few rows each.
_FEW_ROWS = 200
# Resampled rows are unevenly spread over the bins of probability, which this metric counts as miscalibration: most of
# its resamples lie above its value.
_BIASED = frozenset({"ece"})
# Weights that are held at once: 40 MB of float64.
_AT_ONCE = 5_000_000


def resampled_scores(outcomes: SiteOutcomes, metric: str, site: str, *, positive: int = 1) -> Array | None:
    """A metric of the catalogue, or the loss, in every resample of a site's rows: NaN where it has no value.

    None if the metric is not in the catalogue or its resamples would be biased, or if the model diverged.

    >>> rows = SiteOutcomes(torch.tensor([[0.0, 2.0]] * 8), torch.tensor([1] * 6 + [0] * 2))
    >>> scores = resampled_scores(rows, "accuracy", "north")
    >>> scores.shape, bool(0.5 < scores.mean() < 1)
    ((1000,), True)
    """
    weighted = None if metric in _BIASED else _weighted(outcomes, metric, positive)
    if weighted is None:
        return None
    members, count = _members(outcomes)
    step = max(1, _AT_ONCE // len(outcomes.targets))
    scores = []
    for begin in range(0, RESAMPLES, step):
        drawn = _draws(site, count)[begin : begin + step]
        weights = drawn if members is None else drawn[:, members]
        scores.append(weighted(weights.double()))
    return torch.cat(scores).numpy()


def row_score(outcomes: SiteOutcomes, metric: str, *, positive: int = 1) -> float:
    """A metric of the catalogue over a site's rows; NaN if it cannot be computed."""
    weighted = _weighted(outcomes, metric, positive)
    ones = torch.ones(1, len(outcomes.targets), dtype=torch.float64)
    return float("nan") if weighted is None else float(weighted(ones))


def _weighted(outcomes: SiteOutcomes, metric: str, positive: int) -> Callable[[Tensor], Tensor] | None:
    """From weights of the rows (resamples × rows) to the metric; None if it cannot be computed."""
    losses = outcomes.losses
    if metric == "loss":
        return None if losses is None else lambda weights: weights @ losses.double() / weights.sum(1)
    known = find_metric(metric, positive)
    if known is None or known.weighted is None or (known.task == "classification") != outcomes.of_classes:
        return None
    predicted, measure = _predicted(outcomes, known.needs), known.weighted
    return None if predicted is None else lambda weights: measure(predicted, outcomes.targets, weights)


def _predicted(outcomes: SiteOutcomes, needs: str) -> Tensor | None:
    """The predictions that a metric is given; None if the model diverged."""
    if not bool(outcomes.outputs.isfinite().all()):
        return None
    if needs == "classes":
        return predictions(outcomes.outputs)
    return probabilities_of(outcomes.outputs) if needs == "scores" else outcomes.outputs


def _members(outcomes: SiteOutcomes) -> tuple[Tensor | None, int]:
    """The group of each row (None: each row is its own), and how many groups there are."""
    if outcomes.groups is None:
        return None, len(outcomes.targets)
    groups, members = torch.unique(outcomes.groups, return_inverse=True)
    return members, len(groups)


@lru_cache(maxsize=64)
def _draws(site: str, count: int) -> Tensor:
    """How often each of `count` rows or groups is drawn in each resample: the same for every model of a site."""
    random = np.random.default_rng(seed_for("test rows", site, count))
    return torch.from_numpy(random.multinomial(count, np.full(count, 1 / count), size=RESAMPLES).astype(np.int32))


def row_interval(scores: Array) -> tuple[float, float]:
    """The middle 95 % of the resamples that have a value; NaN if more than one in ten has none.

    >>> row_interval(np.linspace(0, 1, 41))
    (0.025, 0.975)
    """
    known = scores[~np.isnan(scores)]
    if len(known) < 0.9 * len(scores) or not np.isfinite(known).all():
        return float("nan"), float("nan")
    low, high = np.percentile(known, (2.5, 97.5))
    return round(float(low), 12), round(float(high), 12)


def reliability_of(outcomes: SiteOutcomes, *, positive: int = 1) -> list[ReliabilityBin]:
    """The reliability curve of a model at a site, with wider bins if rows are few; empty if it predicts no classes, or
    diverged."""
    scores = _predicted(outcomes, "scores") if outcomes.of_classes else None
    bins = 5 if len(outcomes.targets) < _FEW_ROWS else 10
    return [] if scores is None else reliability(scores, outcomes.targets, positive=positive, bins=bins)
