"""Optimisers around another one: methods that change how gradients move weights, not the loop that computes them.

What such an optimiser holds besides the state of the inner one (a correction, a mask, a second model) is given to
`client.train` as `slots` and returned in `Trained.slots`. All of it is element by element, so it can be stacked.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Self

import torch
from torch import Tensor

from playerfl.learning.optimizers import Optimizer, Step

Slots = dict[str, list[Tensor]]


@dataclass(frozen=True)
class Around:
    """An optimiser that passes everything on to another one, and holds further tensors in `given` slots."""

    base: Optimizer

    given: ClassVar[tuple[str, ...]] = ()

    @property
    def learning_rate(self) -> float:
        return self.base.learning_rate

    @property
    def inner_steps(self) -> int:
        return self.base.inner_steps

    @property
    def slots(self) -> tuple[str, ...]:
        return (*self.base.slots, *self.given)

    @property
    def counts(self) -> tuple[str, ...]:
        return self.base.counts

    def scaled(self, factor: float) -> Self:
        return replace(self, base=self.base.scaled(factor))

    def fresh(self, slot: str, parameter: Tensor) -> Tensor:
        if slot in self.base.slots:
            return self.base.fresh(slot, parameter)
        return torch.zeros_like(parameter, requires_grad=False)

    def stepper(self, parameters: Sequence[Tensor], state: Slots) -> Step:
        return self.base.stepper(parameters, {slot: state[slot] for slot in self.base.slots})


@dataclass(frozen=True)
class Corrected(Around):
    """Adds a fixed `correction` to every gradient. `total` sums the uncorrected gradients, `steps` counts them."""

    given: ClassVar[tuple[str, ...]] = ("correction", "total", "steps")

    @property
    def counts(self) -> tuple[str, ...]:
        return (*self.base.counts, "steps")

    def fresh(self, slot: str, parameter: Tensor) -> Tensor:
        return torch.zeros((), device=parameter.device) if slot == "steps" else super().fresh(slot, parameter)

    def stepper(self, parameters: Sequence[Tensor], state: Slots) -> Step:
        inner, correction, total = super().stepper(parameters, state), state["correction"], state["total"]

        def step(gradients: Sequence[Tensor]) -> None:
            torch._foreach_add_(total, list(gradients))
            torch._foreach_add_(state["steps"], 1.0)
            inner(torch._foreach_add(list(gradients), correction))

        return step


@dataclass(frozen=True)
class Masked(Around):
    """Moves only the elements where `mask` is 1. The others keep their value and their part of the state."""

    given: ClassVar[tuple[str, ...]] = ("mask",)

    def stepper(self, parameters: Sequence[Tensor], state: Slots) -> Step:
        inner, masks = super().stepper(parameters, state), [mask != 0 for mask in state["mask"]]
        held = [slot for slot in self.base.slots if slot not in self.counts]
        groups = [[parameter.detach() for parameter in parameters], *(state[slot] for slot in held)]

        def step(gradients: Sequence[Tensor]) -> None:
            before = [[tensor.clone() for tensor in group] for group in groups]
            inner(gradients)
            for group, old in zip(groups, before, strict=True):
                for tensor, was, mask in zip(group, old, masks, strict=True):
                    tensor.copy_(torch.where(mask, tensor, was))

        return step


@dataclass(frozen=True)
class Mixture(Around):
    """Two models per batch: `local` w takes a step at w, and `personal` v one at the mixture α·v + (1 - α)·w.

    The gradient with respect to v is α times the gradient at the mixture. The model that is trained is w; with
    `sloped`, `slope` sums (v - w) ∘ gradient, whose total is the derivative with respect to α. Each of the two has
    its own state of the inner optimiser.
    """

    alpha: float = 0.5
    sloped: bool = False

    @property
    def inner_steps(self) -> int:
        return 2 * self.base.inner_steps

    @property
    def slots(self) -> tuple[str, ...]:
        own = tuple(f"personal_{slot}" for slot in self.base.slots)
        return (*self.base.slots, *own, "local", "personal", *(("slope",) if self.sloped else ()))

    @property
    def counts(self) -> tuple[str, ...]:
        return (*self.base.counts, *(f"personal_{slot}" for slot in self.base.counts))

    def fresh(self, slot: str, parameter: Tensor) -> Tensor:
        return super().fresh(slot.removeprefix("personal_"), parameter)

    def stepper(self, parameters: Sequence[Tensor], state: Slots) -> Step:
        weights = [parameter.detach() for parameter in parameters]
        local, personal, slope = state["local"], state["personal"], state.get("slope", [])
        move_local = self.base.stepper(local, {slot: state[slot] for slot in self.base.slots})
        move_personal = self.base.stepper(personal, {slot: state[f"personal_{slot}"] for slot in self.base.slots})
        at_mixture = False
        differences: Sequence[Tensor] = ()

        def step(gradients: Sequence[Tensor]) -> None:
            nonlocal at_mixture, differences
            if at_mixture:
                if self.sloped:
                    torch._foreach_addcmul_(slope, list(differences), list(gradients))
                move_personal(torch._foreach_mul(list(gradients), self.alpha))
                torch._foreach_copy_(weights, local)
            else:
                differences = torch._foreach_sub(personal, local) if self.sloped else ()
                mixed = torch._foreach_mul(personal, self.alpha)
                torch._foreach_add_(mixed, local, alpha=1 - self.alpha)
                move_local(gradients)
                torch._foreach_copy_(weights, mixed)
            at_mixture = not at_mixture

        return step


@dataclass(frozen=True)
class Interpolated:
    """Learns `mix` W in [0, 1], element by element, for weights on the way from `start` to `end`.

    W ← clip(W - η · g ∘ (end - start), 0, 1), then θ ← start + (end - start) ∘ W.
    """

    learning_rate: float

    inner_steps: ClassVar[int] = 1
    counts: ClassVar[tuple[str, ...]] = ()
    slots: ClassVar[tuple[str, ...]] = ("mix", "start", "end")

    def scaled(self, factor: float) -> Interpolated:
        """A schedule of the training rate does not apply to this one."""
        return self

    def fresh(self, slot: str, parameter: Tensor) -> Tensor:
        return torch.ones_like(parameter, requires_grad=False) if slot == "mix" else parameter.detach().clone()

    def stepper(self, parameters: Sequence[Tensor], state: Slots) -> Step:
        weights, mix, start, end = [p.detach() for p in parameters], state["mix"], state["start"], state["end"]
        way = torch._foreach_sub(end, start)

        def step(gradients: Sequence[Tensor]) -> None:
            torch._foreach_addcmul_(mix, list(gradients), way, value=-self.learning_rate)
            torch._foreach_clamp_min_(mix, 0.0)
            torch._foreach_clamp_max_(mix, 1.0)
            # lerp gives the bits of `start` at 0 and those of `end` at 1.
            torch._foreach_copy_(weights, torch._foreach_lerp(start, end, mix))

        return step
