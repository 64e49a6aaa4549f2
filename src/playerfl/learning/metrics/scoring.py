"""From the outputs of models on a split to their scores, alone or several models at once."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from playerfl.errors import ConfigError
from playerfl.learning.metrics.catalogue import AnyMetric, declared
from playerfl.learning.metrics.classes import DIVERGED
from playerfl.learning.metrics.metric import Metric
from playerfl.learning.metrics.numbers import TargetScale

UNSCALED = TargetScale()


def scores_of(
    metrics: Mapping[str, Metric],
    predicted: Tensor | None,
    outputs: Tensor | None,
    targets: Tensor,
    scale: TargetScale = UNSCALED,
) -> dict[str, list[float]]:
    """By metric, the score of each model; a diverged model scores NaN.

    `predicted`: classes, models × rows; `outputs`: models × rows × outputs, only if a metric needs more than classes.
    `targets`: one row per model.
    """
    scores = {}
    forms: dict[str, tuple[Tensor, Tensor]] = {}
    for name, metric in metrics.items():
        if metric.needs not in forms:
            forms[metric.needs] = _form(metric.needs, predicted, outputs, targets, scale)
        scores[name] = of_many(metric, *forms[metric.needs], name=name)
    return scores


def scores_of_confusions(metrics: Mapping[str, Metric], matrices: NDArray[Any]) -> dict[str, list[float]]:
    """By metric, the score of each confusion matrix, for those metrics that follow from one: faster than from rows.

    >>> from playerfl.learning.metrics.catalogue import ACCURACY
    >>> scores_of_confusions({"accuracy": ACCURACY}, np.array([[[1, 0], [1, 2]], [[-1, -1], [-1, -1]]]))
    {'accuracy': [0.75, nan]}
    """
    sound = matrices[:, 0, 0] >= 0
    scores = {name: np.full(len(matrices), math.nan) for name, metric in metrics.items() if metric.of_confusions}
    if sound.any():
        converged = matrices if sound.all() else matrices[sound]
        for name, values in scores.items():
            of_confusions = metrics[name].of_confusions
            assert of_confusions is not None
            values[sound] = of_confusions(converged)
    return {name: values.tolist() for name, values in scores.items()}


def _form(
    needs: str, predicted: Tensor | None, outputs: Tensor | None, targets: Tensor, scale: TargetScale
) -> tuple[Tensor, Tensor]:
    """The arguments of a metric: predictions and targets."""
    if needs == "classes":
        assert predicted is not None
        return predicted, targets
    assert outputs is not None
    if needs == "scores":
        return probabilities_of(outputs), targets
    return scale.restored(numbers_of(outputs, targets)), scale.restored(targets)


def probabilities_of(logits: Tensor) -> Tensor:
    """The softmax over the last dimension, in float64; NaN for a row without one.

    >>> import torch
    >>> probabilities_of(torch.zeros(1, 2))
    tensor([[0.5000, 0.5000]], dtype=torch.float64)
    """
    return logits.double().softmax(-1)


def numbers_of(outputs: Tensor, targets: Tensor) -> Tensor:
    """One predicted number for each target: a last dimension of a single output is dropped."""
    numbers = outputs.squeeze(-1) if outputs.dim() == targets.dim() + 1 and outputs.shape[-1] == 1 else outputs
    if numbers.shape != targets.shape or targets.dim() > 2:
        raise ConfigError(
            f"a metric of numbers needs one output and one target per row; the model gives {tuple(outputs.shape[1:])} "
            f"for targets of {tuple(targets.shape[1:])}"
        )
    return numbers


def of_many(metric: AnyMetric, predicted: Tensor, targets: Tensor, *, name: str = "") -> list[float]:
    """A metric for several models' predictions (one row per model) of the same targets, or of one row of targets each.

    A diverged model, with a DIVERGED class or a score that is not finite, scores NaN, and the metric is not called with
    its predictions.

    >>> import torch
    >>> from playerfl.learning.metrics.classes import accuracy
    >>> of_many(accuracy, torch.tensor([[0, 1], [1, 1], [0, DIVERGED]]), torch.tensor([0, 1]))
    [1.0, 0.5, nan]
    >>> of_many(accuracy, torch.tensor([[0, 1], [1, 1]]), torch.tensor([[0, 1], [1, 1]]))
    [1.0, 1.0]
    """
    known = metric if isinstance(metric, Metric) else declared({name: metric})[name]
    good = predicted.isfinite() if predicted.is_floating_point() else predicted != DIVERGED
    sound: Sequence[bool] = good.flatten(1).all(1).tolist()
    if not any(sound):
        return [math.nan] * len(predicted)
    own = targets.expand(len(predicted), targets.shape[-1])
    converged, expected = (predicted, own) if all(sound) else (predicted[sound], own[sound])
    if known.together is not None:
        scores = iter(known.together(converged, expected))
    else:
        scores = iter([known.measured(name, *pair) for pair in zip(converged, expected, strict=True)])
    return [next(scores) if is_sound else math.nan for is_sound in sound]
