"""Scores of predictions, computed once over a whole split."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor


def accuracy(predicted: Tensor, targets: Tensor) -> float:
    """The share of right predictions.

    >>> accuracy(torch.tensor([0, 1, 1, 2]), torch.tensor([0, 1, 2, 2]))
    0.75
    """
    return int((predicted == targets).sum()) / len(targets)


def macro_f1(predicted: Tensor, targets: Tensor, labels: Literal["present"] | int = "present") -> float:
    """The mean over classes of 2PR / (P + R), where 0/0 counts as 0.

    The classes are those present in predictions or targets, as scikit-learn's default; give their number
    to count the absent ones too, with 0.

    >>> macro_f1(torch.tensor([0, 0, 1]), torch.tensor([0, 1, 1]))
    0.6666666666666666
    >>> macro_f1(torch.tensor([0, 0, 1]), torch.tensor([0, 1, 1]), labels=4)
    0.3333333333333333
    """
    classes = int(torch.maximum(predicted.max(), targets.max())) + 1
    hits = torch.bincount(targets[predicted == targets], minlength=classes).double()
    # 2PR/(P+R) = 2·hits / (predicted + true), so no division is 0/0 for a class that is present.
    seen = (torch.bincount(predicted, minlength=classes) + torch.bincount(targets, minlength=classes)).double()
    present = seen > 0
    total = float((2 * hits[present] / seen[present]).sum())
    return total / (int(present.sum()) if labels == "present" else labels)
