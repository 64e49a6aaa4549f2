"""Losses per example: the trainer takes the mean, so padded or weighted batches need no second version."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from playerfl.errors import ConfigError, one_of


def logits_of(output: Any) -> Tensor:
    """The logits in a model's output: the output itself, its "logits", or the first of several outputs."""
    if isinstance(output, Tensor):
        return output
    logits = output.get("logits") if hasattr(output, "get") else getattr(output, "logits", None)
    if logits is None and isinstance(output, tuple | list):
        logits = output[0]
    if not isinstance(logits, Tensor):
        raise ConfigError(f"a model must return a tensor or something with 'logits', not {type(output).__name__}")
    return logits


def cross_entropy(output: Any, targets: Tensor) -> Tensor:
    """-log p_y of each example.

    >>> cross_entropy(torch.zeros(1, 4), torch.tensor([2]))
    tensor([1.3863])
    """
    return F.cross_entropy(logits_of(output), targets, reduction="none")


def squared_error(output: Any, targets: Tensor) -> Tensor:
    """(prediction - target)² of each example, for numeric targets.

    >>> squared_error(torch.tensor([[1.0], [2.0]]), torch.tensor([1.0, 5.0]))
    tensor([0., 9.])
    """
    return (logits_of(output).squeeze(1) - targets).square()


def never_negative(loss: Any) -> bool:
    """Whether a loss is one of this module, all of which are at least 0; nothing is known about others.

    >>> never_negative(squared_error), never_negative(lambda output, targets: -output)
    (True, False)
    """
    if isinstance(loss, FocalLoss):
        return all(0 <= share <= 1 for share in loss.alpha or ())
    return loss in (cross_entropy, squared_error)


FocalVariant = Literal["standard", "repo"]


@dataclass(frozen=True)
class FocalLoss:
    """-α_y · (1 - p_y)^γ · log p_y of each example (Lin et al. 2017, equation 5).

    `variant="repo"` is the form of the PLayer-FL authors' repository: ten times the mean over all classes k of
    -A_k · Q_k^γ · log p_y, where A_k = α_k and Q_k = 1 - p_k for the true class, A_k = 1 - α_k and Q_k = p_k for the
    others. Without α, A_k = 1.

    >>> FocalLoss(gamma=2.0)(torch.zeros(1, 2), torch.tensor([0])) / cross_entropy(torch.zeros(1, 2), torch.tensor([0]))
    tensor([0.2500])
    """

    gamma: float = 2.0
    alpha: Sequence[float] | None = None
    variant: FocalVariant = "standard"

    def __post_init__(self) -> None:
        if self.gamma < 0:
            raise ConfigError(f"gamma must be at least 0, not {self.gamma}")
        if self.variant not in ("standard", "repo"):
            raise ConfigError(one_of(self.variant, ("standard", "repo"), "focal variant"))

    def __call__(self, output: Any, targets: Tensor) -> Tensor:
        if self.variant == "repo":
            return self._over_classes(logits_of(output), targets)
        log_p = F.log_softmax(logits_of(output), dim=-1).gather(-1, targets.unsqueeze(-1)).squeeze(-1)
        # 1 - p through expm1: for confident predictions 1 - exp(log p) would cancel to 0 and lose its gradient.
        # The floor keeps the slope of (1 - p)^γ finite where p is 1 and γ is below 1.
        wrong = (-torch.expm1(log_p)).clamp_min(torch.finfo(log_p.dtype).tiny)
        loss = -(wrong**self.gamma) * log_p if self.gamma else -log_p
        if self.alpha is not None:
            loss = loss * torch.as_tensor(self.alpha, dtype=loss.dtype, device=loss.device)[targets]
        return loss

    def _over_classes(self, logits: Tensor, targets: Tensor) -> Tensor:
        log_p = F.log_softmax(logits, dim=-1)
        true = torch.arange(logits.shape[-1], device=logits.device) == targets.unsqueeze(-1)
        # 1 - p through expm1 and with a floor, as above; the floor of p does the same for γ below 1.
        tiny = torch.finfo(log_p.dtype).tiny
        weights = torch.where(true, -torch.expm1(log_p), log_p.exp()).clamp_min(tiny) ** self.gamma
        if self.alpha is not None:
            alpha = torch.as_tensor(self.alpha, dtype=log_p.dtype, device=log_p.device)
            weights = weights * torch.where(true, alpha, 1 - alpha)
        return -10 * weights.mean(-1) * log_p.gather(-1, targets.unsqueeze(-1)).squeeze(-1)
