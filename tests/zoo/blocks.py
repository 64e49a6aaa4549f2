"""Blocks that are neither residual convolutions nor plain attention."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from zoo.attentive import WORDS, T, heads, merged, words
from zoo.shared import Attention
from zoo.vision import CLASSES, D, picture


class FeedForward(nn.Sequential):
    def __init__(self) -> None:
        super().__init__(nn.LayerNorm(D), nn.Linear(D, 2 * D), nn.SiLU(), nn.Linear(2 * D, D))


class ConvModule(nn.Module):
    """A gated convolution over time (Conformer)."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.enter, self.leave = nn.LayerNorm(D), nn.Conv1d(D, 2 * D, 1), nn.Conv1d(D, D, 1)
        self.over_time, self.batch_norm = nn.Conv1d(D, D, 3, padding=1, groups=D), nn.BatchNorm1d(D)

    def forward(self, x: Tensor) -> Tensor:
        h = F.glu(self.enter(self.norm(x).transpose(1, 2)), dim=1)
        return self.leave(F.silu(self.batch_norm(self.over_time(h)))).transpose(1, 2)


class ConformerBlock(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.ff1, self.ff2, self.conv, self.final = FeedForward(), FeedForward(), ConvModule(), nn.LayerNorm(D)
        self.norm, self.attn = nn.LayerNorm(D), Attention()

    def forward(self, x: Tensor) -> Tensor:
        x = x + 0.5 * self.ff1(x)
        x = x + self.attn(self.norm(x))
        x = x + self.conv(x)
        return self.final(x + 0.5 * self.ff2(x))


class Conformer(nn.Module):
    def __init__(self, depth: int = 2) -> None:
        super().__init__()
        self.enter, self.head = nn.Linear(4, D), nn.Linear(D, CLASSES)
        self.blocks = nn.ModuleList(ConformerBlock() for _ in range(depth))
        self.register_buffer("output_scale", torch.ones(CLASSES))

    def forward(self, x: Tensor) -> Tensor:
        x = self.enter(x)
        for block in self.blocks:
            x = block(x)
        return self.head(x.mean(1)) * self.output_scale


class MambaBlock(nn.Module):
    """A selective state space, with bare parameters for the state matrix and the skip."""

    def __init__(self, state: int = 3) -> None:
        super().__init__()
        self.norm, self.in_proj, self.out_proj = nn.LayerNorm(D), nn.Linear(D, 4 * D), nn.Linear(2 * D, D)
        self.conv = nn.Conv1d(2 * D, 2 * D, 3, padding=2, groups=2 * D)
        self.x_proj, self.dt_proj = nn.Linear(2 * D, 2 + 2 * state, bias=False), nn.Linear(2, 2 * D)
        self.a_log, self.skip = nn.Parameter(torch.zeros(2 * D, state)), nn.Parameter(torch.ones(2 * D))

    def forward(self, x: Tensor) -> Tensor:
        inner, gate = self.in_proj(self.norm(x)).chunk(2, -1)
        inner = F.silu(self.conv(inner.transpose(1, 2))[..., : x.shape[1]].transpose(1, 2))
        dt, b, c = self.x_proj(inner).split([2, 3, 3], -1)
        dt, a = F.softplus(self.dt_proj(dt)), -torch.exp(self.a_log)
        h, out = torch.zeros(len(x), inner.shape[-1], 3), []
        for t in range(x.shape[1]):
            step = dt[:, t, :, None]
            h = torch.exp(step * a) * h + step * b[:, t, None] * inner[:, t, :, None]
            out.append((h * c[:, t, None]).sum(-1))
        y = torch.stack(out, 1) + inner * self.skip
        return x + self.out_proj(y * F.silu(gate))


class Mamba(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.backbone = nn.ModuleList(MambaBlock() for _ in range(2))
        self.embedding, self.norm_f, self.lm_head = nn.Embedding(WORDS, D), nn.LayerNorm(D), nn.Linear(D, WORDS)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embedding(ids)
        for block in self.backbone:
            x = block(x)
        return self.lm_head(self.norm_f(x))


class Routed(nn.Module):
    """Each word goes to one expert; most experts see none."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.router = nn.LayerNorm(D), nn.Linear(D, 6)
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(D, 2 * D), nn.SiLU(), nn.Linear(2 * D, D)) for _ in range(6)
        )
        self.router.bias.data[:4] = -100.0

    def forward(self, x: Tensor) -> Tensor:
        h = self.norm(x).flatten(0, 1)
        share, choice = self.router(h).softmax(-1).max(-1)
        out = torch.zeros_like(h)
        for number, expert in enumerate(self.experts):
            (chosen,) = torch.where(choice == number)
            if len(chosen):
                out.index_add_(0, chosen, share[chosen, None] * expert(h[chosen]))
        return x + out.view_as(x)


class AttendAndRoute(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.attn, self.moe = nn.LayerNorm(D), Attention(), Routed()

    def forward(self, x: Tensor) -> Tensor:
        return self.moe(x + self.attn(self.norm(x)))


class Cross(nn.Module):
    """Queries from one place, keys and values from another."""

    def __init__(self, norm_both: bool = True) -> None:
        super().__init__()
        self.norm_q, self.norm_kv = nn.LayerNorm(D), nn.LayerNorm(D) if norm_both else nn.Identity()
        self.q, self.kv, self.out = nn.Linear(D, D), nn.Linear(D, 2 * D), nn.Linear(D, D)

    def forward(self, x: Tensor, memory: Tensor) -> Tensor:
        k, v = map(heads, self.kv(self.norm_kv(memory)).chunk(2, -1))
        return self.out(merged(F.scaled_dot_product_attention(heads(self.q(self.norm_q(x))), k, v)))


class PerceiverIO(nn.Module):
    """Latents read the input, think, and are read by the output's own queries."""

    def __init__(self) -> None:
        super().__init__()
        self.latents, self.queries = nn.Parameter(torch.zeros(3, D)), nn.Parameter(torch.zeros(CLASSES, D))
        self.enter, self.encode, self.decode = nn.Linear(4, D), Cross(), Cross()
        self.process, self.norm = Attention(), nn.LayerNorm(D)
        self.ff, self.logits = FeedForward(), nn.Linear(D, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.enter(x)
        z = self.latents.expand(len(x), -1, -1)
        z = z + self.encode(z, x)
        z = z + self.process(self.norm(z))
        z = z + self.ff(z)
        return self.logits(self.decode(self.queries.expand(len(x), -1, -1), z))[..., 0]


class MessagePassing(nn.Module):
    """Messages along edges, summed at the nodes, and an update of the nodes."""

    def __init__(self) -> None:
        super().__init__()
        self.message = nn.Sequential(nn.Linear(2 * D, D), nn.ReLU(), nn.Linear(D, D))
        self.update, self.norm = nn.GRUCell(D, D), nn.LayerNorm(D)

    def forward(self, x: Tensor, source: Tensor, target: Tensor) -> Tensor:
        messages = self.message(torch.cat([x[source], x[target]], -1))
        arrived = torch.zeros_like(x).index_add(0, target, messages)
        return self.norm(self.update(arrived, x))


class Graph(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.enter, self.readout = nn.Linear(4, D), nn.Linear(D, CLASSES)
        self.rounds = nn.ModuleList(MessagePassing() for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        source = torch.arange(len(x))
        x = self.enter(x)
        for one in self.rounds:
            x = one(x, source, source.roll(1))
        return self.readout(x)


class GatedMlp(nn.Module):
    """Half of the features gates the other, mixed over positions (gMLP)."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.enter, self.leave = nn.LayerNorm(D), nn.Linear(D, 2 * D), nn.Linear(D, D)
        self.gate_norm, self.over_words = nn.LayerNorm(D), nn.Conv1d(T, T, 1)

    def forward(self, x: Tensor) -> Tensor:
        u, v = F.gelu(self.enter(self.norm(x))).chunk(2, -1)
        return x + self.leave(u * self.over_words(self.gate_norm(v)))


class Highway(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.transform, self.gate = nn.Linear(D, D), nn.Linear(D, D)

    def forward(self, x: Tensor) -> Tensor:
        open_ = self.gate(x).sigmoid()
        return open_ * self.transform(x).relu() + (1 - open_) * x


class LinearAttention(nn.Module):
    """Attention without a softmax over words (Performer, linear transformers)."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.q, self.k, self.v, self.o = nn.LayerNorm(D), *(nn.Linear(D, D) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        h = self.norm(x)
        q, k = F.elu(self.q(h)) + 1, F.elu(self.k(h)) + 1
        memory = k.transpose(1, 2) @ self.v(h)
        return x + self.o(q @ memory / (q @ k.sum(1)[..., None]))


class Filter(nn.Module):
    """A learnt filter in frequency space (GFNet, Hyena)."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.filter = nn.LayerNorm(D), nn.Parameter(torch.ones(T // 2 + 1, D))
        self.norm2, self.mlp = nn.LayerNorm(D), nn.Sequential(nn.Linear(D, 2 * D), nn.GELU(), nn.Linear(2 * D, D))

    def forward(self, x: Tensor) -> Tensor:
        x = x + torch.fft.irfft(torch.fft.rfft(self.norm(x), dim=1) * self.filter, n=T, dim=1)
        return x + self.mlp(self.norm2(x))


class Coupling(nn.Module):
    """Half of the values moves the other (RealNVP)."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(2, D), nn.ReLU(), nn.Linear(D, 4))

    def forward(self, x: Tensor) -> Tensor:
        a, b = x.chunk(2, -1)
        scale, shift = self.net(a).chunk(2, -1)
        return torch.cat([b * scale.tanh().exp() + shift, a], -1)


class Film(nn.Module):
    """Text says how each convolution is scaled and shifted."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.text = nn.EmbeddingBag(WORDS, D), nn.Linear(D, D)
        self.stem, self.head = nn.Conv2d(2, D, 3, 2, 1), nn.Linear(D, CLASSES)
        self.convs, self.films, self.norms = (
            nn.ModuleList(nn.Conv2d(D, D, 3, 1, 1) for _ in range(2)),
            nn.ModuleList(nn.Linear(D, 2 * D) for _ in range(2)),
            nn.ModuleList(nn.BatchNorm2d(D, affine=False) for _ in range(2)),
        )

    def forward(self, x: Tensor, ids: Tensor) -> Tensor:
        text, x = self.text(self.words(ids)).relu(), self.stem(x).relu()
        for conv, film, norm in zip(self.convs, self.films, self.norms, strict=True):
            scale, shift = film(text)[..., None, None].chunk(2, 1)
            x = x + (norm(conv(x)) * (1 + scale) + shift).relu()
        return self.head(x.mean((2, 3)))


class Detector(nn.Module):
    """Learnt queries, added anew in every layer of the decoder (DETR)."""

    def __init__(self) -> None:
        super().__init__()
        self.backbone, self.queries = nn.Conv2d(2, D, 4, 4), nn.Embedding(3, D)
        self.stages = nn.ModuleList(
            nn.ModuleDict({"self": Cross(), "cross": Cross(), "ff": FeedForward()}) for _ in range(2)
        )
        self.norm, self.classes = nn.LayerNorm(D), nn.Linear(D, CLASSES)
        self.boxes = nn.Sequential(nn.Linear(D, D), nn.ReLU(), nn.Linear(D, 4))

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        memory = self.backbone(x).flatten(2).transpose(1, 2)
        ask = self.queries.weight.expand(len(x), -1, -1)
        z = torch.zeros_like(ask)
        for stage in self.stages:
            z = z + stage["self"](z + ask, z + ask)
            z = z + stage["cross"](z + ask, memory)
            z = z + stage["ff"](z)
        z = self.norm(z)
        return {"classes": self.classes(z), "boxes": self.boxes(z)}


class PostNormDecoder(nn.Module):
    """A layer of DETR's own decoder: torch's attention, a norm after each sum, queries added anew."""

    def __init__(self) -> None:
        super().__init__()
        self.attend, self.cross = (nn.MultiheadAttention(D, 2, batch_first=True) for _ in range(2))
        self.up, self.down = nn.Linear(D, 2 * D), nn.Linear(2 * D, D)
        self.norms = nn.ModuleList(nn.LayerNorm(D) for _ in range(3))

    def forward(self, z: Tensor, ask: Tensor, memory: Tensor) -> Tensor:
        z = self.norms[0](z + self.attend(z + ask, z + ask, z)[0])
        z = self.norms[1](z + self.cross(z + ask, memory, memory)[0])
        return self.norms[2](z + self.down(self.up(z).relu()))


class PostNormDetector(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.backbone, self.queries = nn.Conv2d(2, D, 4, 4), nn.Embedding(3, D)
        self.stages, self.classes = nn.ModuleList(PostNormDecoder() for _ in range(2)), nn.Linear(D, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        memory = self.backbone(x).flatten(2).transpose(1, 2)
        ask = self.queries.weight.expand(len(x), -1, -1)
        z = torch.zeros_like(ask)
        for stage in self.stages:
            z = stage(z, ask, memory)
        return self.classes(z)


def numbers() -> Tensor:
    return torch.linspace(-1, 1, 8).reshape(2, 4)


def sequence() -> Tensor:
    return torch.linspace(-1, 1, 40).reshape(2, T, 4)


def text(*blocks: nn.Module) -> nn.Module:
    return nn.Sequential(nn.Embedding(WORDS, D), *blocks, nn.LayerNorm(D), nn.Linear(D, CLASSES))


BLOCKS: dict[str, tuple[Callable[[], nn.Module], Callable[[], Any]]] = {
    "Conformer": (Conformer, sequence),
    "Conformer, one block": (lambda: Conformer(depth=1), sequence),
    "Mamba": (Mamba, words),
    "experts that see nothing": (lambda: text(AttendAndRoute(), AttendAndRoute()), words),
    "Perceiver IO": (PerceiverIO, sequence),
    "message passing": (Graph, numbers),
    "gMLP": (lambda: text(GatedMlp(), GatedMlp()), words),
    "highway": (lambda: nn.Sequential(nn.Linear(4, D), Highway(), Highway(), nn.Linear(D, CLASSES)), numbers),
    "linear attention": (lambda: text(LinearAttention(), LinearAttention()), words),
    "filters in frequency space": (lambda: text(Filter(), Filter()), words),
    "RealNVP": (lambda: nn.Sequential(Coupling(), Coupling(), Coupling()), numbers),
    "FiLM": (Film, lambda: (picture(), words())),
    "DETR": (Detector, picture),
    "DETR, a norm after each sum": (PostNormDetector, picture),
}
