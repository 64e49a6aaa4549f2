"""Linear layers over a stack of weights: what `vmap` gives, and nothing but linear layers and activations."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap
from torch.nn import functional as F

from playerfl.learning.stacked.linear_stack import NotOnlyLinearError, linear_outputs
from playerfl.models.mlp import MLP

MODELS = 3


class OwnActivations(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(6, 20, bias=False), nn.Linear(20, 4)

    def forward(self, x: Tensor) -> Tensor:
        hidden = torch.sigmoid(F.linear(input=x, weight=self.first.weight))
        out: Tensor = self.second(hidden).tanh()
        return out


class LooksAtItsBatch(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * (2.0 if x.shape[0] > MODELS else 1.0)


class AddsToItself(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return x + super().forward(x)


class ScalesItsWeights(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, torch.tanh(self.weight), self.bias)


class Flattens(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.flatten(1))


def stack_of(model: nn.Module, dtype: torch.dtype) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(0)
    return {
        name: torch.randn(MODELS, *own.shape, generator=generator, dtype=dtype).requires_grad_()
        for name, own in model.named_parameters()
    }


def ours(model: nn.Module, stack: dict[str, Tensor], x: Tensor) -> Tensor:
    outputs: Tensor = linear_outputs(model, {id(own): stack[name] for name, own in model.named_parameters()}, x)
    return outputs


def by_vmap(model: nn.Module, stack: dict[str, Tensor], x: Tensor) -> Tensor:
    outputs: Tensor = vmap(lambda own, inputs: functional_call(model, own, (inputs,)))(stack, x)
    return outputs


@pytest.mark.slow
@pytest.mark.parametrize(
    "make",
    [
        lambda: MLP((6, 40, 17, 5)),
        lambda: nn.Sequential(nn.Linear(6, 16), nn.GELU(), nn.Linear(16, 30), nn.ELU(), nn.Linear(30, 15)),
        lambda: nn.Sequential(nn.Linear(6, 20), nn.ReLU(inplace=True), nn.Linear(20, 20), nn.SiLU()),
        OwnActivations,
    ],
)
@pytest.mark.parametrize("rows", [1, 32])
def test_outputs_and_gradients_are_those_of_vmap(make: Callable[[], nn.Module], rows: int) -> None:
    model = make()
    x = torch.randn(MODELS, rows, 6, dtype=torch.float64, requires_grad=True)
    stack = stack_of(model, torch.float64)
    found = [way(model, stack, x) for way in (ours, by_vmap)]
    torch.testing.assert_close(found[0], found[1], rtol=1e-12, atol=1e-12)
    weights = torch.randn_like(found[0])
    left, right = (torch.autograd.grad((out * weights).sum(), [x, *stack.values()]) for out in found)
    torch.testing.assert_close(left, right, rtol=1e-11, atol=1e-11)


def test_outputs_have_the_bits_of_vmap() -> None:
    model = MLP((13, 64, 64, 64, 5))
    x, stack = torch.randn(MODELS, 32, 13), stack_of(model, torch.float32)
    assert torch.equal(ours(model, stack, x), by_vmap(model, stack, x))


@pytest.mark.parametrize("make", [LooksAtItsBatch, AddsToItself, ScalesItsWeights, Flattens])
def test_every_other_operation_is_refused(make: Callable[[int, int], nn.Module]) -> None:
    model = make(6, 6)
    with pytest.raises(NotOnlyLinearError):
        ours(model, stack_of(model, torch.float32), torch.randn(MODELS, 32, 6))


def test_weights_of_another_model_and_inputs_with_more_dimensions_are_refused() -> None:
    model = nn.Linear(6, 6)
    with pytest.raises(NotOnlyLinearError, match="not the model's"):
        linear_outputs(model, {}, torch.randn(MODELS, 32, 6))
    with pytest.raises(NotOnlyLinearError, match="more dimensions"):
        ours(model, stack_of(model, torch.float32), torch.randn(MODELS, 8, 4, 6))
