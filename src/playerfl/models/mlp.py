"""Fully connected networks."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from torch import Tensor, nn


class MLP(nn.Module):
    """Linear layers with ReLU between them; each is a layer."""

    def __init__(self, widths: Sequence[int]) -> None:
        """`widths`: inputs, hidden layers, outputs."""
        super().__init__()
        pairs = list(pairwise(widths))
        self.names = [f"fc{i}" for i in range(1, len(pairs) + 1)]
        for name, (inputs, outputs) in zip(self.names, pairs, strict=True):
            self.add_module(name, nn.Linear(inputs, outputs))

    def forward(self, x: Tensor) -> Tensor:
        for name in self.names[:-1]:
            # In place, because activations of a stack fill the cache.
            x = getattr(self, name)(x).relu_()
        out: Tensor = getattr(self, self.names[-1])(x)
        return out

    def layer_groups(self) -> list[tuple[str, list[str]]]:
        return [(name, [f"{name}.weight", f"{name}.bias"]) for name in self.names]
