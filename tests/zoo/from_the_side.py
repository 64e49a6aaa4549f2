"""Blocks that something enters from the side: a filter or a bias computed from positions, a gate on another value,
keys and values that every turn of a loop reads."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from zoo.attentive import heads, merged, words
from zoo.blocks import sequence, text
from zoo.vision import CLASSES, D, picture


class ImplicitFilter(nn.Module):
    """As in Hyena: a network computes a long filter from positions, whatever the input."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.project, self.out = nn.LayerNorm(D), nn.Linear(D, 2 * D), nn.Linear(D, D)
        self.filter = nn.Sequential(nn.Linear(1, D), nn.GELU(), nn.Linear(D, D))

    def forward(self, x: Tensor) -> Tensor:
        values, gate = self.project(self.norm(x)).chunk(2, -1)
        length = x.shape[1]
        along = torch.fft.rfft(self.filter(torch.linspace(0, 1, length)[:, None]), 2 * length, dim=0)
        mixed = torch.fft.irfft(torch.fft.rfft(values, 2 * length, dim=1) * along, 2 * length, dim=1)[:, :length]
        y: Tensor = x + self.out(mixed * gate)
        return y


class ComputedBias(nn.Module):
    """A network computes the bias of the attention from distances (Swin v2), and heads are mixed before the softmax."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out, self.norm = nn.Linear(D, 3 * D), nn.Linear(D, D), nn.LayerNorm(D)
        self.bias = nn.Sequential(nn.Linear(1, 4), nn.ReLU(), nn.Linear(4, 1))
        self.mix = nn.Conv2d(2, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = map(heads, self.qkv(x).chunk(3, -1))
        places = torch.arange(x.shape[1], dtype=x.dtype)
        scores = q @ k.transpose(-2, -1) + self.bias((places[:, None] - places)[..., None])[..., 0]
        y: Tensor = x + self.norm(self.out(merged(self.mix(scores).softmax(-1) @ v)))
        return y


class AttentionGate(nn.Module):
    """As in Attention U-Net: what comes from below decides which parts of the skip connection pass."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.of_below = nn.Sequential(nn.Conv2d(width, 2, 1), nn.BatchNorm2d(2))
        self.of_skip = nn.Sequential(nn.Conv2d(width, 2, 1), nn.BatchNorm2d(2))
        self.weight = nn.Sequential(nn.Conv2d(2, 1, 1), nn.BatchNorm2d(1), nn.Sigmoid())

    def forward(self, below: Tensor, skip: Tensor) -> Tensor:
        return skip * self.weight((self.of_below(below) + self.of_skip(skip)).relu())


class AttentionUNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.down1, self.down2 = nn.Conv2d(2, 4, 3, 1, 1), nn.Conv2d(4, 8, 3, 1, 1)
        self.up, self.gate = nn.ConvTranspose2d(8, 4, 2, 2), AttentionGate(4)
        self.join, self.head = nn.Conv2d(8, 4, 3, 1, 1), nn.Conv2d(4, CLASSES, 1)

    def forward(self, x: Tensor) -> Tensor:
        skip = self.down1(x).relu()
        below = self.up(self.down2(F.max_pool2d(skip, 2)).relu())
        return self.head(self.join(torch.cat([self.gate(below, skip), below], 1)).relu())


class Receptance(nn.Module):
    """As in RWKV: mixtures of each position with the one before it are keys and gates."""

    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(D), nn.LayerNorm(D)
        self.share = nn.Parameter(torch.rand(D))
        self.key, self.gate, self.out = nn.Linear(D, D), nn.Linear(D, D), nn.Linear(D, D)
        self.mlp = nn.Sequential(nn.Linear(D, 2 * D), nn.ReLU(), nn.Linear(2 * D, D))

    def forward(self, x: Tensor) -> Tensor:
        h = self.norm1(x)
        mixed = h * self.share + h.roll(1, 1) * (1 - self.share)
        x = x + self.out(self.gate(mixed).sigmoid() * self.key(mixed).cumsum(1))
        y: Tensor = x + self.mlp(self.norm2(x))
        return y


class SlotAttention(nn.Module):
    """Slots attend to the same keys and values in every turn, and a cell updates them."""

    def __init__(self) -> None:
        super().__init__()
        self.encode, self.norm = nn.Linear(4, D), nn.LayerNorm(D)
        self.slots, self.norm_slots = nn.Parameter(torch.rand(1, 3, D)), nn.LayerNorm(D)
        self.q, self.k, self.v, self.update = nn.Linear(D, D), nn.Linear(D, D), nn.Linear(D, D), nn.GRUCell(D, D)
        self.head = nn.Linear(D, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(self.encode(x))
        keys, values = self.k(x), self.v(x)
        slots = self.slots.expand(len(x), -1, -1)
        for _ in range(3):
            weights = (keys @ self.q(self.norm_slots(slots)).transpose(1, 2)).softmax(-1).transpose(1, 2)
            slots = self.update((weights @ values).flatten(0, 1), slots.flatten(0, 1)).view_as(slots)
        y: Tensor = self.head(slots.mean(1))
        return y


FROM_THE_SIDE: dict[str, tuple[Callable[[], nn.Module], Callable[[], Any]]] = {
    "Hyena": (lambda: text(ImplicitFilter(), ImplicitFilter()), words),
    "attention with a computed bias": (lambda: text(ComputedBias(), ComputedBias()), words),
    "Attention U-Net": (AttentionUNet, picture),
    "RWKV": (lambda: text(Receptance(), Receptance()), words),
    "RWKV, a norm after the words": (lambda: text(nn.LayerNorm(D), Receptance(), Receptance()), words),
    "slot attention": (SlotAttention, sequence),
}
