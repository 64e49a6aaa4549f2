"""Models whose blocks mix positions without weights, or scale what a norm has made of an embedding."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from zoo.attentive import WORDS, words
from zoo.vision import CLASSES, D


def _feed_forward() -> nn.Module:
    return nn.Sequential(nn.Linear(D, 2 * D), nn.GELU(), nn.Linear(2 * D, D))


class TokenShift(nn.Module):
    """As in RWKV: a mixture of each position and the one before it."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.linear = nn.LayerNorm(D), nn.Linear(D, D)
        self.share = nn.Parameter(torch.rand(D))

    def forward(self, x: Tensor) -> Tensor:
        h = self.norm(x)
        y: Tensor = x + self.linear(h * self.share + h.roll(1, 1))
        return y


class Pooling(nn.Module):
    """As in PoolFormer: the mean over positions mixes them."""

    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2, self.mlp = nn.LayerNorm(D), nn.LayerNorm(D), _feed_forward()

    def forward(self, x: Tensor) -> Tensor:
        h = self.norm1(x)
        x = x + h.mean(1, keepdim=True) - h
        y: Tensor = x + self.mlp(self.norm2(x))
        return y


class Fourier(Pooling):
    """As in FNet: a Fourier transform mixes positions, and norms come last."""

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm1(x + torch.fft.fft2(x).real)
        y: Tensor = self.norm2(x + self.mlp(x))
        return y


class _Classifier(nn.Module):
    def __init__(self, block: Callable[[], nn.Module]) -> None:
        super().__init__()
        self.words, self.blocks = nn.Embedding(WORDS, D), nn.ModuleList(block() for _ in range(2))
        self.head = nn.Linear(D, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = self.words(x)
        for block in self.blocks:
            x = block(x)
        y: Tensor = self.head(x.mean(1))
        return y


WEIGHTLESS: dict[str, tuple[Callable[[], nn.Module], Callable[[], Any]]] = {
    "token shift": (lambda: _Classifier(TokenShift), words),
    "pooling as a mixer": (lambda: _Classifier(Pooling), words),
    "Fourier transform as a mixer": (lambda: _Classifier(Fourier), words),
}
