"""The metrics that come with the package, by name, and how a list of names becomes metrics."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial

import torch
from torch import Tensor

from playerfl.errors import ConfigError, one_of
from playerfl.learning.metrics import classes, numbers, probabilities
from playerfl.learning.metrics.metric import Direction, Function, Metric, Needs, Unit, always_defined

Weighted = Callable[[Tensor, Tensor, Tensor], Tensor]
AnyMetric = Metric | Function
"""A plain function is a metric of predicted classes; higher is better."""
SENSITIVITY = "sensitivity_at_specificity"
_ONE_VS_REST = "with more than two classes, each class against the rest, and the mean over the classes of a site"


def _metric(
    weighted: Weighted,
    direction: Direction,
    needs: Needs,
    unit: Unit,
    title: str,
    averaging: str = "",
    undefined: Callable[[Tensor], str | None] = always_defined,
) -> Metric:
    """A metric that is defined by its weighted form: a single set of rows has equal weights."""

    def function(predicted: Tensor, targets: Tensor) -> float:
        return float(weighted(predicted, targets, torch.ones(1, len(targets), dtype=torch.float64)))

    return Metric(function, direction, needs, averaging, unit, title, undefined, weighted=weighted)


F1 = Metric(
    classes.macro_f1,
    averaging="the mean over the classes that are true or predicted at a site",
    unit="share",
    title="Macro-F1",
    together=classes.macro_f1s,
    weighted=classes.weighted_macro_f1,
    of_confusions=classes.macro_f1s_of_confusions,
)
ACCURACY = Metric(
    classes.accuracy,
    unit="share",
    title="Accuracy",
    together=classes.accuracies,
    weighted=classes.weighted_accuracy,
    of_confusions=classes.accuracies_of_confusions,
)
DEFAULT: dict[str, Metric] = {"f1": F1, "accuracy": ACCURACY}
"""The default for classes."""
BALANCED_ACCURACY = _metric(
    classes.weighted_balanced_accuracy,
    "higher",
    "classes",
    "share",
    "Balanced accuracy",
    "the mean over the classes that are true at a site",
)
FOR_NUMBERS: dict[str, Metric] = {
    "mae": _metric(numbers.mae, "lower", "numbers", "target", "Mean absolute error"),
    "rmse": _metric(numbers.rmse, "lower", "numbers", "target", "Root mean squared error"),
    "r2": _metric(numbers.r2, "higher", "numbers", "", "R²", "", numbers.constant_target),
}
"""The default for numbers."""
NAMES = (*DEFAULT, "balanced_accuracy", "auroc", "auprc", SENSITIVITY, "brier", "ece", *FOR_NUMBERS)
_WITH_SPECIFICITY = re.compile(rf"{SENSITIVITY}_(0?\.\d+)")


def find_metric(name: str, positive: int = 1) -> Metric | None:
    """The metric of this name, None if there is none; `positive`: the class that a metric of two classes is about.

    >>> find_metric("sensitivity_at_specificity_0.95").title
    'Sensitivity at 95 % specificity'
    >>> find_metric("brier").lower_is_better, find_metric("roc") is None
    (True, True)
    """
    known = {**DEFAULT, "balanced_accuracy": BALANCED_ACCURACY, **FOR_NUMBERS}
    return known.get(name) or _of_scores(name, positive)


def _of_scores(name: str, positive: int) -> Metric | None:
    specificity = _specificity(name)
    if specificity is not None:
        weighted = partial(probabilities.sensitivity, positive=positive, specificity=specificity)
        title = f"Sensitivity at {100 * specificity:g} % specificity"
        return _metric(weighted, "higher", "scores", "share", title, _ONE_VS_REST, probabilities.one_class_only)
    if name == "auroc":
        weighted = partial(probabilities.auroc, positive=positive)
        return _metric(weighted, "higher", "scores", "", "AUROC", _ONE_VS_REST, probabilities.one_class_only)
    if name == "auprc":
        weighted = partial(probabilities.auprc, positive=positive)
        return _metric(weighted, "higher", "scores", "", "AUPRC", _ONE_VS_REST, probabilities.one_class_only)
    if name == "brier":
        weighted = partial(probabilities.brier, positive=positive)
        return _metric(weighted, "lower", "scores", "", "Brier score", "with more than two classes, their sum")
    if name == "ece":
        weighted = partial(probabilities.calibration_error, positive=positive)
        averaging = "with more than two classes, of the predicted one"
        return _metric(weighted, "lower", "scores", "share", "Expected calibration error", averaging)
    return None


def _specificity(name: str) -> float | None:
    if name == SENSITIVITY:
        return 0.9
    given = _WITH_SPECIFICITY.fullmatch(name)
    return float(given[1]) if given and 0 < float(given[1]) < 1 else None


def declared(metrics: Mapping[str, AnyMetric]) -> dict[str, Metric]:
    """Metrics of a task with their declarations; a function of the catalogue has those of the catalogue.

    >>> declared({"accuracy": classes.accuracy, "mine": lambda predicted, targets: 0.5})["mine"].direction
    'higher'
    """
    known = {metric.function: metric for metric in DEFAULT.values()}
    return {
        name: given if isinstance(given, Metric) else known.get(given) or Metric(given)
        for name, given in metrics.items()
    }


def chosen_metrics(names: Sequence[str] | None, own: Mapping[str, AnyMetric], positive: int = 1) -> dict[str, Metric]:
    """The metrics to record: the task's own if `names` is None, otherwise those named, of the task or the catalogue.

    ConfigError if one does not exist, or is not for this kind of task.

    >>> list(chosen_metrics(None, DEFAULT)), list(chosen_metrics(["auroc", "f1"], DEFAULT))
    (['f1', 'accuracy'], ['auroc', 'f1'])
    """
    given = declared(own)
    if names is None:
        return given
    check_names(names, own)
    kind = "classification" if is_classification(own) else "regression"
    chosen = {}
    for name in names:
        metric = given.get(name) or find_metric(name, positive)
        assert metric is not None
        if metric.task != kind:
            fitting = [other for other in NAMES if (found := find_metric(other)) and found.task == kind]
            targets = "classes" if kind == "classification" else "not classes"
            raise ConfigError(
                f"metric {name!r} is for {metric.task}, but this task's targets are {targets}; use one of "
                f"{', '.join(dict.fromkeys([*given, *fitting]))}"
            )
        chosen[name] = metric
    return chosen


def check_names(names: Sequence[str], own: Mapping[str, AnyMetric]) -> None:
    """ConfigError if there is no metric of one of these names, or one is named twice."""
    for number, name in enumerate(names):
        if name == "loss":
            raise ConfigError("metrics: the loss is always recorded; leave it out of the list")
        if name not in own and find_metric(name) is None:
            raise ConfigError(f"metrics: {one_of(name, {*own, *NAMES}, 'metric')}, or {SENSITIVITY}_0.95")
        if name in names[:number]:
            raise ConfigError(f"metrics names {name!r} twice; name it once")


def is_classification(metrics: Mapping[str, AnyMetric]) -> bool:
    """Whether a task with these metrics has classes as targets; without metrics, nothing is known about them."""
    return any(metric.task == "classification" for metric in declared(metrics).values())
