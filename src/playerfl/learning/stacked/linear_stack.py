"""Linear layers and activations over a stack of weights, without `vmap`, whose bookkeeping takes 1 ms per step."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from playerfl.layers.derive import call_model

# Functions that work on each number separately, so they can be applied to a stack as they are.
ACTIVATIONS = frozenset(
    {F.relu, F.leaky_relu, F.elu, F.selu, F.gelu, F.silu, F.softplus, F.tanh, F.sigmoid}
    | {torch.relu, torch.relu_, torch.tanh, torch.sigmoid}
    | {Tensor.relu, Tensor.relu_, Tensor.tanh, Tensor.sigmoid}
)


class NotOnlyLinearError(Exception):
    """A forward pass did something other than call linear layers and activations."""


def linear_outputs(model: nn.Module, entries: Mapping[int, Tensor], inputs: Any) -> Any:
    """The outputs of a stack of models for inputs by model and row; `entries`: stacked weights by `id` of the original.

    >>> layer = nn.Linear(2, 1)
    >>> weights, biases = torch.tensor([[[1.0, 2.0]], [[3.0, 4.0]]]), torch.tensor([[0.0], [9.0]])
    >>> linear_outputs(layer, {id(layer.weight): weights, id(layer.bias): biases}, torch.ones(2, 1, 2))
    tensor([[[ 3.]],
    <BLANKLINE>
            [[16.]]])
    """
    with _Stacked(entries):
        return call_model(model, inputs)


class _Stacked(TorchFunctionMode):
    """Replaces a model's weights with stacked ones, and stops at anything other than a linear layer or activation.

    Reading a tensor's shape comes through here too, so no forward pass can mistake the stack for its batch. A custom
    autograd function does not; the trial in `stackable` catches those, because it compares gradients too.
    """

    def __init__(self, entries: Mapping[int, Tensor]) -> None:
        super().__init__()
        self.entries = entries

    def __torch_function__(
        self, function: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if function in ACTIVATIONS:
            return function(*args, **(kwargs or {}))
        if function is not F.linear:
            raise NotOnlyLinearError(getattr(function, "__name__", str(function)))
        return self._linear(*args, **(kwargs or {}))

    def _linear(self, input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:  # noqa: A002
        stacked, added = self.entries.get(id(weight)), self.entries.get(id(bias))
        if stacked is None or (added is None and bias is not None) or input.dim() != 3:
            raise NotOnlyLinearError("a linear layer with weights that are not the model's, or with more dimensions")
        outputs: Tensor = _Linear.apply(input, stacked, added)  # type: ignore[no-untyped-call]
        return outputs


class _Linear(torch.autograd.Function):
    """x·Wᵀ + b for each model."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(x, weight)
        products = torch.bmm(x, weight.mT)
        return products if bias is None else products.add_(bias.unsqueeze(1))

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        (g,) = gradients
        x, weight = ctx.saved_tensors
        of_x, of_weight, of_bias = ctx.needs_input_grad
        return (
            torch.bmm(g, weight) if of_x else None,
            # Transposed, as Layout stores wide weights.
            torch.bmm(x.mT, g).mT if of_weight else None,
            g.sum(1) if of_bias else None,
        )
