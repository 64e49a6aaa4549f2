"""Metrics of predicted numbers, in the units of the target. Each is computed with row weights."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class TargetScale:
    """How a task's targets were scaled for training: (value - mean) / spread.

    >>> TargetScale(100.0, 10.0).restored(torch.tensor([0.5]))
    tensor([105.], dtype=torch.float64)
    """

    mean: float = 0.0
    spread: float = 1.0

    def restored(self, values: Tensor) -> Tensor:
        """Values in the target's own units."""
        return values.double() * self.spread + self.mean


def mae(predicted: Tensor, targets: Tensor, weights: Tensor) -> Tensor:
    """The mean absolute error.

    >>> mae(torch.tensor([1.0, 5.0]).double(), torch.tensor([2.0, 2.0]).double(), torch.ones(1, 2).double())
    tensor([2.], dtype=torch.float64)
    """
    return weights @ (predicted - targets).abs() / weights.sum(1)


def rmse(predicted: Tensor, targets: Tensor, weights: Tensor) -> Tensor:
    """The root of the mean squared error.

    >>> rmse(torch.tensor([1.0, 5.0]).double(), torch.tensor([2.0, 2.0]).double(), torch.ones(1, 2).double())
    tensor([2.2361], dtype=torch.float64)
    """
    return (weights @ (predicted - targets).square() / weights.sum(1)).sqrt()


def r2(predicted: Tensor, targets: Tensor, weights: Tensor) -> Tensor:
    """The share of the targets' variance at the site that is explained: 1 is perfect, 0 as good as the test rows' mean.

    >>> r2(torch.tensor([1.0, 2.0]).double(), torch.tensor([1.0, 3.0]).double(), torch.ones(1, 2).double())
    tensor([0.5000], dtype=torch.float64)
    """
    mean = weights @ targets / weights.sum(1)
    spread = (weights * (targets - mean.unsqueeze(1)).square()).sum(1)
    errors = weights @ (predicted - targets).square()
    return torch.where(spread > 0, 1 - errors / spread, torch.nan)


def constant_target(targets: Tensor) -> str | None:
    """Why R² has no value; None if it has one.

    >>> constant_target(torch.tensor([2.0, 2.0]))
    'the target is the same in all 2 test rows'
    """
    if len(targets) and bool((targets != targets[0]).any()):
        return None
    return f"the target is the same in all {len(targets)} test rows" if len(targets) else "there are no test rows"
