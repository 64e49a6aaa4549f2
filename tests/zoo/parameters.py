"""Models that hold their weights in unusual places: parametrised, bare, in buffers, in nested or reversed lists."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.ao.quantization import DeQuantStub, QuantStub
from torch.nn import functional as F
from torch.nn.utils.parametrizations import orthogonal, spectral_norm, weight_norm

from zoo.attentive import WORDS, Stage, T, heads, merged, words
from zoo.blocks import Cross, numbers
from zoo.vision import CLASSES, D, picture


class Dora(nn.Module):
    """A frozen weight, a low-rank update and a magnitude, combined into one weight."""

    def __init__(self, enter: int, leave: int) -> None:
        super().__init__()
        self.base = nn.Linear(enter, leave).requires_grad_(False)
        self.magnitude = nn.Parameter(self.base.weight.norm(dim=1))
        self.lora_a, self.lora_b = nn.Parameter(torch.ones(2, enter)), nn.Parameter(torch.zeros(leave, 2))

    def forward(self, x: Tensor) -> Tensor:
        weight = self.base.weight + self.lora_b @ self.lora_a
        return F.linear(x, self.magnitude[:, None] * weight / weight.norm(dim=1, keepdim=True), self.base.bias)


class DoraOfModules(nn.Module):
    """The same, as PEFT writes it: factors are modules, and the norm comes from the identity matrix."""

    def __init__(self, enter: int, leave: int) -> None:
        super().__init__()
        self.base = nn.Linear(enter, leave).requires_grad_(False)
        self.magnitude = nn.ParameterDict({"default": self.base.weight.norm(dim=1)})
        self.lora_a, self.lora_b = (
            nn.ModuleDict({"default": nn.Linear(enter, 2, bias=False)}),
            nn.ModuleDict({"default": nn.Linear(2, leave, bias=False)}),
        )

    def forward(self, x: Tensor) -> Tensor:
        a, b = self.lora_a["default"], self.lora_b["default"]
        update = b(a(torch.eye(x.shape[-1]))).t()
        scale = self.magnitude["default"] / (self.base.weight + update).norm(dim=1).detach()
        return self.base(x) + (scale - 1) * F.linear(x, self.base.weight) + scale * b(a(x))


class Bare(nn.Module):
    """Everything through torch.nn.functional, norms included."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.ones(WORDS, D))
        self.w1, self.b1 = nn.Parameter(torch.ones(2 * D, D) / D), nn.Parameter(torch.zeros(2 * D))
        self.w2, self.b2 = nn.Parameter(torch.ones(D, 2 * D) / D), nn.Parameter(torch.zeros(D))
        self.g, self.h = nn.Parameter(torch.ones(D)), nn.Parameter(torch.zeros(D))
        self.out = nn.Parameter(torch.ones(CLASSES, D) / D)

    def forward(self, ids: Tensor) -> Tensor:
        x = F.embedding(ids, self.table)
        h = F.linear(F.layer_norm(x, (D,), self.g, self.h), self.w1, self.b1)
        x = x + F.linear(F.gelu(h), self.w2, self.b2)
        return F.linear(x.mean(1), self.out)


class Reversed(nn.Module):
    """Layers are listed from output to input."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(4 if n == 3 else D, CLASSES if n == 0 else D) for n in range(4))
        self.norms = nn.ModuleList(nn.BatchNorm1d(D) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        for number in (3, 2, 1):
            x = self.norms[number - 1](self.layers[number](x)).relu()
        return self.layers[0](x)


class Quantised(nn.Module):
    """Stubs around the network, as for training with quantisation."""

    def __init__(self) -> None:
        super().__init__()
        self.quant, self.dequant = QuantStub(), DeQuantStub()
        self.conv1, self.bn1 = nn.Conv2d(2, D, 3, 2, 1), nn.BatchNorm2d(D)
        self.conv2, self.bn2, self.fc = nn.Conv2d(D, D, 3, 2, 1), nn.BatchNorm2d(D), nn.Linear(D, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = self.bn1(self.conv1(self.quant(x))).relu()
        x = self.bn2(self.conv2(x)).relu()
        return self.dequant(self.fc(x.mean((2, 3))))


class Codebook(nn.Module):
    """The nearest code replaces what was encoded; codes are a parameter, or a buffer moved by averages."""

    def __init__(self, *, averaged: bool) -> None:
        super().__init__()
        codes = torch.linspace(-1, 1, 5 * D).reshape(5, D)
        if averaged:
            self.register_buffer("codes", codes)
            self.register_buffer("sizes", torch.zeros(5))
        else:
            self.codes = nn.Parameter(codes)

    def forward(self, z: Tensor) -> Tensor:
        nearest = torch.cdist(z, self.codes).argmin(-1)
        return z + (F.embedding(nearest, self.codes) - z).detach()


class VectorQuantised(nn.Module):
    def __init__(self, *, averaged: bool) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(4, D), nn.ReLU(), nn.Linear(D, D))
        self.book = Codebook(averaged=averaged)
        self.decoder = nn.Sequential(nn.Linear(D, D), nn.ReLU(), nn.Linear(D, 4))

    def forward(self, x: Tensor) -> Tensor:
        return self.decoder(self.book(self.encoder(x)))


class Scaled(nn.Module):
    """Constants of the data in buffers: inputs are standardised, outputs brought back to their units."""

    def __init__(self) -> None:
        super().__init__()
        for name, value in (("mean", 0.0), ("spread", 1.0), ("unit", 10.0)):
            self.register_buffer(name, torch.tensor([value]))
        self.register_buffer("seen", torch.tensor(0))
        self.body, self.out = nn.Sequential(nn.Linear(4, D), nn.ReLU(), nn.Linear(D, D), nn.ReLU()), nn.Linear(D, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.body((x - self.mean) / self.spread)) * self.unit


class Temperature(nn.Module):
    """A module with nothing but a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("temperature", torch.ones(1))

    def forward(self, x: Tensor) -> Tensor:
        return x / self.temperature


class Positions(nn.Module):
    """Sines as positions, in a buffer of a module of their own."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("sines", torch.linspace(0, 1, 8 * D).reshape(1, 8, D).sin())

    def forward(self, x: Tensor) -> Tensor:
        return x + self.sines[:, : x.shape[1]]


class TwoHeads(nn.Module):
    """Two results in a dict, one of them from the middle."""

    def __init__(self) -> None:
        super().__init__()
        self.heads = nn.ModuleDict({"kind": nn.Linear(D, CLASSES), "size": nn.Linear(D, 1), "later": nn.Linear(D, 2)})
        self.one, self.two = nn.Linear(4, D), nn.Linear(D, D)

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        x = self.one(x).relu()
        size = self.heads["size"](x)
        return {"size": size, "kind": self.heads["kind"](self.two(x).relu())}


class Pair(nn.Module):
    """Pictures and texts side by side, and a learnt temperature (CLIP)."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones([]))
        self.text = nn.Sequential(nn.EmbeddingBag(WORDS, D), nn.Linear(D, D), nn.ReLU(), nn.Linear(D, 4, bias=False))
        self.image = nn.Sequential(
            nn.Conv2d(2, D, 4, 4), nn.ReLU(), nn.Flatten(), nn.Linear(4 * D, D), nn.ReLU(), nn.Linear(D, 4, bias=False)
        )

    def forward(self, x: Tensor, ids: Tensor) -> Tensor:
        a, b = F.normalize(self.image(x), dim=-1), F.normalize(self.text(ids), dim=-1)
        return self.scale.exp() * a @ b.t()


class Hyper(nn.Module):
    """A small network writes the weights of the main one."""

    def __init__(self) -> None:
        super().__init__()
        self.context, self.write = nn.Parameter(torch.ones(1, 3)), nn.Linear(3, 4 * D)
        self.bias, self.out = nn.Parameter(torch.zeros(D)), nn.Linear(D, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        weight = self.write(self.context).view(D, 4)
        return self.out(F.linear(x, weight, self.bias).relu())


def with_weights_of_weights() -> nn.Module:
    return nn.Sequential(
        weight_norm(nn.Conv2d(2, D, 3, 2, 1)), nn.BatchNorm2d(D), nn.ReLU(), spectral_norm(nn.Conv2d(D, D, 3, 2, 1)),
        nn.GroupNorm(2, D), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), orthogonal(nn.Linear(D, D)),
        nn.Linear(D, CLASSES),
    )  # fmt: skip


def nested() -> nn.Module:
    def stage(enter: int, leave: int) -> nn.Module:
        return nn.Sequential(nn.Sequential(nn.Linear(enter, leave), nn.BatchNorm1d(leave)), nn.Sequential(nn.ReLU()))

    return nn.Sequential(nn.Sequential(stage(4, D), stage(D, D)), nn.Sequential(nn.Sequential(nn.Linear(D, CLASSES))))


def materialised() -> nn.Module:
    net = nn.Sequential(nn.LazyConv2d(D, 3), nn.LazyBatchNorm2d(), nn.ReLU(), nn.Flatten(), nn.LazyLinear(CLASSES))
    net(picture())
    return net


def adapted(kind: Callable[[int, int], nn.Module]) -> nn.Module:
    return nn.Sequential(kind(4, D), nn.ReLU(), kind(D, D), nn.ReLU(), nn.Linear(D, CLASSES))


class FrozenNorm(nn.Module):
    """A batch norm whose weights and statistics are all buffers, as detectors have it."""

    def __init__(self) -> None:
        super().__init__()
        for name, value in (("weight", 1.0), ("bias", 0.0), ("running_mean", 0.0), ("running_var", 1.0)):
            self.register_buffer(name, torch.full((D,), value))

    def forward(self, x: Tensor) -> Tensor:
        scale = self.weight * (self.running_var + 1e-5).rsqrt()
        return x * scale[:, None, None] + (self.bias - self.running_mean * scale)[:, None, None]


class FrozenNorms(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.convs = nn.ModuleList(nn.Conv2d(2 if not i else D, D, 3, padding=1) for i in range(3))
        self.norms, self.fc = nn.ModuleList(FrozenNorm() for _ in range(3)), nn.Linear(D, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        for conv, norm in zip(self.convs, self.norms, strict=True):
            x = norm(conv(x)).relu()
        return self.fc(x.mean((2, 3)))


class NumberTokens(nn.Module):
    """Every number becomes a vector by a product; a class token; a mask token for training; two heads, averaged."""

    def __init__(self) -> None:
        super().__init__()
        self.mask = nn.Parameter(torch.zeros(D))
        self.weight, self.bias = nn.Parameter(torch.randn(4, D)), nn.Parameter(torch.randn(4, D))
        self.first = nn.Parameter(torch.randn(1, 1, D))
        self.block, self.norm = Stage(), nn.LayerNorm(D)
        self.head, self.distilled = nn.Linear(D, CLASSES), nn.Linear(D, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = x[..., None] * self.weight + self.bias
        x = self.norm(self.block(torch.cat([self.first.expand(len(x), -1, -1), x], 1)))
        return (self.head(x[:, 0]) + self.distilled(x[:, 1])) / 2


class Rotated(nn.Module):
    """A table of angles that turns the queries and keys of all blocks (RoFormer)."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.angles = nn.Embedding(WORDS, D), nn.Embedding(T, D // 2)
        self.blocks = nn.ModuleList(
            nn.ModuleDict({name: nn.Linear(D, D) for name in ("q", "k", "v", "out")}) for _ in range(2)
        )
        self.head = nn.Linear(D, CLASSES)

    def forward(self, ids: Tensor) -> Tensor:
        x, angles = self.words(ids), self.angles(torch.arange(T))
        for block in self.blocks:
            q, k = (heads(block[name](x)) * angles.cos() for name in ("q", "k"))
            x = x + block["out"](merged(F.scaled_dot_product_attention(q, k, heads(block["v"](x)))))
        return self.head(x.mean(1))


class AddsPositions(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table, self.token = nn.Parameter(torch.randn(T + 1, D)), nn.Parameter(torch.randn(1, 1, D))

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([self.token.expand(len(x), -1, -1), x], 1) + self.table


class TiedHeadWithConstant(nn.Module):
    """The head has the embedding's weights, and a buffer that is added to its result (BART)."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.norm, self.block = nn.Embedding(WORDS, D), nn.LayerNorm(D), nn.Linear(D, D)
        self.head = nn.Linear(D, WORDS, bias=False)
        self.head.weight = self.words.weight
        self.register_buffer("shift", torch.zeros(WORDS))

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(self.norm(self.block(self.words(ids)).relu())) + self.shift


class OneStageTranslator(nn.Module):
    """Pre-norm encoder with a last norm of its own, which a single cross-attention reads."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.ModuleDict({"words": nn.Embedding(WORDS, D), "stage": Stage(), "norm": nn.LayerNorm(D)})
        self.decoder = nn.ModuleDict({"words": nn.Embedding(WORDS, D), "cross": Cross(False), "norm": nn.LayerNorm(D)})
        self.head = nn.Linear(D, CLASSES)

    def forward(self, ids: Tensor) -> Tensor:
        memory = self.encoder["norm"](self.encoder["stage"](self.encoder["words"](ids)))
        x = self.decoder["words"](ids)
        return self.head(self.decoder["norm"](x + self.decoder["cross"](x, memory)).mean(1))


PARAMETERS: dict[str, tuple[Callable[[], nn.Module], Callable[[], Any]]] = {
    "DoRA": (lambda: adapted(Dora), numbers),
    "DoRA of modules": (lambda: adapted(DoraOfModules), numbers),
    "weight norm, spectral norm, orthogonal": (with_weights_of_weights, picture),
    "bare parameters and functions": (Bare, words),
    "a list in reverse": (Reversed, numbers),
    "sequences of sequences": (nested, numbers),
    "lazy modules, once they have shapes": (materialised, picture),
    "stubs for quantisation": (Quantised, picture),
    "codebook": (lambda: VectorQuantised(averaged=False), numbers),
    "codebook moved by averages": (lambda: VectorQuantised(averaged=True), numbers),
    "constants of the data": (Scaled, numbers),
    "a module with a buffer alone": (
        lambda: nn.Sequential(nn.Linear(4, D), nn.ReLU(), nn.Linear(D, CLASSES), Temperature()),
        numbers,
    ),
    "positions in a buffer": (
        lambda: nn.Sequential(nn.Embedding(WORDS, D), Positions(), nn.Linear(D, D), nn.Flatten(), nn.Linear(T * D, 2)),
        words,
    ),
    "two heads": (TwoHeads, numbers),
    "CLIP": (Pair, lambda: (picture(), words())),
    "hypernetwork": (Hyper, numbers),
    "frozen norms of buffers": (FrozenNorms, picture),
    "numbers as tokens": (NumberTokens, numbers),
    "rotary table": (Rotated, words),
    "a module that adds positions": (
        lambda: nn.Sequential(nn.Embedding(WORDS, D), AddsPositions(), Stage(), nn.LayerNorm(D), nn.Linear(D, CLASSES)),
        words,
    ),
    "head tied to the words, with a constant": (TiedHeadWithConstant, words),
    "encoder and decoder of one stage": (OneStageTranslator, words),
}
