"""The majority class: what a site scores that always predicts the most frequent class of its training data."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from pydantic import ValidationError
from torch import Tensor

from playerfl.runs.result import RunResult
from playerfl.tasks import TASKS

Counts = Mapping[str, int]
"""Examples by class."""


def majority_scores(result: RunResult) -> dict[str, dict[str, float]] | None:
    """Test scores by site and metric, from the class counts that a run records; None where it records none.

    The loss is that of predicting the class frequencies of the training data. It is left out where the task's loss is
    not known here, because the task is not one of the bundled ones, and where it is infinite, because a site is tested
    on a class that it has no training example of.
    """
    counts = {}
    for site, record in result.data["sites"].items():
        tested = record.get("test")
        train, test = record["train"].get("classes"), tested.get("classes") if tested else None
        if not train or not test:
            return None
        counts[site] = (train, test)
    loss, outputs = _loss_of(result), _outputs(result)
    scores = {site: hit_scores(train, test) for site, (train, test) in counts.items()}
    if loss is not None:
        for site, (train, test) in counts.items():
            value = frequency_loss(train, test, loss, outputs)
            scores[site] |= {"loss": value} if math.isfinite(value) else {}
    return scores


def hit_scores(train: Counts, test: Counts) -> dict[str, float]:
    """Accuracy and macro-F1 of the most frequent class (the smallest of several) as every prediction.

    Macro-F1 averages over the classes in the test data and the predicted one, as for a method; all but the predicted
    one have 0.

    >>> hit_scores({"0": 5, "1": 4}, {"0": 3, "1": 1})
    {'accuracy': 0.75, 'f1': 0.42857142857142855}
    """
    predicted = min(train, key=lambda label: (-train[label], float(label)))
    examples, hits = sum(test.values()), test.get(predicted, 0)
    return {
        "accuracy": hits / examples,
        "f1": 2 * hits / (examples + hits) / len({*test, predicted}),
    }


def frequency_loss(train: Counts, test: Counts, loss: Callable[[Any, Tensor], Tensor], outputs: int) -> float:
    """The mean test loss if the predicted probabilities are the class frequencies of the training data.

    >>> from playerfl.learning.losses import cross_entropy
    >>> round(frequency_loss({"0": 3, "1": 1}, {"0": 1, "1": 1}, cross_entropy, 2), 6) == round(math.log(16 / 3) / 2, 6)
    True
    """
    frequencies = torch.zeros(outputs, dtype=torch.float64)
    for label, count in train.items():
        frequencies[int(label)] = count / sum(train.values())
    labels = torch.tensor([int(label) for label in test])
    shares = torch.tensor([count / sum(test.values()) for count in test.values()], dtype=torch.float64)
    return float(loss(frequencies.log().expand(len(labels), -1), labels) @ shares)


def _loss_of(result: RunResult) -> Callable[[Any, Tensor], Tensor] | None:
    """The loss of a bundled task. Others are not looked up: reading a result must not run a user's code."""
    task = TASKS.get(str(result.experiment["task"]))
    if task is None:
        return None
    try:
        return task.for_options(task.options.model_validate(result.experiment["data"])).loss
    except (KeyError, ValidationError):
        return None


def _outputs(result: RunResult) -> int:
    """How many classes the model knows: the size of its last entry, or more where labels say so."""
    labels = [int(float(label)) for site in result.data["sites"].values() for label in _labels(site)]
    sizes = [shape[0] for shape in result.data["model"].values() if shape]
    return max(1 + max(labels, default=0), *sizes[-1:])


def _labels(site: Mapping[str, Any]) -> list[str]:
    return [label for part in site.values() for label in part.get("classes", {})]
