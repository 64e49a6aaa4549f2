"""Convolutional networks: convolution blocks, global average pooling, fully connected layers."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from torch import Tensor, nn
from torch.nn import functional as F


class ConvNet(nn.Module):
    """`conv1 … convK`, each with ReLU and optional pooling; then `fc1`, `fc2`."""

    def __init__(
        self,
        channels: int,
        widths: Sequence[int],
        hidden: int,
        classes: int,
        *,
        kernel: int = 3,
        padding: int = 1,
        pool_after: Collection[int] = (),
        dropout: Mapping[int, float] | None = None,
    ) -> None:
        """`pool_after`, `dropout`: which convolutions (from 1) are followed by 2x2 max pooling or by dropout."""
        super().__init__()
        self.pool_after = frozenset(pool_after)
        self.dropout = dict(dropout or {})
        self.convolutions = [f"conv{i}" for i in range(1, len(widths) + 1)]
        for name, (inputs, outputs) in zip(
            self.convolutions, zip([channels, *widths], widths, strict=False), strict=True
        ):
            self.add_module(name, nn.Conv2d(inputs, outputs, kernel, padding=padding))
        self.fc1 = nn.Linear(widths[-1], hidden)
        self.fc2 = nn.Linear(hidden, classes)

    def forward(self, x: Tensor) -> Tensor:
        for number, name in enumerate(self.convolutions, start=1):
            x = getattr(self, name)(x)
            if number in self.pool_after:
                # Pooling before ReLU gives the same values as after it, on a quarter of the pixels.
                x = F.max_pool2d(x, 2)
            x = x.relu_()
            if number in self.dropout:
                x = F.dropout(x, self.dropout[number], self.training)
        out: Tensor = self.fc2(self.fc1(x.mean((2, 3))).relu())
        return out

    def layer_groups(self) -> list[tuple[str, list[str]]]:
        return [(name, [f"{name}.weight", f"{name}.bias"]) for name in (*self.convolutions, "fc1", "fc2")]
