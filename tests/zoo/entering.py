"""Models that are given whole numbers, and parts that were once put in the wrong layer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from zoo.attentive import WORDS, Stage, heads, merged, words
from zoo.shared import Attention
from zoo.streams import numbers
from zoo.vision import CLASSES, BasicBlock, D, ResNet, picture


class Bytes(nn.Module):
    """A picture comes as whole numbers, and is scaled inside the model."""

    def __init__(self) -> None:
        super().__init__()
        self.net = ResNet(BasicBlock)
        self.register_buffer("mean", torch.full((2, 1, 1), 0.5))

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x.float() / 255 - self.mean)


class Looked(nn.Module):
    """Words that are no nn.Embedding: a parameter is indexed or multiplied, or a linear layer reads one-hot words."""

    def __init__(self, look: Callable[[nn.Module, Tensor], Tensor], *, linear: bool = False) -> None:
        super().__init__()
        self.look = look
        self.table = nn.Linear(WORDS, D) if linear else nn.Parameter(torch.ones(WORDS, D))
        self.where = nn.Parameter(torch.zeros(1, D))
        self.stages, self.head = nn.Sequential(Stage(), Stage()), nn.Linear(D, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        ids = x.abs().round().long()  # a table of numbers may hold classes too
        return self.head(self.stages(self.look(self.table, ids) + self.where).mean(1))


def one_hot(ids: Tensor) -> Tensor:
    return F.one_hot(ids, WORDS).float()


class Counted(nn.Module):
    """Whole numbers, or yes and no, in a table."""

    def __init__(self) -> None:
        super().__init__()
        self.stretch, self.enter, self.head = nn.Parameter(torch.ones(4)), nn.Linear(4, D), nn.Linear(D, CLASSES)
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(D, D), nn.ReLU(), nn.Linear(D, D)) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        h = self.enter(torch.log1p(x.float()) * self.stretch)
        for block in self.blocks:
            h = h + block(h)
        return self.head(h)


class Pointer(nn.Module):
    """A decoder that points at its inputs: what it attends to is no gate around encoder and decoder."""

    def __init__(self) -> None:
        super().__init__()
        self.enter, self.encoder, self.cell = nn.Linear(4, D), nn.LSTM(D, D, batch_first=True), nn.LSTMCell(D, D)
        self.first, self.there, self.here = nn.Parameter(torch.zeros(D)), nn.Linear(D, D), nn.Linear(D, D)
        self.score = nn.Linear(D, 1)

    def forward(self, x: Tensor) -> Tensor:
        points = self.enter(x)
        found, (h, c) = self.encoder(points)
        state, there, at, chosen = (h[0], c[0]), self.there(found), self.first.expand(len(x), -1), []
        for _ in range(3):
            state = self.cell(at, state)
            scores = self.score(torch.tanh(there + self.here(state[0])[:, None]))
            at = (scores.softmax(1) * points).sum(1)
            chosen.append(scores[..., 0])
        return torch.stack(chosen, 1)


def wrapped(enter: int, leave: int) -> nn.Module:
    return nn.ModuleDict({"linear": nn.Linear(enter, leave), "norm": nn.LayerNorm(leave)})


class Shrinking(nn.Module):
    """LeViT's attention between two stages: no shortcut, another width, an activation before its last projection."""

    def __init__(self) -> None:
        super().__init__()
        self.kv, self.q, self.proj = wrapped(D, 2 * D), wrapped(D, D), wrapped(D, 2 * D)

    def forward(self, x: Tensor) -> Tensor:
        def through(part: Any, value: Tensor) -> Tensor:
            return part["norm"](part["linear"](value))

        k, v = map(heads, through(self.kv, x).chunk(2, -1))
        q = heads(through(self.q, x[:, ::2]))
        return through(self.proj, F.hardswish(merged((q @ k.transpose(-2, -1)).softmax(-1) @ v)))


class NormedPaths(nn.Module):
    """OLMo 2 and Swin v2: each path ends with a norm, and the sum has none."""

    def __init__(self) -> None:
        super().__init__()
        self.attn, self.up, self.down = Attention(), nn.Linear(D, 2 * D), nn.Linear(2 * D, D)
        self.norm1, self.norm2 = nn.LayerNorm(D), nn.LayerNorm(D)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.norm1(self.attn(x))
        return x + self.norm2(self.down(F.gelu(self.up(x))))


class NormedText(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.ModuleDict({"words": nn.Embedding(WORDS, D), "norm": nn.LayerNorm(D)})
        self.body["blocks"] = nn.Sequential(NormedPaths(), NormedPaths())
        self.head = nn.Linear(D, CLASSES)

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(self.body["norm"](self.body["blocks"](self.body["words"](ids))))


class ThreeTables(nn.Module):
    """Narrow words are projected to the width of positions and kinds (MobileBERT)."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.widen = nn.Embedding(WORDS, 4), nn.Linear(4, D)
        self.places, self.kinds, self.norm = nn.Embedding(9, D), nn.Embedding(2, D), nn.LayerNorm(D)
        self.stage, self.head = Stage(), nn.Linear(D, CLASSES)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.widen(self.words(ids)) + self.places(torch.arange(ids.shape[1])) + self.kinds(ids % 2)
        return self.head(self.stage(self.norm(x)).mean(1))


def pixels() -> Tensor:
    return (picture() * 100 + 100).to(torch.uint8)


ENTERING: dict[str, tuple[Callable[[], nn.Module], Callable[[], Any]]] = {
    "ResNet, a picture of bytes": (Bytes, pixels),
    "one-hot words, a bare matrix": (lambda: Looked(lambda table, ids: one_hot(ids) @ table), words),
    "one-hot words, a linear layer": (lambda: Looked(lambda table, ids: table(one_hot(ids)), linear=True), words),
    "words in a parameter": (lambda: Looked(lambda table, ids: table[ids]), words),
    "classes among numbers, in a parameter": (
        lambda: Looked(lambda table, ids: table.index_select(0, ids.flatten()).unflatten(0, ids.shape)),
        numbers,
    ),
    "counts": (Counted, lambda: torch.arange(12).reshape(3, 4)),
    "yes and no": (Counted, lambda: torch.arange(12).reshape(3, 4) % 3 == 0),
    "pointer network": (Pointer, lambda: torch.linspace(-1, 1, 40).reshape(2, 5, 4)),
    "attention that makes a picture smaller": (
        lambda: nn.Sequential(nn.Embedding(WORDS, D), Stage(), Shrinking(), nn.Linear(2 * D, CLASSES)),
        words,
    ),
    "norms at the end of each path": (NormedText, words),
    "narrow words, positions and kinds": (ThreeTables, words),
}
