"""The baseline: the scores of predicting the same for every test row of a site, as its training data suggest.

For classes, this is the most frequent one, with the class frequencies as probabilities; for numbers, their mean.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from pydantic import ValidationError
from torch import Tensor

from playerfl.data.examples import SiteData, TensorExamples
from playerfl.data.sites import PartRecord, SiteRecord
from playerfl.errors import ConfigError
from playerfl.learning.confusion import F1Labels
from playerfl.learning.metrics import Metric, predictions
from playerfl.learning.metrics.numbers import TargetScale
from playerfl.learning.metrics.scoring import scores_of
from playerfl.learning.training import Learner
from playerfl.runs.result import RunResult
from playerfl.tasks import TASKS

Counts = Mapping[int, int]
"""Examples by class."""
Loss = Callable[[Any, Tensor], Tensor]
# More than any bundled task has; larger numbers come from a damaged file.
_MOST_OUTPUTS = 100_000
_MOST_DIGITS = 18


def baseline_scores(result: RunResult, f1_labels: F1Labels = "true_or_predicted") -> dict[str, dict[str, float]] | None:
    """Test scores by site and metric, from what a run records about its data; None if it records too little.

    Accuracy, macro-F1 and the loss of a bundled task follow from class counts. All others were computed before the run.
    The loss is that of predicting the class frequencies of the training data. It is left out where it is infinite,
    because a site is tested on a class of which it has no training examples.
    """
    counted = _from_counts(result, f1_labels)
    scores = {
        site: {**record.get("baseline", {}), **counted.get(site, {})} for site, record in result.data["sites"].items()
    }
    return scores if all(scores.values()) else None


def site_baseline(record: SiteRecord) -> dict[str, float]:
    """The same for one site, from what was recorded about its data."""
    train, test = _counts(record["train"]), _counts(record.get("test"))
    return {**record.get("baseline", {}), **(hit_scores(train, test) if train and test else {})}


def _from_counts(result: RunResult, f1_labels: F1Labels) -> dict[str, dict[str, float]]:
    counts = {}
    for site, record in result.data["sites"].items():
        train, test = _counts(record["train"]), _counts(record.get("test"))
        if not train or not test:
            return {}
        counts[site] = (train, test)
    labels = [label for pair in counts.values() for of in pair for label in of]
    loss, outputs = _loss_of(result), _outputs(result, labels)
    scores = {}
    for site, (train, test) in counts.items():
        scores[site] = hit_scores(train, test, f1_labels, result.confusions.classes)
        value = frequency_loss(train, test, loss, outputs) if loss and outputs <= _MOST_OUTPUTS else math.inf
        if math.isfinite(value):
            scores[site]["loss"] = value
    return scores


def add_baseline(record: SiteRecord, site: SiteData, learner: Learner, outputs: int, *, with_loss: bool) -> None:
    """Adds to a site's record what a report cannot compute from class counts: the baseline's scores, and which metrics
    have no value for its test rows.

    `outputs`: the model's number of classes; `with_loss`: whether the report will not know the task's loss.
    """
    train, test = site.train, site.test
    if not isinstance(train, TensorExamples) or not isinstance(test, TensorExamples) or not len(train) or not len(test):
        return
    targets = test.targets.cpu()
    undefined = {name: why for name, metric in learner.metrics.items() if (why := metric.undefined(targets))}
    if undefined:
        record["test"]["undefined"] = undefined
    others = {name: metric for name, metric in learner.metrics.items() if name not in ("f1", "accuracy")}
    constant = _constant(train.targets.cpu(), outputs) if others or with_loss else None
    if constant is None:
        return
    outputs_by_row = constant.expand(len(targets), -1)
    values = {name: _score_of(name, metric, outputs_by_row, targets, learner.scale) for name, metric in others.items()}
    if with_loss:
        values["loss"] = _mean_loss(learner.loss, outputs_by_row, targets)
    if known := {name: value for name, value in values.items() if math.isfinite(value)}:
        record["baseline"] = known


def _constant(targets: Tensor, outputs: int) -> Tensor | None:
    """The prediction for every row, like a model's output; None if targets are neither classes nor numbers."""
    if outputs:
        return torch.bincount(targets, minlength=outputs).double().div(len(targets)).log()
    return targets.double().mean().view(1) if targets.is_floating_point() and targets.dim() == 1 else None


def _score_of(name: str, metric: Metric, outputs: Tensor, targets: Tensor, scale: TargetScale) -> float:
    predicted = predictions(outputs).unsqueeze(0) if metric.task == "classification" else None
    try:
        return scores_of({name: metric}, predicted, outputs.unsqueeze(0), targets.unsqueeze(0), scale)[name][0]
    except ConfigError:
        # A user's metric may fail where all predictions are the same; then it has no baseline.
        return math.nan


def _mean_loss(loss: Loss, outputs: Tensor, targets: Tensor) -> float:
    try:
        return float(loss(outputs, targets).double().mean())
    except Exception:  # a user's loss may want more than logits
        return math.nan


def hit_scores(
    train: Counts, test: Counts, f1_labels: F1Labels = "true_or_predicted", classes: int = 0
) -> dict[str, float]:
    """Accuracy and macro-F1 of always predicting the most frequent class (the smallest one, if several are tied).

    Macro-F1 averages over the same classes as for a method (`classes`: how many there are in all); all but the
    predicted class have an F1 of 0.

    >>> hit_scores({0: 5, 1: 4}, {0: 3, 1: 1})
    {'accuracy': 0.75, 'f1': 0.42857142857142855}
    >>> hit_scores({0: 5, 1: 4}, {0: 3, 1: 1}, "all", classes=4)["f1"]
    0.21428571428571427
    """
    predicted = min(train, key=lambda label: (-train[label], label))
    examples, hits = sum(test.values()), test.get(predicted, 0)
    counted = {"true_or_predicted": len({*test, predicted}), "true": len(test), "all": classes}[f1_labels]
    return {"accuracy": hits / examples, "f1": 2 * hits / (examples + hits) / counted}


def frequency_loss(train: Counts, test: Counts, loss: Loss, outputs: int) -> float:
    """The mean test loss if the predicted probabilities are the class frequencies of the training data.

    >>> from playerfl.learning.losses import cross_entropy
    >>> round(frequency_loss({0: 3, 1: 1}, {0: 1, 1: 1}, cross_entropy, 2), 6) == round(math.log(16 / 3) / 2, 6)
    True
    """
    frequencies = torch.zeros(outputs, dtype=torch.float64)
    for label, count in train.items():
        frequencies[label] = count / sum(train.values())
    shares = torch.tensor([count / sum(test.values()) for count in test.values()], dtype=torch.float64)
    try:
        losses = loss(frequencies.log().expand(len(test), -1), torch.tensor(list(test)))
    except (IndexError, RuntimeError):
        # The recorded classes are not those of this task.
        return math.inf
    return float(losses.double() @ shares)


def _counts(part: PartRecord | None) -> Counts:
    """The examples of each class; empty if they are not recorded, or if the targets are not class numbers."""
    classes: dict[str, int] = part.get("classes", {}) if part else {}
    if not all(label.isdecimal() and len(label) < _MOST_DIGITS and count >= 0 for label, count in classes.items()):
        return {}
    return {int(label): count for label, count in classes.items() if count}


def _loss_of(result: RunResult) -> Loss | None:
    """The loss of a bundled task. Others are not looked up: reading a result must not run a user's code."""
    task = TASKS.get(str(result.experiment["task"]))
    if task is None:
        return None
    try:
        return task.for_options(task.options.model_validate(result.experiment["data"])).loss
    except (KeyError, ValidationError):
        return None


def _outputs(result: RunResult, labels: list[int]) -> int:
    """How many classes the model has: the size of its last entry, or more if a label is larger."""
    sizes = [shape[0] for shape in result.data["model"].values() if shape]
    return max([1 + max(labels), *sizes[-1:]])
