"""Our optimisers against torch's own, step by step."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pytest
import torch
from torch import Tensor

from playerfl.learning.optimizers import SGD, AdamW, Moreau, Optimizer
from playerfl.weights import digest

SHAPES = [(3, 4), (4,), (2, 3, 2, 2)]
STEPS = 7


def tensors(seed: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=generator) for shape in SHAPES]


GRADIENTS = [tensors(step) for step in range(1, STEPS + 1)]


def ours(optimizer: Optimizer) -> dict[str, Tensor]:
    parameters = tensors(0)
    state = {slot: [optimizer.fresh(slot, p) for p in parameters] for slot in optimizer.slots}
    step = optimizer.stepper(parameters, state)
    for gradients in GRADIENTS:
        step([gradient.clone() for gradient in gradients])
    return {str(i): p for i, p in enumerate(parameters)}


def theirs(build: Callable[[Iterable[Tensor]], torch.optim.Optimizer]) -> dict[str, Tensor]:
    parameters = [p.requires_grad_() for p in tensors(0)]
    optimizer = build(parameters)
    for gradients in GRADIENTS:
        for parameter, gradient in zip(parameters, gradients, strict=True):
            parameter.grad = gradient.clone()
        optimizer.step()
    return {str(i): p.detach() for i, p in enumerate(parameters)}


ADAMW: list[dict[str, Any]] = [{}, {"weight_decay": 0.3}, {"betas": (0.5, 0.9), "eps": 1e-3}, {"amsgrad": True}]


@pytest.mark.slow
@pytest.mark.parametrize("options", ADAMW)
def test_adamw_is_torch_fused_adamw_bit_for_bit_and_the_plain_one_to_rounding(options: dict[str, Any]) -> None:
    found = ours(AdamW(0.05, **options))
    assert digest(found) == digest(theirs(lambda p: torch.optim.AdamW(p, lr=0.05, fused=True, **options)))
    plain = theirs(lambda p: torch.optim.AdamW(p, lr=0.05, fused=False, foreach=False, **options))
    assert all(torch.allclose(found[i], plain[i], rtol=1e-6, atol=1e-6) for i in plain)


@pytest.mark.slow
def test_adamw_has_the_defaults_of_torch() -> None:
    assert digest(ours(AdamW())) == digest(theirs(lambda p: torch.optim.AdamW(p, fused=True)))


@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
def test_sgd_is_torch_sgd_bit_for_bit(momentum: float, weight_decay: float) -> None:
    expected = theirs(lambda p: torch.optim.SGD(p, lr=0.05, momentum=momentum, weight_decay=weight_decay, foreach=True))
    assert digest(ours(SGD(0.05, momentum, weight_decay))) == digest(expected)


def test_amsgrad_makes_a_difference_once_gradients_shrink() -> None:
    weight = {}
    for amsgrad in (False, True):
        optimizer = AdamW(0.05, betas=(0.0, 0.5), weight_decay=0.0, amsgrad=amsgrad)
        parameter = torch.zeros(1)
        state = {slot: [optimizer.fresh(slot, parameter)] for slot in optimizer.slots}
        step = optimizer.stepper([parameter], state)
        step([torch.full((1,), 10.0)])
        step([torch.full((1,), 0.01)])
        weight[amsgrad] = parameter.item()
        assert ("max_exp_avg_sq" in state) == amsgrad
    assert weight[False] < weight[True]


@pytest.mark.parametrize("optimizer", [AdamW(), AdamW(amsgrad=True), SGD(momentum=0.9)])
def test_state_is_moved_in_place_and_laid_out_as_its_parameter(optimizer: Optimizer) -> None:
    parameter = torch.randn(2, 3, 4, 4).contiguous(memory_format=torch.channels_last)
    state = {slot: [optimizer.fresh(slot, parameter)] for slot in optimizer.slots}
    assert all(held.stride() == parameter.stride() for (held,) in state.values() if held.dim())
    optimizer.stepper([parameter], state)([torch.ones_like(parameter)])
    assert all(held.any() for (held,) in state.values())


def test_sgd_without_momentum_remembers_nothing() -> None:
    assert SGD().slots == ()


def moreau_steps(optimizer: Moreau, steps: int) -> tuple[float, float]:
    """The weight and its slow copy after some steps from 1 with the gradient 2."""
    weight = torch.ones(1, dtype=torch.float64)
    state = {"local": [optimizer.fresh("local", weight)]}
    step = optimizer.stepper([weight], state)
    for _ in range(steps):
        step([torch.full_like(weight, 2.0)])
    return weight.item(), state["local"][0].item()


MOREAU = {
    # θ: 1 → 1 - 0.1·2 = 0.8 → 0.8 - 0.1·(2 - 0.5·0.2) = 0.61;  then w: 1 - 0.2·0.5·(1 - 0.61) = 0.961.
    "one inner step": (Moreau(0.1, 0.2, lam=0.5, inner_steps=2), 1, (0.8, 1.0)),
    "two inner steps": (Moreau(0.1, 0.2, lam=0.5, inner_steps=2), 2, (0.61, 0.961)),
    "gradient descent without a pull": (Moreau(0.1, 0.2, lam=0.0, inner_steps=1), 3, (1 - 3 * 0.1 * 2, 1.0)),
    "a copy that catches up at once": (Moreau(0.1, 1 / 15, lam=15.0, inner_steps=1), 3, (0.4, 0.4)),
    "weight decay": (Moreau(0.1, 0.2, lam=0.0, inner_steps=1, weight_decay=3.0), 1, (0.5, 1.0)),
}


@pytest.mark.parametrize(("optimizer", "steps", "expected"), MOREAU.values(), ids=MOREAU)
def test_moreau_by_hand(optimizer: Moreau, steps: int, expected: tuple[float, float]) -> None:
    assert moreau_steps(optimizer, steps) == pytest.approx(expected)


@pytest.mark.parametrize("optimizer", [AdamW(), SGD(momentum=0.9), Moreau(0.1, 0.1, 1.0, 1)])
def test_a_step_does_not_change_the_gradients(optimizer: Optimizer) -> None:
    parameter, gradient = torch.ones(3), torch.full((3,), 2.0)
    state = {slot: [optimizer.fresh(slot, parameter)] for slot in optimizer.slots}
    optimizer.stepper([parameter], state)([gradient])
    assert gradient.tolist() == [2.0, 2.0, 2.0]
