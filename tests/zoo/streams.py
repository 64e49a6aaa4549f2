"""Networks in which several streams meet: nodes, a class token and patches, columns, a value and its shortcut."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from zoo.attentive import WORDS, Stage, heads, merged, words
from zoo.blocks import FeedForward
from zoo.vision import CLASSES, D, picture


class NodeAttention(nn.Module):
    """Neighbours weighted by what they are; no output projection, so the next layer reads the result (GAT)."""

    def __init__(self, enter: int) -> None:
        super().__init__()
        self.weigh, self.bias = nn.Linear(enter, D, bias=False), nn.Parameter(torch.zeros(D))
        self.here, self.there = nn.Parameter(torch.ones(D, 1)), nn.Parameter(torch.ones(D, 1))

    def forward(self, x: Tensor, edges: Tensor) -> Tensor:
        h = self.weigh(x)
        scores = F.leaky_relu(h @ self.here + (h @ self.there).transpose(1, 2))
        return scores.masked_fill(edges == 0, -1e9).softmax(-1) @ h + self.bias


class Graph(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one, self.two, self.head = NodeAttention(4), NodeAttention(D), nn.Linear(D, CLASSES)

    def forward(self, x: Tensor, edges: Tensor) -> Tensor:
        return self.head(self.two(self.one(x, edges), edges).mean(1))


class Lead(nn.Module):
    """The sum goes on as it is over the shortcut, and with the block's own norm to the next block (ECG networks)."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.conv2 = nn.Conv1d(D, D, 3, padding=1), nn.Conv1d(D, D, 3, 2, 1)
        self.norm1, self.norm2 = nn.BatchNorm1d(D), nn.BatchNorm1d(D)
        self.match = nn.Conv1d(D, D, 1)

    def forward(self, x: Tensor, beside: Tensor) -> tuple[Tensor, Tensor]:
        x = self.conv2(self.norm1(self.conv1(x)).relu()) + self.match(F.max_pool1d(beside, 2))
        return self.norm2(x).relu(), x


class Electrocardiogram(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.enter, self.blocks = nn.Conv1d(2, D, 3, padding=1), nn.ModuleList([Lead(), Lead(), Lead()])
        self.head = nn.Linear(D, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = beside = self.enter(x)
        for block in self.blocks:
            x, beside = block(x, beside)
        return self.head(x.mean(-1))


class ClassAttention(nn.Module):
    """Only the class token asks; it and the patches answer."""

    def __init__(self) -> None:
        super().__init__()
        self.n1, self.n2 = nn.LayerNorm(D), nn.LayerNorm(D)
        self.q, self.kv, self.o = nn.Linear(D, D), nn.Linear(D, 2 * D), nn.Linear(D, D)
        self.mlp = nn.Sequential(nn.Linear(D, 2 * D), nn.GELU(), nn.Linear(2 * D, D))

    def forward(self, token: Tensor, patches: Tensor) -> Tensor:
        every = self.n1(torch.cat([token, patches], 1))
        k, v = map(heads, self.kv(every).chunk(2, -1))
        weights = (heads(self.q(every[:, :1])) @ k.transpose(-2, -1)).softmax(-1)
        token = token + self.o(merged(weights @ v))
        return token + self.mlp(self.n2(token))


class LateToken(nn.Module):
    """The class token enters after the patches have seen each other (CaiT)."""

    def __init__(self) -> None:
        super().__init__()
        self.token, self.patch = nn.Parameter(torch.zeros(1, 1, D)), nn.Conv2d(2, D, 4, 4)
        self.stage, self.late = Stage(), nn.ModuleList([ClassAttention(), ClassAttention()])
        self.norm, self.head = nn.LayerNorm(D), nn.Linear(D, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stage(self.patch(x).flatten(2).transpose(1, 2))
        token = self.token.expand(len(x), -1, -1)
        for late in self.late:
            token = late(token, x)
        return self.head(self.norm(torch.cat([token, x], 1))[:, 0])


class FlowStep(nn.Module):
    """An invertible step, and the logarithm of how much it stretches space (Glow)."""

    def __init__(self) -> None:
        super().__init__()
        self.shift, self.stretch = nn.Parameter(torch.zeros(D)), nn.Parameter(torch.zeros(D))
        self.mix = nn.Parameter(torch.eye(D))
        self.net = nn.Sequential(nn.Linear(D // 2, D), nn.ReLU(), nn.Linear(D, D))

    def forward(self, x: Tensor, volume: Tensor) -> tuple[Tensor, Tensor]:
        a, b = F.linear((x + self.shift) * self.stretch.exp(), self.mix).chunk(2, -1)
        move, scale = self.net(a).chunk(2, -1)
        volume = volume + self.stretch.sum() + torch.slogdet(self.mix)[1] + scale.sum(-1)
        return torch.cat([a, (b + move) * scale.exp()], -1), volume


class NormalisingFlow(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.steps = nn.ModuleList([FlowStep(), FlowStep(), FlowStep()])

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        volume = torch.zeros(len(x))
        for step in self.steps:
            x, volume = step(x, volume)
        return x, volume


class PictureTransformer(nn.Module):
    """A long shortcut around whole blocks, with a map on the way in and out (latent diffusion)."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.enter, self.leave = nn.GroupNorm(2, D), nn.Conv2d(D, D, 1), nn.Conv2d(D, D, 1)
        self.stages = nn.ModuleList([Stage(), Stage()])

    def forward(self, x: Tensor) -> Tensor:
        h = self.enter(self.norm(x)).flatten(2).transpose(1, 2)
        for stage in self.stages:
            h = stage(h)
        return x + self.leave(h.transpose(1, 2).reshape(x.shape))


class LatentDenoiser(nn.Module):
    """The last norm is defined beside the convolution that it prepares."""

    def __init__(self) -> None:
        super().__init__()
        self.enter, self.middle = nn.Conv2d(2, D, 3, padding=1), PictureTransformer()
        self.norm, self.out = nn.GroupNorm(2, D), nn.Conv2d(D, 2, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(F.silu(self.norm(self.middle(self.enter(x)))))


class Columns(nn.Module):
    """A token for each column: a table for a category, a linear map for a number (SAINT)."""

    def __init__(self) -> None:
        super().__init__()
        self.numbers = nn.ModuleList(nn.Linear(1, D) for _ in range(3))
        self.sex, self.stage, self.head = nn.Embedding(2, D), Stage(), nn.Linear(D, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        tokens = [embed(x[:, i : i + 1]) for i, embed in enumerate(self.numbers)]
        return self.head(self.stage(torch.stack([*tokens, self.sex((x[:, 3] > 0).long())], 1)).mean(1))


class NarrowWords(nn.Module):
    """Words are projected to the width of their positions before both are added up (OPT)."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.widen, self.places = nn.Embedding(WORDS, 4), nn.Linear(4, D, bias=False), nn.Embedding(9, D)
        self.stage, self.head = Stage(), nn.Linear(D, CLASSES)

    def forward(self, ids: Tensor) -> Tensor:
        places = self.places((ids >= 0).long().cumsum(1))
        return self.head(self.stage(self.widen(self.words(ids)) + places).mean(1))


class LatentAttention(nn.Module):
    """Queries, keys and values from narrow values with norms of their own (DeepSeek)."""

    def __init__(self) -> None:
        super().__init__()
        self.q_down, self.q_norm, self.q_up = nn.Linear(D, 4), nn.RMSNorm(4), nn.Linear(4, D)
        self.kv_down, self.kv_norm, self.kv_up = nn.Linear(D, 4), nn.RMSNorm(4), nn.Linear(4, 2 * D)
        self.o = nn.Linear(D, D)

    def forward(self, x: Tensor) -> Tensor:
        q = heads(self.q_up(self.q_norm(self.q_down(x))))
        k, v = map(heads, self.kv_up(self.kv_norm(self.kv_down(x))).chunk(2, -1))
        return self.o(merged((q @ k.transpose(-2, -1)).softmax(-1) @ v))


class Sandwich(nn.Module):
    """A norm before and one after each block, inside its shortcut (Gemma 2)."""

    def __init__(self) -> None:
        super().__init__()
        self.attend, self.feed = LatentAttention(), FeedForward()
        self.before, self.after, self.last = nn.RMSNorm(D), nn.RMSNorm(D), nn.RMSNorm(D)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.after(self.attend(self.before(x)))
        return x + self.last(self.feed(x))


class NarrowLatents(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words, self.blocks = nn.Embedding(WORDS, D), nn.ModuleList([Sandwich(), Sandwich()])
        self.norm, self.head = nn.RMSNorm(D), nn.Linear(D, WORDS)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.words(ids)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


class StateSpace(nn.Module):
    """A long convolution whose filter is a sum of complex exponentials (S4D)."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.mix = nn.LayerNorm(D), nn.Linear(D, 2 * D)
        self.decay, self.turn, self.read = (nn.Parameter(torch.ones(D, 4)) for _ in range(3))
        self.past = nn.Parameter(torch.ones(D))

    def forward(self, x: Tensor) -> Tensor:
        h = self.norm(x).transpose(1, 2)
        length = h.shape[-1]
        rate = torch.complex(-self.decay.exp(), self.turn)
        past = (self.read[..., None] * torch.exp(rate[..., None] * torch.arange(length))).sum(1).real
        y = torch.fft.irfft(torch.fft.rfft(h, 2 * length) * torch.fft.rfft(past, 2 * length), 2 * length)[..., :length]
        return x + F.glu(self.mix(F.gelu(y + self.past[:, None] * h).transpose(1, 2)))


class WideAndDeep(nn.Module):
    """A linear map and a network of the same numbers, added up: two models side by side, not a shortcut."""

    def __init__(self) -> None:
        super().__init__()
        self.wide, self.tables = nn.Linear(4, CLASSES), nn.ModuleList(nn.Embedding(3, 2) for _ in range(2))
        self.deep = nn.Sequential(nn.Linear(8, D), nn.ReLU(), nn.Linear(D, D), nn.ReLU(), nn.Linear(D, CLASSES))

    def forward(self, x: Tensor) -> Tensor:
        rows = [table((x[:, n] + 1).long()) for n, table in enumerate(self.tables)]
        return self.wide(x) + self.deep(torch.cat([x, *rows], 1))


class Steered(nn.Module):
    """A condition scales and shifts every stage, without shortcuts: what it feeds is a network, not one gate."""

    def __init__(self) -> None:
        super().__init__()
        self.condition, self.head = nn.Linear(4, D), nn.Linear(D, CLASSES)
        self.convs = nn.ModuleList(nn.Conv2d(enter, D, 3, 1, 1) for enter in (2, D, D))
        self.films = nn.ModuleList(nn.Linear(D, 2 * D) for _ in range(3))
        self.norms = nn.ModuleList(nn.BatchNorm2d(D, affine=False) for _ in range(3))

    def forward(self, x: Tensor, about: Tensor) -> Tensor:
        about = self.condition(about).relu()
        for conv, film, norm in zip(self.convs, self.films, self.norms, strict=True):
            scale, shift = film(about)[..., None, None].chunk(2, 1)
            x = (norm(conv(x)) * (1 + scale) + shift).relu()
        return self.head(x.mean((2, 3)))


def numbers() -> Tensor:
    return torch.linspace(-1, 1, 12).reshape(3, 4)


STREAMS: dict[str, tuple[Callable[[], nn.Module], Callable[[], Any]]] = {
    "graph attention": (Graph, lambda: (torch.linspace(-1, 1, 40).reshape(2, 5, 4), torch.ones(2, 5, 5))),
    "electrocardiogram, shortcut beside the norm": (
        Electrocardiogram,
        lambda: torch.linspace(-1, 1, 64).reshape(2, 2, 16),
    ),
    "class attention": (LateToken, picture),
    "Glow": (NormalisingFlow, lambda: torch.linspace(-1, 1, 2 * D).reshape(2, D)),
    "latent denoiser": (LatentDenoiser, picture),
    "columns as tokens": (Columns, numbers),
    "narrow words, wide positions": (NarrowWords, words),
    "latent attention, norms on both sides": (NarrowLatents, words),
    "S4D": (
        lambda: nn.Sequential(
            nn.Embedding(WORDS, D), StateSpace(), StateSpace(), nn.LayerNorm(D), nn.Linear(D, CLASSES)
        ),
        words,
    ),
    "wide and deep": (WideAndDeep, numbers),
    "a condition for every stage": (Steered, lambda: (picture(), numbers()[: len(picture())])),
}
