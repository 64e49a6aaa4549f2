"""Scores read off a confusion matrix: macro_f1's bits, and scikit-learn's numbers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import sklearn.metrics
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from playerfl.errors import ConfigError
from playerfl.learning.confusion import (
    F1_LABELS,
    F1Labels,
    accuracy_from_confusion,
    confusion_matrix,
    f1_from_confusion,
)
from playerfl.learning.metrics import DIVERGED, accuracy, macro_f1, of_many

CLASSES = 6
answers = st.lists(st.tuples(st.integers(0, CLASSES - 1), st.integers(0, CLASSES - 1)), min_size=1, max_size=12)


def columns(rows: list[tuple[int, int]]) -> tuple[Tensor, Tensor]:
    predicted, targets = torch.tensor(rows).T
    return predicted, targets


@given(answers)
def test_the_matrix_is_that_of_scikit_learn(rows: list[tuple[int, int]]) -> None:
    predicted, targets = columns(rows)
    expected = sklearn.metrics.confusion_matrix(targets, predicted, labels=range(CLASSES))
    assert np.array_equal(confusion_matrix(predicted, targets, CLASSES).numpy(), expected)


@pytest.mark.parametrize("labels", F1_LABELS)
@given(rows=answers)
def test_f1_agrees_with_scikit_learn_for_every_set_of_classes(labels: F1Labels, rows: list[tuple[int, int]]) -> None:
    predicted, targets = columns(rows)
    chosen: Any = {"true_or_predicted": None, "true": np.unique(targets), "all": range(CLASSES)}[labels]
    expected = sklearn.metrics.f1_score(targets, predicted, average="macro", labels=chosen, zero_division=0)
    found = f1_from_confusion(confusion_matrix(predicted, targets, CLASSES), labels)
    assert found.item() == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("classes", [3, 10, 62])
def test_scores_have_the_bits_of_the_metrics_alone_and_beside_others(classes: int) -> None:
    """Sites lack classes, so that models differ in the highest class they know of."""
    generator = torch.Generator().manual_seed(classes)
    targets = torch.randint(max(2, classes // 2), (200,), generator=generator)
    predicted = torch.stack([torch.randint(i, (200,), generator=generator) for i in range(1, classes + 1)])
    matrices = confusion_matrix(predicted, targets, classes + 7)
    f1s, accuracies = f1_from_confusion(matrices).tolist(), accuracy_from_confusion(matrices).tolist()
    assert f1s == of_many(macro_f1, predicted, targets) == [macro_f1(row, targets) for row in predicted]
    assert accuracies == of_many(accuracy, predicted, targets) == [accuracy(row, targets) for row in predicted]
    for row, matrix, f1 in zip(predicted, matrices, f1s, strict=True):
        alone = confusion_matrix(row, targets, classes + 7)
        assert torch.equal(alone, matrix)
        assert f1_from_confusion(alone).item() == f1
        assert f1_from_confusion(alone, "all").item() == macro_f1(row, targets, labels=classes + 7)


def test_a_diverged_model_has_no_scores_and_its_neighbours_keep_theirs() -> None:
    targets = torch.tensor([0, 1, 1])
    matrices = confusion_matrix(torch.tensor([[0, 1, 1], [0, DIVERGED, 1]]), targets, 2)
    for labels in F1_LABELS:
        assert f1_from_confusion(matrices, labels).tolist() == pytest.approx([1.0, torch.nan], nan_ok=True)
    assert accuracy_from_confusion(matrices).tolist() == pytest.approx([1.0, torch.nan], nan_ok=True)
    assert accuracy_from_confusion(matrices[1]).isnan()


def test_other_labels_are_refused() -> None:
    with pytest.raises(ConfigError, match="unknown labels 'present'; allowed: all, true, true_or_predicted"):
        f1_from_confusion(torch.eye(2), "present")  # type: ignore[arg-type]
