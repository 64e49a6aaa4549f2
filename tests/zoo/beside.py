"""Blocks that something enters from the side (a filter or a bias computed from positions, a gate on another value, keys
that every turn of a loop reads), blocks whose parts run side by side, and what looks like a block but is none."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from zoo.attentive import WORDS, heads, merged, words
from zoo.blocks import sequence, text
from zoo.vision import CLASSES, D, conv_norm, picture


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


class ParallelBlock(nn.Module):
    """Attention and feed-forward read the same value, each with its own norm (GPT-NeoX, Falcon)."""

    def __init__(self) -> None:
        super().__init__()
        self.ln1, self.ln2 = nn.LayerNorm(D), nn.LayerNorm(D)
        self.qkv, self.proj, self.up, self.down = (nn.Linear(*s) for s in ((D, 3 * D), (D, D), (D, 16), (16, D)))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = map(heads, self.qkv(self.ln1(x)).chunk(3, -1))
        attended = self.proj(merged(F.scaled_dot_product_attention(q, k, v)))
        y: Tensor = x + attended + self.down(F.gelu(self.up(self.ln2(x))))
        return y


class FusedBlock(nn.Module):
    """One matrix for queries, keys, values and the feed-forward, and one of each on the way out (PaLM)."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.fused = nn.RMSNorm(D), nn.Linear(D, 5 * D, bias=False)
        self.attended, self.fed = nn.Linear(D, D, bias=False), nn.Linear(D, D, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v, up, gate = self.fused(self.norm(x)).chunk(5, -1)
        attended = merged((heads(q) @ heads(k).transpose(-1, -2)).softmax(-1) @ heads(v))
        y: Tensor = x + self.attended(attended) + self.fed(F.silu(gate) * up)
        return y


class Words(nn.Module):
    """The first block reads the words themselves: no patch embedding, no positions."""

    def __init__(self, block: Callable[[], nn.Module]) -> None:
        super().__init__()
        self.words, self.blocks = nn.Embedding(WORDS, D), nn.ModuleList([block(), block()])
        self.norm, self.head = nn.LayerNorm(D), nn.Linear(D, CLASSES)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.words(ids)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))[:, -1]


class SetBlock(nn.Module):
    """A few learnt points read the set; the queries made of them are what the attention is added to."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v, self.out = (nn.Linear(D, D) for _ in range(4))
        self.norm, self.points = nn.LayerNorm(D), nn.Parameter(torch.ones(3, D))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.q(self.points.expand(len(x), -1, -1)), self.k(x), self.v(x)
        x = self.norm(q + (q @ k.transpose(-1, -2)).softmax(-1) @ v)
        return x + self.out(x).relu()


class Ghost(nn.Module):
    """Features, and cheap functions of them that are appended."""

    def __init__(self) -> None:
        super().__init__()
        self.primary, self.cheap = conv_norm(D, D // 2, 1), conv_norm(D // 2, D // 2, 3, groups=D // 2)

    def forward(self, x: Tensor) -> Tensor:
        features = self.primary(x)
        return torch.cat([features, self.cheap(features)], 1)


class GhostBlock(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = Ghost(), Ghost()

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = x + self.two(self.one(x))
        return y


class Res2Block(nn.Module):
    """Parts of the channels, each convolved with the result of the part before (Res2Net, ECAPA-TDNN)."""

    def __init__(self, parts: int = 8) -> None:
        super().__init__()
        self.enter, self.leave = conv_norm(D, D, 1), conv_norm(D, D, 1, act=None)
        self.convs = nn.ModuleList(conv_norm(D // parts, D // parts) for _ in range(parts - 1))

    def forward(self, x: Tensor) -> Tensor:
        first, *others = self.enter(x).chunk(len(self.convs) + 1, 1)
        done = [first]
        for number, (conv, part) in enumerate(zip(self.convs, others, strict=True)):
            done.append(conv(part + done[-1] if number else part))
        return (x + self.leave(torch.cat(done, 1))).relu()


def convolutional(block: Callable[[], nn.Module]) -> nn.Module:
    pooling = (nn.AdaptiveAvgPool2d(1), nn.Flatten())
    return nn.Sequential(conv_norm(2, D), block(), block(), *pooling, nn.Linear(D, CLASSES))


class Pyramid(nn.Module):
    """Convolutions of several widths beside one over the whole picture (DeepLab)."""

    def __init__(self) -> None:
        super().__init__()
        self.enter = conv_norm(2, D)
        self.wide = nn.ModuleList([conv_norm(D, D, 1), conv_norm(D, D, 3)])
        self.whole = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Conv2d(D, D, 1), nn.ReLU())
        self.join, self.out = conv_norm(3 * D, D, 1), nn.Conv2d(D, CLASSES, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.enter(x)
        whole = F.interpolate(self.whole(x), size=x.shape[2:], mode="bilinear")
        return self.out(self.join(torch.cat([*(conv(x) for conv in self.wide), whole], 1))).mean((2, 3))


class MergedPatches(nn.Module):
    """Neighbouring patches are put together behind a pre-norm block, then normalised for the next matrix (Swin)."""

    def __init__(self) -> None:
        super().__init__()
        self.patches, self.blocks = nn.Conv2d(2, D, 2, 2), nn.ModuleList([self.block(D), self.block(D)])
        self.merge_norm, self.merge, self.head = nn.LayerNorm(4 * D), nn.Linear(4 * D, D), nn.Linear(D, CLASSES)

    @staticmethod
    def block(width: int) -> nn.Module:
        return nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 16), nn.GELU(), nn.Linear(16, width))

    def forward(self, x: Tensor) -> Tensor:
        x = self.patches(x).permute(0, 2, 3, 1)
        for block in self.blocks:
            x = x + block(x)
        x = torch.cat([x[:, i::2, j::2] for j in (0, 1) for i in (0, 1)], -1)
        return self.head(self.merge(self.merge_norm(x)).mean((1, 2)))


class SummedHeads(nn.Module):
    """A head for every stage; their scores are added up (GIN)."""

    def __init__(self) -> None:
        super().__init__()
        self.stages = nn.ModuleList(nn.Sequential(nn.Linear(D, D), nn.ReLU(), nn.Linear(D, D)) for _ in range(3))
        self.heads = nn.ModuleList(nn.Linear(D, CLASSES) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        scores = self.heads[0](x)
        for stage, head in zip(self.stages, self.heads[1:], strict=True):
            x = stage(x).relu()
            scores = scores + head(x)
        return scores.mean(1)


class Decay(nn.Module):
    """A hand-written cell whose state fades by as much as a map of the input says (GRU-D)."""

    def __init__(self) -> None:
        super().__init__()
        self.fade, self.gate, self.new = nn.Linear(D, D), nn.Linear(2 * D, D), nn.Linear(2 * D, D)
        self.head = nn.Linear(D, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        state = x.new_zeros(len(x), D)
        for now in x.unbind(1):
            state = state * torch.exp(-self.fade(now).relu())
            both = torch.cat([now, state], 1)
            gate = self.gate(both).sigmoid()
            state = gate * self.new(both).tanh() + (1 - gate) * state
        return self.head(state)


class SearchedBook(nn.Module):
    """The table's own weights are searched before its rows are looked up."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.book, self.decoder = nn.Linear(D, 4), nn.Embedding(5, 4), nn.Linear(4, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = self.encoder(x.mean(1))
        rows = self.book(torch.cdist(x, self.book.weight).argmin(-1))
        return self.decoder(x + (rows - x).detach())


class Alphabetical(nn.Module):
    """A dictionary of parameters, in which each bias comes before its matrix."""

    def __init__(self) -> None:
        super().__init__()
        sizes = {"bias1": (D,), "bias2": (CLASSES,), "matrix1": (D, D), "matrix2": (CLASSES, D)}
        self.all = nn.ParameterDict({name: torch.ones(size) for name, size in sizes.items()})

    def forward(self, x: Tensor) -> Tensor:
        x = F.linear(x.mean(1), self.all["matrix1"], self.all["bias1"]).relu()
        return F.linear(x, self.all["matrix2"], self.all["bias2"])


def vectors() -> Tensor:
    return torch.linspace(-1, 1, 2 * 5 * D).reshape(2, 5, D)


BESIDE: dict[str, tuple[Callable[[], nn.Module], Callable[[], Any]]] = {
    "Hyena": (lambda: text(ImplicitFilter(), ImplicitFilter()), words),
    "attention with a computed bias": (lambda: text(ComputedBias(), ComputedBias()), words),
    "Attention U-Net": (AttentionUNet, picture),
    "RWKV": (lambda: text(Receptance(), Receptance()), words),
    "RWKV, a norm after the words": (lambda: text(nn.LayerNorm(D), Receptance(), Receptance()), words),
    "slot attention": (SlotAttention, sequence),
    "attention beside feed-forward, two norms": (lambda: Words(ParallelBlock), words),
    "attention beside feed-forward, one matrix": (lambda: Words(FusedBlock), words),
    "Set Transformer": (lambda: Words(SetBlock), words),
    "GhostNet": (lambda: convolutional(GhostBlock), picture),
    "Res2Net": (lambda: convolutional(Res2Block), picture),
    "pooling pyramid": (Pyramid, picture),
    "patches put together": (MergedPatches, picture),
    "a head for every stage, added up": (SummedHeads, vectors),
    "GRU-D by hand": (Decay, vectors),
    "codebook searched by its weights": (SearchedBook, vectors),
    "a dictionary of parameters": (Alphabetical, vectors),
}
