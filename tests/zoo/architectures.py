"""The zoo: 34 tiny models of common kinds, each with inputs it can read."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

CLASSES, FEATURES, WORDS, LENGTH, SIDE, WIDTH = 3, 6, 11, 5, 6, 8
Maker = Callable[[int, torch.Generator], Any]


def features(rows: int, random: torch.Generator) -> Tensor:
    return torch.randn(rows, FEATURES, generator=random, dtype=torch.float64)


def images(rows: int, random: torch.Generator) -> Tensor:
    return torch.randn(rows, 2, SIDE, SIDE, generator=random, dtype=torch.float64)


def series(rows: int, random: torch.Generator) -> Tensor:
    return torch.randn(rows, LENGTH, 4, generator=random, dtype=torch.float64)


def tokens(rows: int, random: torch.Generator) -> Tensor:
    return torch.randint(WORDS, (rows, LENGTH), generator=random)


def two_inputs(rows: int, random: torch.Generator) -> tuple[Tensor, Tensor]:
    return features(rows, random), series(rows, random)


def named_inputs(rows: int, random: torch.Generator) -> dict[str, Tensor]:
    mask = (torch.arange(LENGTH) < torch.randint(1, LENGTH + 1, (rows, 1), generator=random)).double()
    return {"input_ids": tokens(rows, random), "attention_mask": mask}


def mlp(
    *sizes: int, activation: Callable[[], nn.Module] = nn.ReLU, between: Any = None, bias: bool = True
) -> nn.Module:
    """Linear layers with an activation, and perhaps something more, after each but the last."""
    parts: list[nn.Module] = []
    for number, (enter, leave) in enumerate(pairwise(sizes)):
        parts.append(nn.Linear(enter, leave, bias=bias))
        if number < len(sizes) - 2:
            parts += [between(leave)] if between else []
            parts.append(activation())
    return nn.Sequential(*parts)


def frozen(model: nn.Module, *names: str) -> nn.Module:
    for name in names:
        model.get_submodule(name).requires_grad_(False)
    return model


class ResidualMlp(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.enter = nn.Linear(FEATURES, WIDTH)
        self.blocks = nn.ModuleList(mlp(WIDTH, 2 * WIDTH, WIDTH) for _ in range(2))
        self.leave = nn.Linear(WIDTH, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = self.enter(x)
        for block in self.blocks:
            x = x + block(x)
        out: Tensor = self.leave(x)
        return out


class UsedTwice(nn.Module):
    """One linear layer at two depths."""

    def __init__(self) -> None:
        super().__init__()
        self.enter = nn.Linear(FEATURES, WIDTH)
        self.inner = nn.Linear(WIDTH, WIDTH)
        self.leave = nn.Linear(WIDTH, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.leave(self.inner(F.relu(self.inner(F.relu(self.enter(x))))).relu())
        return out


class TwoTowers(nn.Module):
    """Takes two tensors; the towers are registered in the reverse of the order in which they run."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(2 * WIDTH, CLASSES)
        self.second = nn.Linear(LENGTH * 4, WIDTH)
        self.first = nn.Linear(FEATURES, WIDTH)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        out: Tensor = self.head(torch.cat([self.first(x), self.second(y.flatten(1))], dim=1).relu())
        return out


class DictOutputs(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = mlp(FEATURES, WIDTH, WIDTH), nn.Linear(WIDTH, CLASSES)

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        hidden = self.body(x)
        return {"logits": self.head(hidden), "hidden": hidden}


class TupleOutputs(DictOutputs):
    def forward(self, x: Tensor) -> Any:
        return tuple(super().forward(x).values())


def cnn(norm: Callable[[int], nn.Module] | None = None, **options: Any) -> nn.Module:
    def block(enter: int, leave: int) -> list[nn.Module]:
        return [nn.Conv2d(enter, leave, 3, padding=1, **options), *([norm(leave)] if norm else []), nn.ReLU()]

    return nn.Sequential(*block(2, 4), nn.MaxPool2d(2), *block(4, WIDTH), nn.Flatten(), nn.Linear(WIDTH * 9, CLASSES))


class ResidualCnn(nn.Module):
    """A stem, a block with its own shortcut, a mean over positions."""

    def __init__(self, norm: Callable[[int], nn.Module]) -> None:
        super().__init__()
        self.stem, self.norm = nn.Conv2d(2, 4, 3, padding=1), norm(4)
        self.conv = nn.Conv2d(4, WIDTH, 3, stride=2, padding=1)
        self.shortcut = nn.Conv2d(4, WIDTH, 1, stride=2)
        self.head = nn.Linear(WIDTH, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(self.stem(x)).relu()
        x = (self.conv(x) + self.shortcut(x)).relu()
        out: Tensor = self.head(x.mean((2, 3)))
        return out


class SqueezeExcite(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(2, WIDTH, 3)
        self.squeeze, self.excite = nn.Linear(WIDTH, 2), nn.Linear(2, WIDTH)
        self.head = nn.Linear(WIDTH, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = self.conv(x).relu()
        gate = self.excite(self.squeeze(x.mean((2, 3))).relu()).sigmoid()
        out: Tensor = self.head((x * gate[:, :, None, None]).mean((2, 3)))
        return out


def depthwise() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(2, 4, 1), nn.Conv2d(4, 4, 3, padding=1, groups=4), nn.ReLU(), nn.Conv2d(4, WIDTH, 1), nn.ReLU(),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(WIDTH, CLASSES),
    )  # fmt: skip


class TemporalCnn(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.conv2 = nn.Conv1d(4, WIDTH, 3, padding=1), nn.Conv1d(WIDTH, WIDTH, 3, dilation=2)
        self.head = nn.Linear(WIDTH, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = self.conv2(self.conv1(x.transpose(1, 2)).relu()).relu()
        out: Tensor = self.head(x.amax(2))
        return out


class Attention(nn.Module):
    def __init__(self, *, causal: bool = False) -> None:
        super().__init__()
        self.norm, self.project, self.leave = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.causal = causal

    def forward(self, x: Tensor) -> Tensor:
        query, key, value = self.project(self.norm(x)).chunk(3, dim=-1)
        scores = query @ key.transpose(-2, -1) / WIDTH**0.5
        if self.causal:
            scores = scores + torch.full((x.shape[-2], x.shape[-2]), -1e9, dtype=x.dtype).triu(1)
        out: Tensor = x + self.leave(scores.softmax(-1) @ value)
        return out


class LanguageModel(nn.Module):
    """Predicts the next word, with the table of the embedding as its last layer: the two are one tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(WORDS, WIDTH)
        self.places = nn.Parameter(torch.zeros(LENGTH, WIDTH))
        self.attention = Attention(causal=True)
        self.head = nn.Linear(WIDTH, WORDS, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.attention(self.embedding(x) + self.places)[:, -1])
        return out


class MaskedEncoder(nn.Module):
    """Keyword inputs as Hugging Face has them: ids and a mask."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.attention, self.head = nn.Embedding(WORDS, WIDTH), Attention(), nn.Linear(WIDTH, CLASSES)

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> dict[str, Tensor]:
        hidden = self.attention(self.embedding(input_ids)) * attention_mask.unsqueeze(-1)
        return {"logits": self.head(hidden.sum(1) / attention_mask.sum(1, keepdim=True))}


class TorchEncoder(nn.Module):
    """torch's own encoder layer."""

    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        self.embedding = nn.Embedding(WORDS, WIDTH)
        self.layer = nn.TransformerEncoderLayer(WIDTH, 2, 2 * WIDTH, dropout, batch_first=True)
        self.head = nn.Linear(WIDTH, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.layer(self.embedding(x)).mean(1))
        return out


class VisionTransformer(nn.Module):
    """Patches, a class token and positions, which are parameters of the model itself."""

    def __init__(self) -> None:
        super().__init__()
        self.token = nn.Parameter(torch.zeros(1, 1, WIDTH))
        self.places = nn.Parameter(torch.zeros(1, 5, WIDTH))
        self.patches = nn.Conv2d(2, WIDTH, 3, stride=3)
        self.attention, self.head = Attention(), nn.Linear(WIDTH, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        patches = self.patches(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(len(patches), -1, -1), patches], dim=1) + self.places
        out: Tensor = self.head(self.attention(x)[:, 0])
        return out


class Recurrent(nn.Module):
    def __init__(self, kind: type[nn.RNNBase], **options: Any) -> None:
        super().__init__()
        self.recurrent = kind(4, WIDTH, batch_first=True, **options)
        self.head = nn.Linear(WIDTH * (2 if options.get("bidirectional") else 1), CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.recurrent(x)[0][:, -1])
        return out


class BagOfWords(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.bag, self.head = nn.EmbeddingBag(WORDS, WIDTH, mode="mean"), nn.Linear(WIDTH, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.bag(x))
        return out


class LowRank(nn.Module):
    """A frozen linear layer and a trainable low-rank update to it (LoRA)."""

    def __init__(self, enter: int, leave: int) -> None:
        super().__init__()
        self.base = nn.Linear(enter, leave).requires_grad_(False)
        self.down, self.up = nn.Linear(enter, 2, bias=False), nn.Linear(2, leave, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.base(x) + self.up(self.down(x))
        return out


class Adapted(nn.Module):
    """A frozen body with a trained bottleneck after each layer (adapters)."""

    def __init__(self) -> None:
        super().__init__()
        sizes = (FEATURES, WIDTH, WIDTH)
        self.body = nn.ModuleList(nn.Linear(a, b).requires_grad_(False) for a, b in pairwise(sizes))
        self.adapters = nn.ModuleList(mlp(WIDTH, 2, WIDTH) for _ in self.body)
        self.head = nn.Linear(WIDTH, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        for layer, adapter in zip(self.body, self.adapters, strict=True):
            x = layer(x).relu()
            x = x + adapter(x)
        out: Tensor = self.head(x)
        return out


class Experts(nn.Module):
    """Two experts, weighted by a gate."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Linear(FEATURES, 2)
        self.experts = nn.ModuleList(mlp(FEATURES, WIDTH, CLASSES) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        shares = self.gate(x).softmax(-1)
        return sum((shares[:, i, None] * expert(x) for i, expert in enumerate(self.experts)), torch.zeros(()))


def weight_normed() -> nn.Module:
    model = mlp(FEATURES, WIDTH, CLASSES)
    nn.utils.parametrizations.weight_norm(model[0])  # type: ignore[index]
    return model


@dataclass(frozen=True)
class Architecture:
    build: Callable[[], nn.Module]
    inputs: Maker
    first: str
    """The first layer; a module's own parameters come before those of the modules in it."""
    stacks: bool
    """Whether it can be trained with many others in one computation."""


ZOO: dict[str, Architecture] = {
    "logistic regression": Architecture(lambda: nn.Linear(FEATURES, CLASSES), features, "", True),
    "MLP": Architecture(lambda: mlp(FEATURES, WIDTH, WIDTH, CLASSES), features, "0", True),
    "MLP of 8 layers, tanh, no bias": Architecture(
        lambda: mlp(FEATURES, *[WIDTH] * 7, CLASSES, activation=nn.Tanh, bias=False), features, "0", True
    ),
    "MLP, batch norm": Architecture(
        lambda: mlp(FEATURES, WIDTH, CLASSES, between=nn.BatchNorm1d), features, "0", False
    ),
    "MLP, layer norm": Architecture(lambda: mlp(FEATURES, WIDTH, CLASSES, between=nn.LayerNorm), features, "0", True),
    "MLP, dropout": Architecture(
        lambda: mlp(FEATURES, WIDTH, CLASSES, between=lambda _: nn.Dropout(0.2)), features, "0", False
    ),
    "MLP, PReLU": Architecture(lambda: mlp(FEATURES, WIDTH, CLASSES, activation=nn.PReLU), features, "0", True),
    "MLP, weight norm": Architecture(weight_normed, features, "0", False),
    "MLP, residual": Architecture(ResidualMlp, features, "enter", True),
    "MLP, one layer used twice": Architecture(UsedTwice, features, "enter", True),
    "MLP, first layer frozen": Architecture(
        lambda: frozen(mlp(FEATURES, WIDTH, WIDTH, CLASSES), "0"), features, "0", True
    ),
    "MLP, only the head trains": Architecture(
        lambda: frozen(mlp(FEATURES, WIDTH, WIDTH, CLASSES), "0", "2"), features, "0", True
    ),
    "two experts and a gate": Architecture(Experts, features, "gate", True),
    "two inputs": Architecture(TwoTowers, two_inputs, "first", True),
    "outputs in a dict": Architecture(DictOutputs, features, "body.0", True),
    "outputs in a tuple": Architecture(TupleOutputs, features, "body.0", True),
    "low-rank adapters (LoRA)": Architecture(
        lambda: nn.Sequential(LowRank(FEATURES, WIDTH), nn.ReLU(), LowRank(WIDTH, CLASSES)), features, "0", True
    ),
    "bottleneck adapters": Architecture(Adapted, features, "body.0", True),
    "CNN": Architecture(cnn, images, "0", True),
    "CNN, batch norm": Architecture(lambda: cnn(nn.BatchNorm2d), images, "0", False),
    "CNN, group norm": Architecture(lambda: cnn(lambda n: nn.GroupNorm(2, n)), images, "0", True),
    "CNN, instance norm": Architecture(lambda: cnn(lambda n: nn.InstanceNorm2d(n, affine=True)), images, "0", True),
    "CNN, residual, batch norm": Architecture(lambda: ResidualCnn(nn.BatchNorm2d), images, "stem", False),
    "CNN, residual, group norm": Architecture(lambda: ResidualCnn(lambda n: nn.GroupNorm(2, n)), images, "stem", True),
    "CNN, depthwise": Architecture(depthwise, images, "0", True),
    "CNN, squeeze-and-excitation": Architecture(SqueezeExcite, images, "conv", True),
    "temporal CNN": Architecture(TemporalCnn, series, "conv1", True),
    "bag of words": Architecture(BagOfWords, tokens, "bag", False),
    "transformer, tied embeddings": Architecture(LanguageModel, tokens, "embedding", True),
    "transformer, named inputs with a mask": Architecture(MaskedEncoder, named_inputs, "embedding", True),
    "transformer, torch's encoder": Architecture(TorchEncoder, tokens, "embedding", False),
    "transformer, dropout": Architecture(lambda: TorchEncoder(0.1), tokens, "embedding", False),
    "vision transformer": Architecture(VisionTransformer, images, "patches", True),
    "LSTM": Architecture(lambda: Recurrent(nn.LSTM), series, "recurrent", False),
    "GRU, bidirectional": Architecture(lambda: Recurrent(nn.GRU, bidirectional=True), series, "recurrent", False),
}
