"""Metrics of predicted classes, computed once over a whole split."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

DIVERGED = -1
"""The prediction for an example whose logits have no softmax."""


def predictions(logits: Tensor) -> Tensor:
    """The class of each example, or DIVERGED: the argmax of NaN would be class 0.

    Logits have no softmax where one is NaN or +inf, or all are -inf; a single -inf only rules out its class.

    >>> predictions(torch.tensor([[0.5, 2.0], [float("nan"), 2.0], [float("-inf"), 2.0]]))
    tensor([ 1, -1,  1])
    """
    return logits.argmax(-1).masked_fill(~logits.amax(-1).isfinite(), DIVERGED)


def accuracy(predicted: Tensor, targets: Tensor) -> float:
    """The share of correct predictions.

    >>> accuracy(torch.tensor([0, 1, 1, 2]), torch.tensor([0, 1, 2, 2]))
    0.75
    """
    return accuracies(predicted.unsqueeze(0), targets.unsqueeze(0))[0]


def macro_f1(predicted: Tensor, targets: Tensor, labels: Literal["present"] | int = "present") -> float:
    """The mean over classes of 2PR / (P + R), where 0/0 counts as 0.

    The classes are those present in predictions or targets, as in scikit-learn's default. Give `labels` a number of
    classes to count absent ones as 0.

    >>> macro_f1(torch.tensor([0, 0, 1]), torch.tensor([0, 1, 1]))
    0.6666666666666666
    >>> macro_f1(torch.tensor([0, 0, 1]), torch.tensor([0, 1, 1]), labels=4)
    0.3333333333333333
    """
    return macro_f1s(predicted.unsqueeze(0), targets.unsqueeze(0), labels)[0]


def accuracies(predicted: Tensor, targets: Tensor) -> list[float]:
    """`accuracy` of several models, one row of predictions and of targets each."""
    return [hits / targets.shape[1] for hits in (predicted == targets).sum(1).tolist()]


def macro_f1s(predicted: Tensor, targets: Tensor, labels: Literal["present"] | int = "present") -> list[float]:
    """`macro_f1` of several models, one row of predictions and of targets each."""
    # In numpy: a split is scored after every round, on so few rows that calling torch would take most of the time.
    guessed, true = predicted.cpu().numpy(), targets.cpu().numpy()
    models, classes = len(guessed), max(guessed.max(), true.max()) + 1
    # One count for all models: model i's classes are numbered from i · classes.
    begin = np.arange(models)[:, np.newaxis] * classes
    numbered = guessed + begin

    def counted(rows: NDArray[np.int64]) -> NDArray[np.int64]:
        return np.bincount(rows, minlength=models * classes).reshape(models, classes)

    hits = counted(numbered[guessed == true])
    seen = counted(numbered.ravel()) + counted((true + begin).ravel())
    return _f1_of_counts(hits, seen, (seen > 0).sum(1) if labels == "present" else labels)


def accuracies_of_confusions(matrices: NDArray[Any]) -> list[float]:
    """`accuracy` from confusion matrices, one value each.

    >>> accuracies_of_confusions(np.array([[[1, 0], [1, 2]]]))
    [0.75]
    """
    shares: list[float] = (matrices.trace(axis1=1, axis2=2) / matrices.sum((1, 2))).tolist()
    return shares


def macro_f1s_of_confusions(matrices: NDArray[Any]) -> list[float]:
    """`macro_f1` from confusion matrices, one value each, with the same bits.

    >>> macro_f1s_of_confusions(np.array([[[1, 0], [1, 1]]]))
    [0.6666666666666666]
    """
    hits, seen = matrices.diagonal(axis1=1, axis2=2), matrices.sum(1) + matrices.sum(2)
    return _f1_of_counts(hits, seen, (seen > 0).sum(1))


def f1_of_counts(hits: Tensor, seen: Tensor, classes: Tensor) -> list[float]:
    """The sum of F1 over classes, divided by `classes`, for each model.

    `hits`: correct predictions by model and class; `seen`: how often a class was predicted plus how often it was true.
    Classes that were never seen add nothing, whatever `classes` counts.

    >>> f1_of_counts(torch.tensor([[1, 1]]), torch.tensor([[3, 3]]), torch.tensor([2]))
    [0.6666666666666666]
    """
    return _f1_of_counts(hits.cpu().numpy(), seen.cpu().numpy(), classes.cpu().numpy())


def _f1_of_counts(hits: NDArray[Any], seen: NDArray[Any], classes: NDArray[np.int64] | int) -> list[float]:
    # 2PR/(P+R) = 2·hits / (predicted + true), so no division is 0/0 for a class that is present; an absent one has
    # no hits and contributes 0.
    scores = 2.0 * hits / np.maximum(seen, 1)
    # The order in which torch adds numbers depends on how many there are. Without the absent classes at the end, a
    # model's bits depend neither on the other models nor on how many classes there could have been.
    if (seen[:, -1] > 0).all():
        sums = torch.from_numpy(scores).sum(1).numpy()
    else:
        widths = ((seen > 0) * np.arange(1, seen.shape[1] + 1)).max(1)
        sums = np.zeros(len(scores))
        for width in set(widths.tolist()):
            of_width = widths == width
            sums[of_width] = torch.from_numpy(scores[of_width, :width]).sum(1).numpy()
    with np.errstate(invalid="ignore"):  # no class at all: NaN
        means: list[float] = (sums / classes).tolist()
    return means


def weighted_accuracy(predicted: Tensor, targets: Tensor, weights: Tensor) -> Tensor:
    """`accuracy` of weighted rows, one value per row of weights."""
    return weights @ (predicted == targets).double() / weights.sum(1)


def weighted_macro_f1(predicted: Tensor, targets: Tensor, weights: Tensor) -> Tensor:
    """`macro_f1` of weighted rows, one value per row of weights."""
    chosen, true = _one_hot(predicted, targets)
    hits, seen = weights @ (chosen * true), weights @ chosen + weights @ true
    return torch.tensor(f1_of_counts(hits, seen, (seen > 0).sum(1)), dtype=torch.float64)


def weighted_balanced_accuracy(predicted: Tensor, targets: Tensor, weights: Tensor) -> Tensor:
    """The mean over the classes that are true of the share of their rows that is predicted correctly.

    >>> weighted_balanced_accuracy(torch.tensor([0, 0, 1]), torch.tensor([0, 1, 1]), torch.ones(1, 3).double())
    tensor([0.7500], dtype=torch.float64)
    """
    chosen, true = _one_hot(predicted, targets)
    return (weights @ (chosen * true) / (weights @ true)).nanmean(1)


def _one_hot(predicted: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    classes = torch.arange(int(torch.maximum(predicted.max(), targets.max())) + 1)
    return (predicted.unsqueeze(1) == classes).double(), (targets.unsqueeze(1) == classes).double()
