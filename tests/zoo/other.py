"""Recurrent networks, towers, graphs, tables, mixers without weights, and models that use their parameters directly."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.parametrizations import weight_norm

from zoo.attentive import WORDS, T, words
from zoo.vision import CLASSES, D


class Tagger(nn.Module):
    """Two recurrent layers, a norm between them."""

    def __init__(self, kind: Callable[..., nn.Module]) -> None:
        super().__init__()
        self.head, self.words = nn.Linear(2 * D, CLASSES), nn.Embedding(WORDS, D)
        self.lower, self.norm = kind(D, D, batch_first=True, bidirectional=True), nn.LayerNorm(2 * D)
        self.upper = kind(2 * D, D, batch_first=True, bidirectional=True)

    def forward(self, ids: Tensor) -> Tensor:
        x, _ = self.lower(self.words(ids))
        x, _ = self.upper(self.norm(x))
        return self.head(x[:, -1])


class OwnCell(nn.Module):
    """A gated recurrent cell written by hand."""

    def __init__(self) -> None:
        super().__init__()
        self.update, self.reset, self.candidate = (nn.Linear(2 * D, D) for _ in range(3))

    def forward(self, x: Tensor, h: Tensor) -> Tensor:
        both = torch.cat([x, h], -1)
        z, r = self.update(both).sigmoid(), self.reset(both).sigmoid()
        return (1 - z) * h + z * self.candidate(torch.cat([x, r * h], -1)).tanh()


class OwnRecurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words, self.cell, self.head = nn.Embedding(WORDS, D), OwnCell(), nn.Linear(D, CLASSES)

    def forward(self, ids: Tensor) -> Tensor:
        h = torch.zeros(len(ids), D)
        for x in self.words(ids).unbind(1):
            h = self.cell(x, h)
        return self.head(h)


class TwoTower(nn.Module):
    """One tower for the first columns, one for the rest, and a head on both."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(2 * D, CLASSES)
        self.right = nn.Sequential(nn.Linear(4, D), nn.ReLU(), nn.Linear(D, D), nn.ReLU())
        self.left = nn.Sequential(nn.Linear(2, D), nn.BatchNorm1d(D), nn.ReLU(), nn.Linear(D, D), nn.ReLU())

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.cat([self.left(x[:, :2]), self.right(x[:, 2:])], 1))


class Recommender(nn.Module):
    """A table and a tower for users, the same for items, and a product of both."""

    def __init__(self) -> None:
        super().__init__()
        self.users, self.items = nn.Embedding(WORDS, D), nn.Embedding(WORDS, D)
        self.user_tower = nn.Sequential(nn.Linear(D, D), nn.ReLU(), nn.Linear(D, D))
        self.item_tower = nn.Sequential(nn.Linear(D, D), nn.ReLU(), nn.Linear(D, D))

    def forward(self, user: Tensor, item: Tensor) -> Tensor:
        return (self.user_tower(self.users(user)) * self.item_tower(self.items(item))).sum(-1)


class TemporalBlock(nn.Module):
    def __init__(self, enter: int, leave: int, dilation: int) -> None:
        super().__init__()
        self.conv1 = weight_norm(nn.Conv1d(enter, leave, 3, padding=dilation, dilation=dilation))
        self.conv2 = weight_norm(nn.Conv1d(leave, leave, 3, padding=dilation, dilation=dilation))
        self.resize = nn.Conv1d(enter, leave, 1) if enter != leave else None

    def forward(self, x: Tensor) -> Tensor:
        h = self.conv2(self.conv1(x).relu()).relu()
        return (h + (x if self.resize is None else self.resize(x))).relu()


class TCN(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words, self.head = nn.Embedding(WORDS, 4), nn.Linear(D, CLASSES)
        self.network = nn.Sequential(TemporalBlock(4, D, 1), TemporalBlock(D, D, 2))

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(self.network(self.words(ids).transpose(1, 2))[..., -1])


class WaveBlock(nn.Module):
    """Gated convolutions; one result goes on, another goes to the output."""

    def __init__(self) -> None:
        super().__init__()
        self.filter, self.gate = nn.Conv1d(D, D, 3, padding=1), nn.Conv1d(D, D, 3, padding=1)
        self.onward, self.out = nn.Conv1d(D, D, 1), nn.Conv1d(D, 4, 1)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        h = self.filter(x).tanh() * self.gate(x).sigmoid()
        return x + self.onward(h), self.out(h)


class WaveNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words, self.blocks = nn.Embedding(WORDS, D), nn.ModuleList(WaveBlock() for _ in range(3))
        self.head = nn.Linear(4, CLASSES)

    def forward(self, ids: Tensor) -> Tensor:
        x, total = self.words(ids).transpose(1, 2), torch.zeros(())
        for block in self.blocks:
            x, out = block(x)
            total = total + out
        return self.head(total.relu().mean(-1))


class GraphConvolution(nn.Module):
    def __init__(self, enter: int, leave: int) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.ones(enter, leave) / enter), nn.Parameter(torch.zeros(leave))

    def forward(self, x: Tensor, edges: Tensor) -> Tensor:
        return torch.sparse.mm(edges, x @ self.weight) + self.bias


class GraphNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.conv2, self.head = GraphConvolution(4, D), GraphConvolution(D, D), nn.Linear(D, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        edges = torch.eye(len(x)).to_sparse()
        return self.head(self.conv2(self.conv1(x, edges).relu(), edges).relu())


class TextCnn(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words, self.head = nn.Embedding(WORDS, D), nn.Linear(6, CLASSES)
        self.convs = nn.ModuleList(nn.Conv1d(D, 2, size) for size in (2, 3, 4))

    def forward(self, ids: Tensor) -> Tensor:
        x = self.words(ids).transpose(1, 2)
        return self.head(torch.cat([conv(x).relu().amax(-1) for conv in self.convs], 1))


class Tabular(nn.Module):
    """A table for each column of categories, concatenated with the numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.tables = nn.BatchNorm1d(3), nn.ModuleList(nn.Embedding(WORDS, 2) for _ in range(3))
        self.body, self.out = nn.Sequential(nn.Linear(9, D), nn.ReLU(), nn.BatchNorm1d(D)), nn.Linear(D, CLASSES)

    def forward(self, numbers: Tensor, categories: Tensor) -> Tensor:
        looked_up = [table(column) for table, column in zip(self.tables, categories.unbind(1), strict=True)]
        return self.out(self.body(torch.cat([*looked_up, self.norm(numbers)], 1)))


class Functional(nn.Module):
    """No modules at all: a list of parameters."""

    def __init__(self) -> None:
        super().__init__()
        sizes = (4, D, D, CLASSES)
        self.weights = nn.ParameterList(torch.full((a, b), 0.1) for a, b in pairwise(sizes))
        self.biases = nn.ParameterList(torch.zeros(b) for b in sizes[1:])

    def forward(self, x: Tensor) -> Tensor:
        for weight, bias in zip(self.weights, self.biases, strict=True):
            x = x @ weight + bias
        return x


class TiedAutoencoder(nn.Module):
    """The decoder uses the encoder's weights, transposed."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two, self.shift = nn.Linear(4, D), nn.Linear(D, 2), nn.Parameter(torch.zeros(D))

    def forward(self, x: Tensor) -> Tensor:
        x = self.two(self.one(x).relu())
        x = (F.linear(x, self.two.weight.t()) + self.shift).relu()
        return F.linear(x, self.one.weight.t())


class Variational(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.enter, self.mean, self.spread = nn.Linear(4, D), nn.Linear(D, 2), nn.Linear(D, 2)
        self.decoder = nn.Sequential(nn.Linear(2, D), nn.ReLU(), nn.Linear(D, 4))

    def forward(self, x: Tensor) -> Tensor:
        h = self.enter(x).relu()
        mean, spread = self.mean(h), self.spread(h)
        return self.decoder(mean + (spread / 2).exp() * torch.randn_like(spread))


class Bags(nn.Module):
    """Attention pooling over the instances of a bag, gated (multiple-instance learning)."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(4, D), nn.ReLU(), nn.Linear(D, D), nn.ReLU())
        self.value, self.gate, self.score = nn.Linear(D, D), nn.Linear(D, D), nn.Linear(D, 1)
        self.classifier = nn.Linear(D, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        h = self.encoder(x)
        weights = self.score(self.value(h).tanh() * self.gate(h).sigmoid()).transpose(0, 1).softmax(-1)
        return self.classifier(weights @ h)


class Experts(nn.Module):
    """A sparse feed-forward: a router chooses among experts (Mixtral), inside a residual stream."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.router = nn.LayerNorm(D), nn.Linear(D, 3)
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(D, 2 * D), nn.SiLU(), nn.Linear(2 * D, D)) for _ in range(3)
        )

    def forward(self, x: Tensor) -> Tensor:
        h = self.norm(x)
        shares = self.router(h).softmax(-1)
        out = torch.zeros_like(x)
        for number, expert in enumerate(self.experts):
            out = out + shares[..., number, None] * expert(h)
        return x + out


class Diffusion(nn.Module):
    """A denoiser: the time goes into every residual block."""

    def __init__(self) -> None:
        super().__init__()
        self.time = nn.Sequential(nn.Linear(1, D), nn.SiLU(), nn.Linear(D, D))
        self.enter, self.blocks, self.out = (
            nn.Conv1d(4, D, 1),
            nn.ModuleList([TimedBlock(), TimedBlock()]),
            nn.Conv1d(D, 4, 1),
        )

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        when, x = self.time(t), self.enter(x)
        for block in self.blocks:
            x = block(x, when)
        return self.out(x).mean(-1)


class TimedBlock(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.conv1, self.when = nn.GroupNorm(2, D), nn.Conv1d(D, D, 3, padding=1), nn.Linear(D, D)
        self.norm2, self.conv2 = nn.GroupNorm(2, D), nn.Conv1d(D, D, 3, padding=1)

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        h = self.conv1(F.silu(self.norm1(x))) + self.when(F.silu(t))[..., None]
        return x + self.conv2(F.silu(self.norm2(h)))


def numbers() -> Tensor:
    return torch.linspace(-1, 1, 8).reshape(2, 4)


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


OTHER: dict[str, tuple[Callable[[], nn.Module], Callable[[], Any]]] = {
    "LSTM, two layers": (lambda: Tagger(nn.LSTM), words),
    "GRU, two layers": (lambda: Tagger(nn.GRU), words),
    "recurrent cell by hand": (OwnRecurrent, words),
    "two towers": (TwoTower, lambda: torch.linspace(-1, 1, 12).reshape(2, 6)),
    "recommender": (Recommender, lambda: (torch.tensor([1, 2]), torch.tensor([3, 4]))),
    "TCN": (TCN, words),
    "WaveNet": (WaveNet, words),
    "graph convolutions": (GraphNet, numbers),
    "text CNN": (TextCnn, words),
    "tables and numbers": (Tabular, lambda: (torch.ones(2, 3), torch.tensor([[1, 2, 3], [4, 5, 6]]))),
    "a list of parameters": (Functional, numbers),
    "autoencoder, tied": (TiedAutoencoder, numbers),
    "variational autoencoder": (Variational, numbers),
    "attention pooling": (Bags, numbers),
    "mixture of experts": (
        lambda: nn.Sequential(nn.Embedding(WORDS, D), Experts(), Experts(), nn.LayerNorm(D), nn.Linear(D, CLASSES)),
        words,
    ),
    "denoiser": (Diffusion, lambda: (torch.ones(2, 4, T), torch.ones(2, 1))),
    "token shift": (lambda: _Classifier(TokenShift), words),
    "pooling as a mixer": (lambda: _Classifier(Pooling), words),
    "Fourier transform as a mixer": (lambda: _Classifier(Fourier), words),
}
