"""Confusion matrices, and the scores that can be computed from them later, without the predictions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from playerfl.errors import ConfigError, one_of
from playerfl.learning.metrics import DIVERGED, f1_of_counts

F1Labels = Literal["true_or_predicted", "true", "all"]
Matrix = NDArray[np.int32]
"""One model's confusion matrix while a run is under way: an array, because the garbage collector tracks every tensor,
and a study makes so many matrices that this would take longer than counting."""
F1_LABELS: tuple[F1Labels, ...] = ("true_or_predicted", "true", "all")


def confusion_matrix(predicted: Tensor, targets: Tensor, classes: int) -> Tensor:
    """How often each true class (row) was predicted as each class (column); for several models, one matrix each.

    Several models have the same targets, or one row of targets each.

    A model with a DIVERGED prediction gets -1 everywhere, and all scores of such a matrix are NaN.

    >>> confusion_matrix(torch.tensor([0, 0, 1]), torch.tensor([0, 1, 1]), classes=2)
    tensor([[1, 0],
            [1, 1]])
    >>> confusion_matrix(torch.tensor([[0, 0, 1], [1, 1, 1]]), torch.tensor([0, 1, 1]), classes=2).shape
    torch.Size([2, 2, 2])
    """
    rows = predicted.cpu().reshape(-1, targets.shape[-1])
    counts = _counted(rows, targets.cpu().expand(rows.shape), np.repeat(np.arange(len(rows)), rows.shape[1]), classes)
    return torch.from_numpy(counts).view(*predicted.shape[:-1], classes, classes)


def confusions_of_splits(predicted: Sequence[Tensor], targets: Sequence[Tensor], classes: int) -> Matrix:
    """The confusion matrices of several sets of rows, which may differ in length, in one count.

    >>> predicted, targets = [torch.tensor([0, 0, 1]), torch.tensor([1])], [torch.tensor([0, 1, 1]), torch.tensor([0])]
    >>> confusions_of_splits(predicted, targets, classes=2).tolist()
    [[[1, 0], [1, 1]], [[0, 1], [0, 0]]]
    """
    split = np.repeat(np.arange(len(predicted)), list(map(len, predicted)))
    return _counted(torch.cat(list(predicted)).cpu(), torch.cat(list(targets)).cpu(), split, classes).astype(np.int32)


def _counted(predicted: Tensor, targets: Tensor, owner: NDArray[np.int64], classes: int) -> NDArray[np.int64]:
    """One matrix per owner of rows: `owner` has the number of each row's, in rising order."""
    # In numpy, for the same reason as macro_f1s.
    rows, true = predicted.numpy().ravel(), targets.numpy().ravel()
    owners = int(owner[-1]) + 1 if len(owner) else 0
    # The cells of owner i are numbered from i · classes².
    cells = owner * classes**2 + true * classes + np.maximum(rows, 0)
    counts = np.bincount(cells, minlength=owners * classes**2).reshape(-1, classes, classes)
    counts[owner[rows == DIVERGED]] = -1
    return counts


def f1_of_margins(hits: Tensor, true: Tensor, predicted: Tensor, labels: F1Labels) -> Tensor:
    """The mean F1 from the diagonals, row sums and column sums of matrices, each with one row per matrix.

    >>> f1_of_margins(torch.tensor([[1, 1]]), torch.tensor([[1, 2]]), torch.tensor([[2, 1]]), "all")
    tensor([0.6667], dtype=torch.float64)
    """
    if labels not in F1_LABELS:
        raise ConfigError(one_of(labels, F1_LABELS, "labels"))
    seen = true + predicted
    counted = {"true_or_predicted": seen > 0, "true": true > 0, "all": torch.ones_like(seen, dtype=torch.bool)}[labels]
    return torch.tensor(f1_of_counts(hits, seen, counted.sum(1)), dtype=torch.float64)
