"""Metrics of predicted probabilities. Each is computed with row weights, so that it can be resampled.

With two classes they are about the positive class; with more, each class is compared with all others and the metric is
the mean over the classes that the rows have (one-vs-rest, macro), except where a function says otherwise.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

BINS = 10
"""Equally wide bins of probability, for calibration."""


def auroc(scores: Tensor, targets: Tensor, weights: Tensor, *, positive: int = 1) -> Tensor:
    """The area under the ROC curve: the chance that a positive row scores above a negative one, ties counting half.

    >>> scores = torch.tensor([[0.9, 0.1], [0.6, 0.4], [0.65, 0.35], [0.2, 0.8]], dtype=torch.float64)
    >>> auroc(scores, torch.tensor([0, 0, 1, 1]), torch.ones(1, 4).double())
    tensor([0.7500], dtype=torch.float64)
    """

    def area(tied: _Tied) -> Tensor:
        below = tied.negatives.cumsum(1) - tied.negatives
        pairs = tied.positives.sum(1) * tied.negatives.sum(1)
        return (tied.positives * (below + tied.negatives / 2)).sum(1) / pairs

    return _one_vs_rest(area, scores, targets, weights, positive)


def auprc(scores: Tensor, targets: Tensor, weights: Tensor, *, positive: int = 1) -> Tensor:
    """Average precision: the precision at each positive row's score, averaged over the positive rows.

    >>> scores = torch.tensor([[0.9, 0.1], [0.6, 0.4], [0.65, 0.35], [0.2, 0.8]], dtype=torch.float64)
    >>> auprc(scores, torch.tensor([0, 0, 1, 1]), torch.ones(1, 4).double())
    tensor([0.8333], dtype=torch.float64)
    """

    def average(tied: _Tied) -> Tensor:
        hits, alarms = tied.above(tied.positives), tied.above(tied.positives + tied.negatives)
        precision = hits / alarms.clamp_min(torch.finfo(alarms.dtype).tiny)
        averages = (tied.positives * precision).sum(1) / tied.positives.sum(1)
        # Without negative rows every model is perfect.
        return torch.where(tied.negatives.sum(1) > 0, averages, torch.nan)

    return _one_vs_rest(average, scores, targets, weights, positive)


def sensitivity(
    scores: Tensor, targets: Tensor, weights: Tensor, *, positive: int = 1, specificity: float = 0.9
) -> Tensor:
    """The largest share of positive rows found by a threshold that clears this share of the negative rows.

    >>> scores = torch.tensor([[0.9, 0.1], [0.6, 0.4], [0.65, 0.35], [0.2, 0.8]], dtype=torch.float64)
    >>> sensitivity(scores, torch.tensor([0, 0, 1, 1]), torch.ones(1, 4).double(), specificity=0.9)
    tensor([0.5000], dtype=torch.float64)
    """

    def largest(tied: _Tied) -> Tensor:
        positives, negatives = tied.positives.sum(1, keepdim=True), tied.negatives.sum(1, keepdim=True)
        detected, alarms = tied.above(tied.positives) / positives, tied.above(tied.negatives) / negatives
        # The tolerance is for shares like 1 - 0.9, which are not exact.
        allowed = torch.where(alarms <= 1 - specificity + 1e-12, detected, 0.0).amax(1)
        return torch.where((positives * negatives).squeeze(1) > 0, allowed, torch.nan)

    return _one_vs_rest(largest, scores, targets, weights, positive)


def brier(scores: Tensor, targets: Tensor, weights: Tensor, *, positive: int = 1) -> Tensor:
    """The mean squared error of the probability of the positive class; with more classes, summed over all of them.

    >>> brier(torch.tensor([[0.2, 0.8]], dtype=torch.float64), torch.tensor([1]), torch.ones(1, 1).double())
    tensor([0.0400], dtype=torch.float64)
    """
    if scores.shape[1] == 2:
        errors = (scores[:, positive] - (targets == positive).double()).square()
    else:
        errors = (scores - torch.nn.functional.one_hot(targets, scores.shape[1])).square().sum(1)
    return weights @ errors / weights.sum(1)


def calibration_error(scores: Tensor, targets: Tensor, weights: Tensor, *, positive: int = 1) -> Tensor:
    """The expected calibration error: over bins of probability, the mean gap between the prediction and what happened.

    With two classes, of the probability of the positive class; with more, of that of the predicted class.

    >>> scores = torch.tensor([[0.25, 0.75], [0.25, 0.75]], dtype=torch.float64)
    >>> calibration_error(scores, torch.tensor([0, 1]), torch.ones(1, 2).double())
    tensor([0.2500], dtype=torch.float64)
    """
    predicted, came_true, bins = _binned(scores, targets, positive)
    in_bin = (bins.unsqueeze(1) == torch.arange(BINS)).double()
    gaps = weights @ (in_bin * (predicted - came_true).unsqueeze(1))
    return gaps.abs().sum(1) / weights.sum(1)


@dataclass(frozen=True)
class ReliabilityBin:
    """The rows whose predicted probability is in one bin."""

    rows: int
    predicted: float
    """Their mean predicted probability."""
    came_true: float
    """The share of them in which the prediction came true."""


def reliability(scores: Tensor, targets: Tensor, *, positive: int = 1, bins: int = BINS) -> list[ReliabilityBin]:
    """The points of a reliability curve: one per bin that has rows, in the order of probability.

    >>> scores = torch.tensor([[0.25, 0.75], [0.25, 0.75], [0.96, 0.04]], dtype=torch.float64)
    >>> [(point.rows, point.predicted, point.came_true) for point in reliability(scores, torch.tensor([0, 1, 0]))]
    [(1, 0.04, 0.0), (2, 0.75, 0.5)]
    """
    predicted, came_true, places = _binned(scores, targets, positive, bins)
    return [
        ReliabilityBin(int(in_bin.sum()), float(predicted[in_bin].mean()), float(came_true[in_bin].mean()))
        for in_bin in (places == number for number in range(bins))
        if bool(in_bin.any())
    ]


def _binned(scores: Tensor, targets: Tensor, positive: int, bins: int = BINS) -> tuple[Tensor, Tensor, Tensor]:
    """The probability of what was predicted, whether it came true, and its bin, by row."""
    if scores.shape[1] == 2:
        predicted, came_true = scores[:, positive], targets == positive
    else:
        predicted, classes = scores.max(1)
        came_true = classes == targets
    return predicted, came_true.double(), (predicted * bins).ceil().long().sub(1).clamp(0, bins - 1)


@dataclass(frozen=True)
class _Tied:
    """The weights of positive and negative rows by distinct score, lowest first: resamples × scores."""

    positives: Tensor
    negatives: Tensor

    @staticmethod
    def above(weights: Tensor) -> Tensor:
        """The weight of each score and all higher ones."""
        return weights.flip(1).cumsum(1).flip(1)


def _one_vs_rest(
    measure: Callable[[_Tied], Tensor], scores: Tensor, targets: Tensor, weights: Tensor, positive: int
) -> Tensor:
    classes = [positive] if scores.shape[1] == 2 else torch.unique(targets).tolist()
    values = []
    for label in classes:
        distinct, places = torch.unique(scores[:, label], return_inverse=True)
        is_label = (targets == label).double()
        empty = weights.new_zeros(len(weights), len(distinct))
        by_score = _Tied(
            empty.index_add(1, places, weights * is_label), empty.index_add(1, places, weights * (1 - is_label))
        )
        values.append(measure(by_score))
    # A resample may lack a class that the rows have: its mean is over the others.
    return torch.stack(values).nanmean(0)


def one_class_only(targets: Tensor) -> str | None:
    """Why a metric that compares classes has no value; None if it has one.

    >>> one_class_only(torch.tensor([1, 1, 1]))
    'all 3 test rows are of class 1'
    """
    classes = torch.unique(targets)
    if len(classes) > 1:
        return None
    return f"all {len(targets)} test rows are of class {int(classes[0])}" if len(targets) else "there are no test rows"
