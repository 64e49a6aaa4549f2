"""Models that hold their weights in unusual places: parametrised, bare, in buffers, in nested or reversed lists."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.ao.quantization import DeQuantStub, QuantStub
from torch.nn import functional as F
from torch.nn.utils.parametrizations import orthogonal, spectral_norm, weight_norm

from zoo.attentive import WORDS, T, words
from zoo.blocks import numbers
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
}
