"""Standalone: a site's model together with the scaling of its inputs, as one forward pass over plain tensors."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from playerfl.data.encoding.encoding import Encoding, TableEncoding
from playerfl.data.encoding.scaling import Scale
from playerfl.layers.derive import call_model
from playerfl.learning.losses import logits_of

ONE_INPUT = "inputs"


class Scaling(nn.Module):
    """`playerfl.data.encoding.scaling.scaled`, with tensors instead of arrays: the same numbers, bit for bit.

    What must not be predicted for becomes nan: an infinite value and, unless the model fills them, a missing one.
    """

    def __init__(self, scales: Sequence[Scale], *, fills_missing: bool) -> None:
        super().__init__()

        def column(values: list[float]) -> Tensor:
            return torch.tensor(values, dtype=torch.float64)

        self.register_buffer("centre", column([scale.centre for scale in scales]))
        self.register_buffer("spread", column([scale.spread or 1.0 for scale in scales]))
        self.register_buffer("varies", torch.tensor([scale.spread > 0 for scale in scales]))
        self.register_buffer("fill", column([scale.fill if fills_missing else math.nan for scale in scales]))
        self.register_buffer("low", column([float("-inf") if scale.low is None else scale.low for scale in scales]))
        self.register_buffer("high", column([float("inf") if scale.high is None else scale.high for scale in scales]))

    def forward(self, raw: Tensor) -> Tensor:
        known = torch.where(torch.isnan(raw), self.fill, raw)  # type: ignore[arg-type]
        known = torch.where(torch.isinf(raw), torch.full_like(raw, math.nan), known)
        scaled = (known - self.centre) / self.spread  # type: ignore[operator]
        scaled = torch.where(torch.logical_or(self.varies, torch.isnan(scaled)), scaled, torch.zeros_like(scaled))  # type: ignore[arg-type]
        return torch.minimum(torch.maximum(scaled, self.low), self.high).float()  # type: ignore[arg-type]


class Standalone(nn.Module):
    """Takes rows of a table before scaling (float64, nan for a missing value) or the model's own inputs, in order."""

    def __init__(self, model: nn.Module, encoding: Encoding | None, names: Sequence[str] | None) -> None:
        """`names`: the names under which a model takes its inputs, if it takes them by name."""
        super().__init__()
        table = encoding.inputs if encoding is not None and isinstance(encoding.inputs, TableEncoding) else None
        self.scaling = Scaling(table.scales, fills_missing=table.fills_missing) if table else None
        self.model = model
        self._names = names

    def forward(self, *inputs: Tensor) -> Tensor:
        taken: Any = inputs if self.scaling is None else (self.scaling(inputs[0]),)
        if self._names is not None:
            taken = dict(zip(self._names, taken, strict=True))
        return logits_of(call_model(self.model, taken))


class Answering(nn.Module):
    """A standalone model whose outputs are probabilities, or numbers in the target's units; for other runtimes."""

    def __init__(self, standalone: nn.Module, mean: float | None, spread: float, *, eight_bit: bool = False) -> None:
        """`mean`, `spread`: of the target; `mean` is None for classes. `eight_bit`: inputs are pixels from 0 to 255."""
        super().__init__()
        self.standalone = standalone
        self._mean, self._spread, self._eight_bit = mean, spread, eight_bit

    def forward(self, *inputs: Tensor) -> Tensor:
        if self._eight_bit:
            inputs = tuple(pixels / 127.5 - 1 for pixels in inputs)
        output: Tensor = self.standalone(*inputs)
        return output.softmax(1) if self._mean is None else output * self._spread + self._mean


def named_inputs(inputs: Any) -> tuple[dict[str, Tensor], list[str] | None]:
    """A model's inputs by name, and the names by which the model takes them, if it does."""
    if isinstance(inputs, Mapping):
        return dict(inputs), list(inputs)
    if isinstance(inputs, tuple):
        return {f"input_{number}": tensor for number, tensor in enumerate(inputs)}, None
    return {ONE_INPUT: inputs}, None
