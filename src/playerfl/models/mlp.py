"""Fully connected networks."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from torch import Tensor, nn


class MLP(nn.Module):
    """Linear layers with ReLU between them, optionally after batch norm; each is a layer, together with its norm."""

    def __init__(self, widths: Sequence[int], *, norm: bool = False) -> None:
        """`widths`: inputs, hidden layers, outputs. `norm`: whether hidden layers have batch norm."""
        super().__init__()
        pairs = list(pairwise(widths))
        self.names = [f"fc{i}" for i in range(1, len(pairs) + 1)]
        for name, (inputs, outputs) in zip(self.names, pairs, strict=True):
            self.add_module(name, nn.Linear(inputs, outputs))
        self.norms = {name: f"norm{i}" for i, name in enumerate(self.names[:-1], start=1)} if norm else {}
        for name, own in self.norms.items():
            self.add_module(own, nn.BatchNorm1d(getattr(self, name).out_features))

    def forward(self, x: Tensor) -> Tensor:
        for name in self.names[:-1]:
            x = getattr(self, name)(x)
            if name in self.norms:
                x = getattr(self, self.norms[name])(x)
            # In place, because activations of a stack fill the cache.
            x = x.relu_()
        out: Tensor = getattr(self, self.names[-1])(x)
        return out

    def layer_groups(self) -> list[tuple[str, list[str]]]:
        modules = {name: [name, *([self.norms[name]] if name in self.norms else [])] for name in self.names}
        return [(name, [f"{m}.{part}" for m in own for part in ("weight", "bias")]) for name, own in modules.items()]
