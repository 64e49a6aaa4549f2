"""Metrics of predictions, computed once over a whole split. A diverged model scores NaN."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Literal

import torch
from torch import Tensor

Metric = Callable[[Tensor, Tensor], float]
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
    return _accuracies(predicted.unsqueeze(0), targets.unsqueeze(0))[0]


def macro_f1(predicted: Tensor, targets: Tensor, labels: Literal["present"] | int = "present") -> float:
    """The mean over classes of 2PR / (P + R), where 0/0 counts as 0.

    The classes are those present in predictions or targets, as in scikit-learn's default. Give `labels` a number of
    classes to count absent ones as 0.

    >>> macro_f1(torch.tensor([0, 0, 1]), torch.tensor([0, 1, 1]))
    0.6666666666666666
    >>> macro_f1(torch.tensor([0, 0, 1]), torch.tensor([0, 1, 1]), labels=4)
    0.3333333333333333
    """
    return _macro_f1s(predicted.unsqueeze(0), targets.unsqueeze(0), labels)[0]


def of_many(metric: Metric, predicted: Tensor, targets: Tensor) -> list[float]:
    """A metric for several models' predictions (one row per model) of the same targets, or of one row of targets each.

    A model with a DIVERGED prediction scores NaN, and the metric is not called with its predictions.

    >>> of_many(accuracy, torch.tensor([[0, 1], [1, 1], [0, DIVERGED]]), torch.tensor([0, 1]))
    [1.0, 0.5, nan]
    >>> of_many(accuracy, torch.tensor([[0, 1], [1, 1]]), torch.tensor([[0, 1], [1, 1]]))
    [1.0, 1.0]
    """
    sound = (predicted != DIVERGED).flatten(1).all(1).tolist()
    if not any(sound):
        return [math.nan] * len(predicted)
    own = targets.expand_as(predicted)
    converged, expected = (predicted, own) if all(sound) else (predicted[sound], own[sound])
    together = _TOGETHER.get(metric)
    scores = iter(together(converged, expected) if together else map(metric, converged, expected))
    return [next(scores) if is_sound else math.nan for is_sound in sound]


def _accuracies(predicted: Tensor, targets: Tensor) -> list[float]:
    return [hits / targets.shape[1] for hits in (predicted == targets).sum(1).tolist()]


def _macro_f1s(predicted: Tensor, targets: Tensor, labels: Literal["present"] | int = "present") -> list[float]:
    classes = int(torch.maximum(predicted.max(), targets.max())) + 1
    models = len(predicted)
    # One bincount for all models: model i's classes are numbered from i · classes.
    begin = torch.arange(models, device=predicted.device).unsqueeze(1) * classes
    numbered = predicted + begin
    counted = partial(torch.bincount, minlength=models * classes)
    hits = counted(numbered[predicted == targets]).view(models, classes)
    seen = (counted(numbered.flatten()) + counted((targets + begin).flatten())).view(models, classes)
    return f1_of_counts(hits, seen, (seen > 0).sum(1) if labels == "present" else torch.full((models,), labels))


def f1_of_counts(hits: Tensor, seen: Tensor, classes: Tensor) -> list[float]:
    """The sum of F1 over classes, divided by `classes`, for each model.

    `hits`: right predictions by model and class; `seen`: how often a class was predicted plus how often it was true.
    Classes that were never seen add nothing, whatever `classes` counts.

    >>> f1_of_counts(torch.tensor([[1, 1]]), torch.tensor([[3, 3]]), torch.tensor([2]))
    [0.6666666666666666]
    """
    # 2PR/(P+R) = 2·hits / (predicted + true), so no division is 0/0 for a class that is present; an absent one has
    # no hits and contributes 0.
    scores = 2 * hits.double() / seen.clamp_min(1)
    # The order in which torch adds numbers depends on how many there are. Without the absent classes at the end, a
    # model's bits depend neither on the other models nor on how many classes there could have been.
    widths = ((seen > 0) * torch.arange(1, seen.shape[1] + 1, device=seen.device)).amax(1)
    sums = scores.new_zeros(len(scores))
    for width in set(widths.tolist()):
        sums[widths == width] = scores[widths == width, :width].sum(1)
    means: list[float] = (sums / classes.to(sums.device)).tolist()
    return means


_TOGETHER: dict[Metric, Callable[[Tensor, Tensor], list[float]]] = {accuracy: _accuracies, macro_f1: _macro_f1s}
