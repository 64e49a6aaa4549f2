"""Optimisers as plain data plus a step on lists of tensors, so that any trainer can hold their state."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Protocol

import torch
from torch import Tensor
from torch.optim.sgd import sgd

OptimizerState = dict[str, Mapping[str, Tensor]]
"""By slot, then by parameter name. It never leaves the site."""
Step = Callable[[Sequence[Tensor]], None]


class Optimizer(Protocol):
    """How gradients move weights."""

    @property
    def learning_rate(self) -> float: ...

    @property
    def inner_steps(self) -> int:
        """Gradient steps on each batch."""
        ...

    @property
    def slots(self) -> tuple[str, ...]:
        """The names of its state tensors, one of each per parameter."""
        ...

    @property
    def counts(self) -> tuple[str, ...]:
        """The slots that hold one number per parameter, the same for all parameters trained together."""
        ...

    def scaled(self, factor: float) -> Optimizer:
        """The same optimiser with every learning rate multiplied by `factor`."""
        ...

    def fresh(self, slot: str, parameter: Tensor) -> Tensor:
        """The state of one parameter before its first step."""
        ...

    def stepper(self, parameters: Sequence[Tensor], state: dict[str, list[Tensor]]) -> Step:
        """A function that takes the gradients and moves `parameters` and `state` in place."""
        ...


def with_rate(optimizer: Optimizer, learning_rate: float | None) -> Optimizer:
    """The same optimiser with another learning rate, unless that is None."""
    return optimizer if learning_rate is None else replace(optimizer, learning_rate=learning_rate)  # type: ignore[type-var]


# torch's optimiser classes import torch._dynamo at their first step, which takes seconds; the functions they
# call do not. The fused kernels ignore the strides of state tensors, so state must have its parameter's layout.


@dataclass(frozen=True)
class AdamW:
    """Adam with decoupled weight decay (Loshchilov & Hutter 2019)."""

    learning_rate: float = 1e-3
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    weight_decay: float = 0.01
    amsgrad: bool = False
    """Whether steps are divided by the largest second moment so far (Reddi et al. 2018)."""

    inner_steps: ClassVar[int] = 1
    counts: ClassVar[tuple[str, ...]] = ("step",)

    @property
    def slots(self) -> tuple[str, ...]:
        return ("step", "exp_avg", "exp_avg_sq", *(("max_exp_avg_sq",) if self.amsgrad else ()))

    def scaled(self, factor: float) -> AdamW:
        return replace(self, learning_rate=factor * self.learning_rate)

    def fresh(self, slot: str, parameter: Tensor) -> Tensor:
        if slot == "step":
            return torch.zeros((), dtype=torch.float32, device=parameter.device)
        return torch.zeros_like(parameter, requires_grad=False)

    def stepper(self, parameters: Sequence[Tensor], state: dict[str, list[Tensor]]) -> Step:
        # What `torch.optim.AdamW(fused=True)` does in a step. It sorts its tensors by device and type in every step,
        # which takes longer than moving a small model; here that is done once.
        kinds: dict[object, list[int]] = {}
        for i, parameter in enumerate(parameters):
            kinds.setdefault((parameter.device, parameter.dtype), []).append(i)
        largest = state["max_exp_avg_sq"] if self.amsgrad else []
        moved = [parameters, state["exp_avg"], state["exp_avg_sq"], largest, state["step"]]
        parts = [(chosen, [[held[i] for i in chosen] if held else [] for held in moved]) for chosen in kinds.values()]

        def step(gradients: Sequence[Tensor]) -> None:
            with torch.no_grad():
                for chosen, (weights, means, squares, maxima, counts) in parts:
                    torch._foreach_add_(counts, 1)
                    torch._fused_adamw_(
                        weights,
                        [gradients[i] for i in chosen],
                        means,
                        squares,
                        maxima,
                        counts,
                        lr=self.learning_rate,
                        beta1=self.betas[0],
                        beta2=self.betas[1],
                        weight_decay=self.weight_decay,
                        eps=self.eps,
                        amsgrad=self.amsgrad,
                        maximize=False,
                    )

        return step


@dataclass(frozen=True)
class SGD:
    """Gradient descent with optional momentum and weight decay."""

    learning_rate: float = 0.01
    momentum: float = 0.0
    weight_decay: float = 0.0

    inner_steps: ClassVar[int] = 1
    counts: ClassVar[tuple[str, ...]] = ()

    @property
    def slots(self) -> tuple[str, ...]:
        return ("momentum",) if self.momentum else ()

    def scaled(self, factor: float) -> SGD:
        return replace(self, learning_rate=factor * self.learning_rate)

    def fresh(self, slot: str, parameter: Tensor) -> Tensor:
        return torch.zeros_like(parameter, requires_grad=False)

    def stepper(self, parameters: Sequence[Tensor], state: dict[str, list[Tensor]]) -> Step:
        parameters = list(parameters)
        buffers: list[Tensor | None] = list(state["momentum"]) if self.momentum else [None] * len(parameters)

        def step(gradients: Sequence[Tensor]) -> None:
            with torch.no_grad():
                sgd(
                    parameters,
                    list(gradients),
                    buffers,
                    fused=False,
                    foreach=True,
                    weight_decay=self.weight_decay,
                    momentum=self.momentum,
                    lr=self.learning_rate,
                    dampening=0.0,
                    nesterov=False,
                    maximize=False,
                )

        return step


@dataclass(frozen=True)
class Moreau:
    """pFedMe's two coupled steps: K on the weights, pulled towards a slow copy, then one on the copy.

    θ ← θ - η·(g + λ(θ - w) + decay·θ), K times per batch;  w ← w - η_w·λ·(w - θ).  The slot "local" is w.
    """

    learning_rate: float
    local_learning_rate: float
    lam: float
    inner_steps: int
    weight_decay: float = 0.0

    counts: ClassVar[tuple[str, ...]] = ()

    @property
    def slots(self) -> tuple[str, ...]:
        return ("local",)

    def scaled(self, factor: float) -> Moreau:
        learning_rate, local_learning_rate = factor * self.learning_rate, factor * self.local_learning_rate
        return replace(self, learning_rate=learning_rate, local_learning_rate=local_learning_rate)

    def fresh(self, slot: str, parameter: Tensor) -> Tensor:
        return parameter.detach().clone()

    def stepper(self, parameters: Sequence[Tensor], state: dict[str, list[Tensor]]) -> Step:
        weights, local = [parameter.detach() for parameter in parameters], state["local"]
        done = 0

        def step(gradients: Sequence[Tensor]) -> None:
            nonlocal done
            direction = torch._foreach_add(list(gradients), torch._foreach_sub(weights, local), alpha=self.lam)
            if self.weight_decay:
                torch._foreach_add_(direction, weights, alpha=self.weight_decay)
            torch._foreach_add_(weights, direction, alpha=-self.learning_rate)
            done += 1
            if done % self.inner_steps == 0:
                away = torch._foreach_sub(local, weights)
                torch._foreach_add_(local, away, alpha=-self.local_learning_rate * self.lam)

        return step
