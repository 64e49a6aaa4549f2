"""Metrics, and scores read off a confusion matrix later: by counting, and the same bits both ways."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from playerfl.errors import ConfigError
from playerfl.learning.confusion import F1_LABELS, F1Labels, confusion_matrix
from playerfl.learning.metrics import DIVERGED, accuracy, macro_f1, of_many, predictions
from playerfl.learning.metrics.classes import accuracies_of_confusions, macro_f1s_of_confusions
from playerfl.runs.confusions import Confusions

CLASSES = 6
# Few rows and many classes, so that some classes lack predictions, targets or both.
answers = st.lists(st.tuples(st.integers(0, CLASSES - 1), st.integers(0, CLASSES - 1)), min_size=1, max_size=12).map(
    lambda rows: torch.tensor(rows).T
)


def f1_by_counting(pairs: list[tuple[int, int]], class_: int) -> float:
    """2PR / (P + R) of one class, from its definition."""
    hits = pairs.count((class_, class_))
    said, true = ([pair[side] for pair in pairs].count(class_) for side in (0, 1))
    precision, recall = hits / said if said else 0.0, hits / true if true else 0.0
    return 2 * precision * recall / (precision + recall) if hits else 0.0


def f1_over(labels: F1Labels, matrix: Tensor) -> float:
    """As a run computes it from what it recorded."""
    (score,) = Confusions.of({("round", 1, "site", "test"): matrix.int().numpy()}).f1(labels)
    return score


@given(answers)
def test_accuracy_and_the_confusion_matrix_are_counts(answers: Tensor) -> None:
    predicted, targets = answers
    pairs = list(zip(targets.tolist(), predicted.tolist(), strict=True))
    counts = [[pairs.count((true, said)) for said in range(CLASSES)] for true in range(CLASSES)]
    assert confusion_matrix(predicted, targets, CLASSES).tolist() == counts
    assert accuracy(predicted, targets) == sum(true == said for true, said in pairs) / len(pairs)


@pytest.mark.parametrize("labels", F1_LABELS)
@given(answers=answers)
def test_f1_is_the_mean_over_the_chosen_classes(labels: F1Labels, answers: Tensor) -> None:
    predicted, targets = answers
    pairs = list(zip(predicted.tolist(), targets.tolist(), strict=True))
    true = {pair[1] for pair in pairs}
    chosen = {"true_or_predicted": true | {pair[0] for pair in pairs}, "true": true, "all": set(range(CLASSES))}[labels]
    expected = sum(f1_by_counting(pairs, class_) for class_ in chosen) / len(chosen)
    scores = [f1_over(labels, confusion_matrix(predicted, targets, CLASSES))]
    if labels != "true":
        scores.append(macro_f1(predicted, targets, labels=CLASSES if labels == "all" else "present"))
    assert scores == pytest.approx([expected] * len(scores), abs=1e-12)


@pytest.mark.parametrize("classes", [3, 10, 62])
def test_scores_have_the_same_bits_alone_beside_others_and_from_the_matrix(classes: int) -> None:
    """Sites lack classes, so models differ in the highest class they know of."""
    generator = torch.Generator().manual_seed(classes)
    targets = torch.randint(max(2, classes // 2), (200,), generator=generator)
    predicted = torch.stack([torch.randint(i, (200,), generator=generator) for i in range(1, classes + 1)])
    matrices = confusion_matrix(predicted, targets, classes + 7)
    f1s, accuracies = macro_f1s_of_confusions(matrices.numpy()), accuracies_of_confusions(matrices.numpy())
    assert f1s == of_many(macro_f1, predicted, targets) == [macro_f1(row, targets) for row in predicted]
    assert accuracies == of_many(accuracy, predicted, targets) == [accuracy(row, targets) for row in predicted]
    for row, matrix, f1 in zip(predicted, matrices, f1s, strict=True):
        alone = confusion_matrix(row, targets, classes + 7)
        assert torch.equal(alone, matrix)
        assert f1_over("true_or_predicted", alone) == f1
        assert f1_over("all", alone) == macro_f1(row, targets, labels=classes + 7)


def test_models_may_have_a_row_of_targets_each() -> None:
    generator = torch.Generator().manual_seed(3)
    predicted, targets = torch.randint(7, (2, 5, 40), generator=generator)
    predicted[3, 2] = DIVERGED
    for metric in (accuracy, macro_f1, lambda found, true: float((found - true).sum())):
        alone = [of_many(metric, row.unsqueeze(0), true)[0] for row, true in zip(predicted, targets, strict=True)]
        assert of_many(metric, predicted, targets) == pytest.approx(alone, rel=0, abs=0, nan_ok=True)
    matrices = confusion_matrix(predicted, targets, 7)
    assert all(
        torch.equal(matrix, confusion_matrix(row, true, 7))
        for matrix, row, true in zip(matrices, predicted, targets, strict=True)
    )


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
    matrices = confusion_matrix(predicted[1:], targets, 2)
    for labels in F1_LABELS:
        assert [f1_over(labels, matrix) for matrix in matrices] == pytest.approx([math.nan, 1.0], nan_ok=True)


@pytest.mark.parametrize("metric", [accuracy, macro_f1])
@pytest.mark.parametrize(("predicted", "score"), [([3, 1, 3], 1.0), ([1, 3, 1], 0.0)])
def test_all_right_is_one_and_all_wrong_is_zero(
    metric: Callable[[Tensor, Tensor], float], predicted: list[int], score: float
) -> None:
    assert metric(torch.tensor(predicted), torch.tensor([3, 1, 3])) == score


def test_other_labels_are_refused() -> None:
    with pytest.raises(ConfigError, match="unknown labels 'present'; allowed: all, true, true_or_predicted"):
        f1_over("present", torch.eye(2))  # type: ignore[arg-type]
