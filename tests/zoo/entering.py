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


class Moving(nn.Module):
    """A graph network whose messages change its nodes and move them: two sums that share a network (EGNN)."""

    def __init__(self) -> None:
        super().__init__()
        self.message = nn.Sequential(nn.Linear(2 * D + 1, D), nn.SiLU(), nn.Linear(D, D))
        self.node = nn.Sequential(nn.Linear(2 * D, D), nn.SiLU(), nn.Linear(D, D))
        self.move = nn.Sequential(nn.Linear(D, D), nn.SiLU(), nn.Linear(D, 1))

    def forward(self, h: Tensor, at: Tensor) -> tuple[Tensor, Tensor]:
        apart, nodes = at[:, :, None] - at[:, None], h.shape[1]
        pairs = [h[:, :, None].expand(-1, -1, nodes, -1), h[:, None].expand(-1, nodes, -1, -1)]
        message = self.message(torch.cat([*pairs, apart.square().sum(-1, keepdim=True)], -1))
        at = at + (apart * self.move(message)).mean(2)
        return h + self.node(torch.cat([h, message.sum(2)], -1)), at


class Molecule(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.atoms, self.head = nn.Embedding(WORDS, D), nn.Linear(D, CLASSES)
        self.steps = nn.ModuleList(Moving() for _ in range(2))

    def forward(self, kinds: Tensor, at: Tensor) -> Tensor:
        h = self.atoms(kinds)
        for step in self.steps:
            h, at = step(h, at)
        return self.head(h.mean(1)) + at.mean()


class Ensembled(nn.Module):
    """A linear layer that several models share, each with scales before and after it (BatchEnsemble)."""

    def __init__(self, enter: int, leave: int) -> None:
        super().__init__()
        self.before, self.after = nn.Parameter(torch.ones(2, enter)), nn.Parameter(torch.ones(2, leave))
        self.linear = nn.Linear(enter, leave)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x * self.before) * self.after


class Ensemble(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lower, self.upper, self.head = Ensembled(4, D), Ensembled(D, D), nn.Linear(D, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.upper(self.lower(x[:, None]).relu()).mean(1))


class Sensors(nn.Module):
    """Each sensor has a network of its own, and one of them gives a single number."""

    def __init__(self) -> None:
        super().__init__()
        self.nets = nn.ModuleList(nn.Sequential(nn.Linear(n, D), nn.LayerNorm(D)) for n in (4, 1))
        self.kinds = nn.ParameterList(nn.Parameter(torch.zeros(D)) for _ in range(2))
        self.stage, self.head = Stage(), nn.Linear(D, CLASSES)

    def forward(self, *sensors: Tensor) -> Tensor:
        parts = zip(self.nets, sensors, self.kinds, strict=True)
        return self.head(self.stage(torch.stack([net(part) + kind for net, part, kind in parts], 1)).mean(1))


class BareText(nn.Module):
    """A transformer of parameters alone, inside another module."""

    def __init__(self) -> None:
        super().__init__()
        shapes = {"q": (D, D), "k": (D, D), "v": (D, D), "o": (D, D), "up": (D, 2 * D), "down": (2 * D, D)}
        self.words, self.out = nn.Parameter(torch.ones(WORDS, D)), nn.Parameter(torch.ones(D, CLASSES))
        self.stages = nn.ModuleList(
            nn.ParameterDict({name: nn.Parameter(torch.ones(shape)) for name, shape in shapes.items()})
            for _ in range(2)
        )

    def forward(self, ids: Tensor) -> Tensor:
        x = self.words[ids]
        for w in self.stages:
            x = x + ((x @ w["q"] @ (x @ w["k"]).mT).softmax(-1) @ (x @ w["v"])) @ w["o"]
            x = x + (x @ w["up"]).relu() @ w["down"]
        return x @ self.out


class Wrapper(nn.Module):
    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, ids: Tensor) -> Tensor:
        return self.net(ids)[:, 0]


class Pairs(nn.Module):
    """Positions attend with a bias from pairs of positions, and change the pairs in turn (AlphaFold's Evoformer)."""

    def __init__(self) -> None:
        super().__init__()
        self.attn, self.bias, self.up, self.down = (
            Attention(),
            nn.Linear(4, 1),
            nn.Linear(D, 2 * D),
            nn.Linear(2 * D, D),
        )
        self.narrow, self.outer, self.wide, self.back = (nn.Linear(*size) for size in ((D, 2), (4, 4), (4, 8), (8, 4)))

    def forward(self, x: Tensor, pairs: Tensor) -> tuple[Tensor, Tensor]:
        x = x + self.attn(x, self.bias(pairs).permute(0, 3, 1, 2))
        x = x + self.down(F.gelu(self.up(x)))
        side = self.narrow(x)
        pairs = pairs + self.outer((side[:, :, None, :, None] * side[:, None, :, None]).flatten(3))
        return x, pairs + self.back(self.wide(pairs).relu())


class Folding(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words, self.apart, self.head = nn.Embedding(WORDS, D), nn.Embedding(9, 4), nn.Linear(4, CLASSES)
        self.blocks = nn.ModuleList(Pairs() for _ in range(2))

    def forward(self, ids: Tensor) -> Tensor:
        where = torch.arange(ids.shape[1])
        x, pairs = self.words(ids), self.apart((where[:, None] - where).expand(len(ids), -1, -1) + 4)
        for block in self.blocks:
            x, pairs = block(x, pairs)
        return self.head(pairs.mean((1, 2)))


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
    "nodes that move": (Molecule, lambda: (words(), torch.linspace(-1, 1, 30).reshape(2, 5, 3))),
    "models that share matrices": (Ensemble, numbers),
    "sensors with networks of their own": (Sensors, lambda: (numbers(), numbers()[:, :1])),
    "bare parameters in a module": (lambda: Wrapper(BareText()), words),
    "attention biased by pairs": (Folding, words),
}
