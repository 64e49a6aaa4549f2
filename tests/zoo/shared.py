"""Models in which several blocks share a module or a parameter."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from zoo.attentive import WORDS, Stage, T, heads, merged, words
from zoo.vision import CLASSES, D, picture


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.proj = nn.Linear(D, 3 * D), nn.Linear(D, D)

    def forward(self, x: Tensor, bias: Tensor | None = None) -> Tensor:
        q, k, v = map(heads, self.qkv(x).chunk(3, -1))
        scores = q @ k.transpose(-2, -1)
        return self.proj(merged((scores if bias is None else scores + bias).softmax(-1) @ v))


class Parts(nn.Module):
    """Attention and feed-forward; norms and scales may come from outside."""

    def __init__(self, norm: nn.Module | None = None, act: nn.Module | None = None) -> None:
        super().__init__()
        self.norm1, self.norm2 = norm or nn.LayerNorm(D), norm or nn.LayerNorm(D)
        self.attn, self.up, self.down = Attention(), nn.Linear(D, 2 * D), nn.Linear(2 * D, D)
        self.act = act or nn.GELU()

    def forward(self, x: Tensor, bias: Tensor | None = None, scale: Tensor | float = 1.0) -> Tensor:
        x = x + scale * self.attn(self.norm1(x), bias)
        return x + scale * self.down(self.act(self.up(self.norm2(x))))


class Text(nn.Module):
    def __init__(self, depth: int = 3, **parts: Any) -> None:
        super().__init__()
        self.words, self.norm, self.head = nn.Embedding(WORDS, D), nn.LayerNorm(D), nn.Linear(D, CLASSES)
        self.blocks = nn.ModuleList(Parts(**parts) for _ in range(depth))

    def through(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x)
        return x

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(self.norm(self.through(self.words(ids)))[:, 0])


class BiasTable(Text):
    """One table of relative positions for all blocks, looked up once."""

    def __init__(self) -> None:
        super().__init__()
        self.relative = nn.Embedding(2 * T, 2)

    def bias(self) -> Tensor:
        places = torch.arange(T)
        return self.relative(places[:, None] - places[None] + T).permute(2, 0, 1)

    def through(self, x: Tensor) -> Tensor:
        bias = self.bias()
        for block in self.blocks:
            x = block(x, bias)
        return x


class BiasTableAgain(BiasTable):
    """The same, looked up in every block."""

    def through(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x, self.bias())
        return x


class RepeatedBias(BiasTable):
    """The same, repeated for every example and with norms last, as in MPNet."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(LastNorms() for _ in range(3))

    def through(self, x: Tensor) -> Tensor:
        bias = self.bias()[None].expand(len(x), -1, -1, -1).contiguous()
        for block in self.blocks:
            x = block(x, bias)
        return x


class LastNorms(Parts):
    """The norms come after the sums."""

    def forward(self, x: Tensor, bias: Tensor | None = None, scale: Tensor | float = 1.0) -> Tensor:
        x = self.norm1(x + scale * self.attn(x, bias))
        return self.norm2(x + scale * self.down(self.act(self.up(x))))


class BareBias(Text):
    """The table is a bare parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.relative = nn.Parameter(torch.zeros(2 * T, 2))

    def through(self, x: Tensor) -> Tensor:
        places = torch.arange(T)
        index = places[:, None] - places[None] + T
        for block in self.blocks:
            x = block(x, self.relative[index].permute(2, 0, 1))
        return x


class ReZero(Text):
    """A vector with one scale for each block."""

    def __init__(self) -> None:
        super().__init__()
        self.alpha = nn.Parameter(torch.zeros(3))

    def through(self, x: Tensor) -> Tensor:
        for scale, block in zip(self.alpha, self.blocks, strict=True):
            x = block(x, scale=scale)
        return x


class Albert(Text):
    """One block, applied three times."""

    def __init__(self) -> None:
        super().__init__(depth=1)

    def through(self, x: Tensor) -> Tensor:
        for _ in range(3):
            x = self.blocks[0](x)
        return x


class SharedFeedForward(nn.Module):
    """Every block has its own attention, and all of them one feed-forward."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.head = nn.Embedding(WORDS, D), nn.Linear(D, CLASSES)
        self.norms, self.attns = (
            nn.ModuleList(nn.LayerNorm(D) for _ in range(3)),
            nn.ModuleList(Attention() for _ in range(3)),
        )
        self.mlp = nn.Sequential(nn.LayerNorm(D), nn.Linear(D, 2 * D), nn.GELU(), nn.Linear(2 * D, D))

    def forward(self, ids: Tensor) -> Tensor:
        x = self.words(ids)
        for norm, attn in zip(self.norms, self.attns, strict=True):
            x = x + attn(norm(x))
            x = x + self.mlp(x)
        return self.head(x.mean(1))


class TiedText(Text):
    """The words' table is also the head; the norm before it is its own."""

    def __init__(self) -> None:
        super().__init__()
        del self.head

    def forward(self, ids: Tensor) -> Tensor:
        return F.linear(self.norm(self.through(self.words(ids))), self.words.weight)


class EarlyExits(nn.Module):
    """One head on every stage."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.head = nn.Conv2d(2, D, 3, 2, 1), nn.Linear(D, CLASSES)
        self.stages = nn.ModuleList(nn.Sequential(nn.Conv2d(D, D, 3, 1, 1), nn.BatchNorm2d(D)) for _ in range(3))

    def forward(self, x: Tensor) -> list[Tensor]:
        x, outs = self.stem(x), []
        for stage in self.stages:
            x = stage(x).relu()
            outs.append(self.head(x.mean((2, 3))))
        return outs


class OneActivation(nn.Module):
    """A single PReLU after every layer."""

    def __init__(self) -> None:
        super().__init__()
        self.act = nn.PReLU()
        self.layers = nn.ModuleList(nn.Linear(4 if n == 0 else D, D) for n in range(3))
        self.head = nn.Linear(D, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = self.act(layer(x))
        return self.head(x)


class Siamese(nn.Module):
    """One tower for two pictures, and a head on their difference."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(2 * D, 1)
        self.tower = nn.Sequential(
            nn.Conv2d(2, D, 3, 2, 1), nn.BatchNorm2d(D), nn.ReLU(), nn.Conv2d(D, D, 3, 2, 1), nn.Flatten(),
            nn.Linear(4 * D, D),
        )  # fmt: skip

    def forward(self, one: Tensor, other: Tensor) -> Tensor:
        a, b = self.tower(one), self.tower(other)
        return self.head(torch.cat([(a - b).abs(), a * b], -1))


class Pyramid(nn.Module):
    """Features of three sizes, added from the top down, and one head for all of them (RetinaNet)."""

    def __init__(self) -> None:
        super().__init__()
        self.stages = nn.ModuleList(nn.Conv2d(2 if n == 0 else D, D, 3, 2, 1) for n in range(3))
        self.lateral, self.smooth = (
            nn.ModuleList(nn.Conv2d(D, D, 1) for _ in range(3)),
            nn.ModuleList(nn.Conv2d(D, D, 3, 1, 1) for _ in range(3)),
        )
        self.box = nn.Sequential(nn.Conv2d(D, D, 3, 1, 1), nn.ReLU(), nn.Conv2d(D, 4, 1))

    def forward(self, x: Tensor) -> list[Tensor]:
        sizes = []
        for stage in self.stages:
            x = stage(x).relu()
            sizes.append(x)
        outs, above = [], None
        for number in (2, 1, 0):
            here = self.lateral[number](sizes[number])
            above = here if above is None else here + F.interpolate(above, scale_factor=2.0)
            outs.append(self.box(self.smooth[number](above)))
        return outs


def same_stage() -> nn.Module:
    """A torch Sequential that holds one block twice."""
    stage = Stage()
    return nn.Sequential(nn.Embedding(WORDS, D), stage, stage, nn.Linear(D, CLASSES))


SHARED: dict[str, tuple[Callable[[], nn.Module], Callable[[], Any]]] = {
    "one bias table": (BiasTable, words),
    "one bias table, looked up in every block": (BiasTableAgain, words),
    "one bias table, a bare parameter": (BareBias, words),
    "ReZero": (ReZero, words),
    "one norm for all blocks": (lambda: Text(norm=nn.LayerNorm(D)), words),
    "one activation with a parameter for all blocks": (lambda: Text(act=nn.PReLU()), words),
    "one activation with a parameter for all layers": (OneActivation, lambda: torch.linspace(-1, 1, 8).reshape(2, 4)),
    "ALBERT": (Albert, words),
    "one block under two names": (same_stage, words),
    "one feed-forward for all blocks": (SharedFeedForward, words),
    "head tied to the words": (TiedText, words),
    "one head for every stage": (EarlyExits, picture),
    "siamese": (Siamese, lambda: (picture(), -picture())),
    "feature pyramid": (Pyramid, picture),
    "one bias table, repeated for every example": (RepeatedBias, words),
}
