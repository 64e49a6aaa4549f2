"""Metrics of probabilities and numbers: by their definitions, against torchmetrics, with weights; and their names."""

from __future__ import annotations

import math
from itertools import product

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from playerfl.errors import ConfigError
from playerfl.learning.metrics import accuracy, macro_f1
from playerfl.learning.metrics.catalogue import DEFAULT, FOR_NUMBERS, NAMES, chosen_metrics, declared, find_metric
from playerfl.learning.metrics.metric import Metric, metric
from playerfl.learning.metrics.probabilities import reliability

# Few distinct probabilities, so that ties are common.
tenths = st.integers(0, 10).map(lambda number: number / 10)


@st.composite
def binary(draw: st.DrawFn) -> tuple[Tensor, Tensor]:
    rows = draw(st.lists(st.tuples(tenths, st.integers(0, 1)), min_size=2, max_size=12))
    said = torch.tensor([p for p, _ in rows], dtype=torch.float64)
    return torch.stack([1 - said, said], 1), torch.tensor([y for _, y in rows])


def score(name: str, scores: Tensor, targets: Tensor, positive: int = 1) -> float:
    found = find_metric(name, positive)
    assert found is not None
    return found(scores, targets)


def by_pairs(said: list[float], true: list[int]) -> float:
    pairs = [(a, b) for (a, y), (b, z) in product(zip(said, true, strict=True), repeat=2) if y == 1 and z == 0]
    return sum((a > b) + (a == b) / 2 for a, b in pairs) / len(pairs) if pairs else math.nan


def average_precision(said: list[float], true: list[int]) -> float:
    total = 0.0
    for threshold in sorted(set(said)):
        alarms = [y for p, y in zip(said, true, strict=True) if p >= threshold]
        found = [y for p, y in zip(said, true, strict=True) if p == threshold]
        total += sum(found) * sum(alarms) / len(alarms)
    return total / sum(true) if sum(true) else math.nan


def best_sensitivity(said: list[float], true: list[int], specificity: float) -> float:
    if sum(true) in (0, len(true)):
        return math.nan
    found = [0.0]
    for threshold in set(said):
        cleared = [p < threshold for p, y in zip(said, true, strict=True) if y == 0]
        if sum(cleared) / len(cleared) >= specificity - 1e-9:
            caught = [p >= threshold for p, y in zip(said, true, strict=True) if y == 1]
            found.append(sum(caught) / len(caught))
    return max(found)


@given(binary(), st.sampled_from([0.5, 0.8, 0.9]))
def test_metrics_of_two_classes_are_what_their_definitions_say(rows: tuple[Tensor, Tensor], specificity: float) -> None:
    scores, targets = rows
    said, true = scores[:, 1].tolist(), targets.tolist()
    one_class = len(set(true)) == 1
    assert score("auroc", *rows) == pytest.approx(by_pairs(said, true), nan_ok=True)
    precision = math.nan if one_class else average_precision(said, true)
    assert score("auprc", *rows) == pytest.approx(precision, nan_ok=True)
    name = f"sensitivity_at_specificity_{specificity}"
    assert score(name, *rows) == pytest.approx(best_sensitivity(said, true, specificity), nan_ok=True)
    squares = [(p - y) ** 2 for p, y in zip(said, true, strict=True)]
    assert score("brier", *rows) == pytest.approx(sum(squares) / len(squares))
    points = reliability(*rows)
    gaps = [point.rows * abs(point.predicted - point.came_true) for point in points]
    assert score("ece", *rows) == pytest.approx(sum(gaps) / len(true))
    assert sum(point.rows for point in points) == len(true)
    found = find_metric("auroc")
    assert found is not None
    assert (found.undefined(targets) is not None) == one_class


@given(binary())
def test_the_positive_class_can_be_the_first(rows: tuple[Tensor, Tensor]) -> None:
    scores, targets = rows
    for name in ("auroc", "auprc", "sensitivity_at_specificity", "brier", "ece"):
        turned = score(name, scores.flip(1), 1 - targets)
        assert score(name, scores, targets, positive=0) == pytest.approx(turned, nan_ok=True)


def many_classes(rows: int = 60, classes: int = 4, seed: int = 0) -> tuple[Tensor, Tensor]:
    random = torch.Generator().manual_seed(seed)
    logits = torch.randn(rows, classes, generator=random, dtype=torch.float64)
    targets = torch.randint(classes, (rows,), generator=random)
    return (logits + torch.nn.functional.one_hot(targets, classes)).softmax(1), targets


def test_with_more_classes_each_is_compared_with_the_rest() -> None:
    scores, targets = many_classes()
    parts = [by_pairs(scores[:, k].tolist(), (targets == k).int().tolist()) for k in range(4)]
    assert score("auroc", scores, targets) == pytest.approx(sum(parts) / 4)
    precisions = [average_precision(scores[:, k].tolist(), (targets == k).int().tolist()) for k in range(4)]
    assert score("auprc", scores, targets) == pytest.approx(sum(precisions) / 4)


def test_a_class_without_rows_is_left_out_of_the_mean_and_a_single_class_gives_nan_with_a_reason() -> None:
    scores, targets = many_classes()
    present = targets != 2
    some, of_some = scores[present], targets[present]
    parts = [by_pairs(some[:, k].tolist(), (of_some == k).int().tolist()) for k in (0, 1, 3)]
    assert score("auroc", some, of_some) == pytest.approx(sum(parts) / 3)
    alone = targets == 1
    for name in ("auroc", "auprc", "sensitivity_at_specificity"):
        found = find_metric(name)
        assert found is not None
        assert found.undefined(targets[alone]) == f"all {int(alone.sum())} test rows are of class 1"
    assert math.isnan(score("auroc", scores[alone], targets[alone]))


@pytest.mark.slow
def test_all_agree_with_torchmetrics() -> None:
    functional = pytest.importorskip("torchmetrics.functional")
    from torchmetrics.functional.classification import (
        binary_calibration_error,
        binary_sensitivity_at_specificity,
        multiclass_calibration_error,
    )

    scores, targets = many_classes()
    options = {"task": "multiclass", "num_classes": 4, "average": "macro"}
    assert score("auroc", scores, targets) == pytest.approx(float(functional.auroc(scores, targets, **options)))
    expected = float(functional.average_precision(scores, targets, **options))
    assert score("auprc", scores, targets) == pytest.approx(expected, abs=1e-6)
    recall = float(functional.recall(scores, targets, **options))
    found = find_metric("balanced_accuracy")
    assert found is not None
    assert found(scores.argmax(1), targets) == pytest.approx(recall, abs=1e-6)
    error = float(multiclass_calibration_error(scores, targets, num_classes=4, n_bins=10))
    assert score("ece", scores, targets) == pytest.approx(error, abs=1e-6)
    two, of_two = many_classes(classes=2)
    assert score("auroc", two, of_two) == pytest.approx(float(functional.auroc(two[:, 1], of_two, task="binary")))
    error = float(binary_calibration_error(two[:, 1].contiguous(), of_two, n_bins=10))
    assert score("ece", two, of_two) == pytest.approx(error, abs=1e-6)
    sensitivity = float(binary_sensitivity_at_specificity(two[:, 1], of_two, min_specificity=0.9)[0])
    assert score("sensitivity_at_specificity", two, of_two) == pytest.approx(sensitivity, abs=1e-6)
    predicted, numbers = two[:, 0] * 50, two[:, 1] * 40
    for name, theirs in (
        ("mae", functional.mean_absolute_error(predicted, numbers)),
        ("rmse", functional.mean_squared_error(predicted, numbers, squared=False)),
        ("r2", functional.r2_score(predicted, numbers)),
    ):
        assert FOR_NUMBERS[name](predicted, numbers) == pytest.approx(float(theirs), rel=1e-5)


@pytest.mark.parametrize("name", NAMES)
def test_a_weight_of_two_is_the_row_twice(name: str) -> None:
    found = find_metric(name)
    assert found is not None
    assert found.weighted is not None
    scores, targets = many_classes(rows=40)
    given = {"scores": scores, "classes": scores.argmax(1), "numbers": scores[:, 0]}[found.needs]
    expected = targets.double() if found.needs == "numbers" else targets
    weights = torch.randint(3, (5, 40), generator=torch.Generator().manual_seed(1))
    values = found.weighted(given, expected, weights.double())
    for row, value in zip(weights, values.tolist(), strict=True):
        assert value == pytest.approx(found(given.repeat_interleave(row, 0), expected.repeat_interleave(row)))


def test_plain_functions_are_metrics_of_classes_and_those_of_the_catalogue_are_known() -> None:
    made = declared({"mine": lambda predicted, targets: 0.5, "accuracy": accuracy, "f1": macro_f1})
    assert (made["mine"].direction, made["mine"].needs, made["mine"].task) == ("higher", "classes", "classification")
    assert (made["accuracy"], made["f1"]) == (DEFAULT["accuracy"], DEFAULT["f1"])

    @metric("lower", needs="numbers", unit="target")
    def largest(predicted: Tensor, targets: Tensor) -> float:
        return float((predicted - targets).abs().max())

    assert isinstance(largest, Metric)
    assert (largest.lower_is_better, largest.task) == (True, "regression")
    assert largest(torch.tensor([1.0]), torch.tensor([3.0])) == 2


@pytest.mark.parametrize(
    ("names", "own", "said"),
    [
        (["aurock"], DEFAULT, "unknown metric 'aurock'; did you mean 'auroc'?"),
        (["auroc", "auroc"], DEFAULT, "names 'auroc' twice"),
        (["mae"], DEFAULT, "'mae' is for regression, but this task's targets are classes; use one of f1"),
        (["f1"], FOR_NUMBERS, "'f1' is for classification, but this task's targets are not classes; use one of mae"),
        (["sensitivity_at_specificity_1.5"], DEFAULT, "unknown metric"),
        (["loss"], DEFAULT, "the loss is always recorded"),
    ],
)
def test_names_that_cannot_be_metrics_are_refused(names: list[str], own: dict[str, Metric], said: str) -> None:
    with pytest.raises(ConfigError, match="metric") as caught:
        chosen_metrics(names, own)
    assert said in str(caught.value)


def test_declarations_are_checked() -> None:
    with pytest.raises(ConfigError, match="did you mean 'higher'"):
        metric("highest")(accuracy)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="a metric must be a function"):
        Metric("accuracy")  # type: ignore[arg-type]
