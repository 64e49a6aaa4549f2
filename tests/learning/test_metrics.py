"""Metrics against scikit-learn."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import accuracy_score, f1_score
from torch import Tensor

from playerfl.learning.metrics import DIVERGED, accuracy, macro_f1, of_many, predictions

CLASSES = 6
# Few rows and many classes, so that some classes lack predictions, targets or both.
answers = st.lists(st.tuples(st.integers(0, CLASSES - 1), st.integers(0, CLASSES - 1)), min_size=1, max_size=12)


def columns(rows: list[tuple[int, int]]) -> tuple[Tensor, Tensor]:
    predicted, targets = torch.tensor(rows).T
    return predicted, targets


@given(answers)
def test_accuracy_agrees_with_scikit_learn(rows: list[tuple[int, int]]) -> None:
    predicted, targets = columns(rows)
    assert accuracy(predicted, targets) == pytest.approx(accuracy_score(targets, predicted), abs=1e-12)


@given(answers)
def test_macro_f1_over_present_classes_agrees_with_scikit_learn(rows: list[tuple[int, int]]) -> None:
    predicted, targets = columns(rows)
    expected = f1_score(targets, predicted, average="macro", zero_division=0)
    assert macro_f1(predicted, targets) == pytest.approx(expected, abs=1e-12)


@given(answers)
def test_macro_f1_over_all_classes_agrees_with_scikit_learn(rows: list[tuple[int, int]]) -> None:
    predicted, targets = columns(rows)
    expected = f1_score(targets, predicted, average="macro", labels=range(CLASSES), zero_division=0)
    assert macro_f1(predicted, targets, labels=CLASSES) == pytest.approx(expected, abs=1e-12)


def test_metrics_agree_with_scikit_learn_on_many_rows() -> None:
    generator = torch.Generator().manual_seed(0)
    predicted, targets = (torch.randint(10, (5000,), generator=generator) for _ in range(2))
    assert accuracy(predicted, targets) == pytest.approx(accuracy_score(targets, predicted), abs=1e-12)
    assert macro_f1(predicted, targets) == pytest.approx(f1_score(targets, predicted, average="macro"), abs=1e-12)


@pytest.mark.parametrize(
    ("logits", "expected"),
    [
        ([1.0, 3.0], 1),
        ([-math.inf, 3.0], 1),
        ([math.nan, 3.0], DIVERGED),
        ([3.0, math.nan], DIVERGED),
        ([math.nan, math.inf], DIVERGED),
        ([math.inf, 3.0], DIVERGED),
        ([-math.inf, -math.inf], DIVERGED),
    ],
)
def test_logits_without_a_softmax_give_no_class(logits: list[float], expected: int) -> None:
    assert predictions(torch.tensor([logits, [1.0, 0.0]])).tolist() == [expected, 0]
    assert torch.tensor(logits).softmax(0).isnan().any() == (expected == DIVERGED)


def test_a_diverged_model_scores_nan_beside_others_and_alone() -> None:
    targets = torch.tensor([0, 1, 1])
    predicted = torch.tensor([[0, 1, 0], [0, DIVERGED, 0], [0, 1, 1]])
    for metric in (accuracy, macro_f1, lambda found, _: float(found.min())):
        first, diverged, last = of_many(metric, predicted, targets)
        assert math.isnan(diverged)
        assert [first, last] == [metric(predicted[0], targets), metric(predicted[2], targets)]
        assert math.isnan(of_many(metric, predicted[1:2], targets)[0])


@pytest.mark.parametrize("metric", [accuracy, macro_f1])
@pytest.mark.parametrize(("predicted", "score"), [([3, 1, 3], 1.0), ([1, 3, 1], 0.0)])
def test_all_right_is_one_and_all_wrong_is_zero(
    metric: Callable[[Tensor, Tensor], float], predicted: list[int], score: float
) -> None:
    assert metric(torch.tensor(predicted), torch.tensor([3, 1, 3])) == score
