"""Transformers in the codings that people use, as small as they can be."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from zoo.vision import CLASSES, D, picture

T, WORDS = 5, 11


def heads(x: Tensor) -> Tensor:
    return x.unflatten(-1, (2, -1)).transpose(1, 2)


def merged(x: Tensor) -> Tensor:
    return x.transpose(1, 2).flatten(2)


class Stage(nn.Module):
    """One class for everything: fused projection, output projection and feed-forward (plain ViT)."""

    def __init__(self) -> None:
        super().__init__()
        self.n1, self.qkv, self.proj = nn.LayerNorm(D), nn.Linear(D, 3 * D), nn.Linear(D, D)
        self.n2, self.mlp = nn.LayerNorm(D), nn.Sequential(nn.Linear(D, 2 * D), nn.GELU(), nn.Linear(2 * D, D))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = map(heads, self.qkv(self.n1(x)).chunk(3, -1))
        x = x + self.proj(merged((q @ k.transpose(-2, -1) / 2).softmax(-1) @ v))
        return x + self.mlp(self.n2(x))


class Split(nn.Module):
    """Separate q, k, v as people number them; torch's fused attention; layer scales."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c, self.d = (nn.Linear(D, D) for _ in range(4))
        self.s1, self.s2 = nn.Parameter(torch.ones(D)), nn.Parameter(torch.ones(D))
        self.ln, self.ln_2, self.up, self.down = (
            nn.LayerNorm(D),
            nn.LayerNorm(D),
            nn.Linear(D, 2 * D),
            nn.Linear(2 * D, D),
        )

    def forward(self, x: Tensor) -> Tensor:
        h = self.ln(x)
        h = F.scaled_dot_product_attention(heads(self.a(h)), heads(self.b(h)), heads(self.c(h)))
        x = x + self.s1 * self.d(merged(h))
        return x + self.s2 * self.down(F.gelu(self.up(self.ln_2(x))))


class PreNorm(nn.Module):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.norm, self.fn = nn.LayerNorm(D), inner

    def forward(self, x: Tensor) -> Tensor:
        return self.fn(self.norm(x))


class Residual(nn.Module):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.fn = inner

    def forward(self, x: Tensor) -> Tensor:
        return self.fn(x) + x


class SelfMixing(nn.Module):
    """Attention by einsum, in a class whose name does not say so."""

    def __init__(self) -> None:
        super().__init__()
        self.to_qkv, self.to_out = nn.Linear(D, 3 * D, bias=False), nn.Sequential(nn.Linear(D, D), nn.Dropout())

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (heads(part) for part in self.to_qkv(x).chunk(3, -1))
        weights = torch.einsum("bhid,bhjd->bhij", q, k).softmax(-1)
        return self.to_out(merged(torch.einsum("bhij,bhjd->bhid", weights, v)))


def wrapped_stage() -> nn.Module:
    mlp = nn.Sequential(nn.Linear(D, 2 * D), nn.GELU(), nn.Linear(2 * D, D))
    return nn.Sequential(Residual(PreNorm(SelfMixing())), Residual(PreNorm(mlp)))


class MhaStage(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.ln_1, self.attn = nn.LayerNorm(D), nn.MultiheadAttention(D, 2, batch_first=True)
        self.ln_2, self.mlp = nn.LayerNorm(D), nn.Sequential(nn.Linear(D, 2 * D), nn.GELU(), nn.Linear(2 * D, D))

    def forward(self, x: Tensor) -> Tensor:
        h = self.ln_1(x)
        x = x + self.attn(h, h, h, need_weights=False)[0]
        return x + self.mlp(self.ln_2(x))


class ViT(nn.Module):
    def __init__(self, stage: Callable[[], nn.Module], *, depth: int = 2) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(stage() for _ in range(depth))
        self.last, self.out = nn.LayerNorm(D), nn.Linear(D, CLASSES)
        self.first = nn.Parameter(torch.zeros(1, 1, D))
        self.where = nn.Parameter(torch.zeros(1, 5, D))
        self.patch = nn.Conv2d(2, D, 4, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = self.patch(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.first.expand(len(x), -1, -1), x], 1) + self.where
        for block in self.blocks:
            x = block(x)
        return self.out(self.last(x)[:, 0])


class WindowStage(nn.Module):
    """Attention in shifted windows, with a table of relative positions (Swin)."""

    def __init__(self, width: int, shift: int) -> None:
        super().__init__()
        self.norm1, self.norm2, self.shift = nn.LayerNorm(width), nn.LayerNorm(width), shift
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.table = nn.Parameter(torch.zeros(9, 2))
        self.register_buffer("index", torch.arange(16).reshape(4, 4) % 9)
        self.fc1, self.fc2 = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        rows, side, _, width = x.shape
        h = torch.roll(self.norm1(x), (-self.shift, -self.shift), (1, 2))
        h = h.reshape(rows, side // 2, 2, side // 2, 2, width).transpose(2, 3).reshape(-1, 4, width)
        q, k, v = map(heads, self.qkv(h).chunk(3, -1))
        scores = q @ k.transpose(-2, -1) + self.table[self.index].permute(2, 0, 1)
        h = self.proj(merged(scores.softmax(-1) @ v))
        h = h.reshape(rows, side // 2, side // 2, 2, 2, width).transpose(2, 3).reshape(x.shape)
        x = x + torch.roll(h, (self.shift, self.shift), (1, 2))
        return x + self.fc2(F.gelu(self.fc1(self.norm2(x))))


class PatchMerging(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.reduction = nn.LayerNorm(4 * D), nn.Linear(4 * D, 2 * D, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.cat([x[:, 0::2, 0::2], x[:, 1::2, 0::2], x[:, 0::2, 1::2], x[:, 1::2, 1::2]], -1)
        return self.reduction(self.norm(x))


class Swin(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.patches, self.norm0 = nn.Conv2d(2, D, 2, 2), nn.LayerNorm(D)
        self.stage1, self.merge = nn.Sequential(WindowStage(D, 0), WindowStage(D, 1)), PatchMerging()
        self.stage2, self.norm, self.head = WindowStage(2 * D, 0), nn.LayerNorm(2 * D), nn.Linear(2 * D, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm0(self.patches(x).permute(0, 2, 3, 1))
        x = self.stage2(self.merge(self.stage1(x)))
        return self.head(self.norm(x).mean((1, 2)))


class Decoder(nn.Module):
    """A GPT: pre-norm, causal, with the table of words as its last layer."""

    def __init__(self) -> None:
        super().__init__()
        self.lm_head = nn.Linear(D, WORDS, bias=False)
        self.wte, self.wpe, self.ln_f = nn.Embedding(WORDS, D), nn.Embedding(T, D), nn.LayerNorm(D)
        self.h = nn.ModuleList(CausalStage() for _ in range(2))
        self.lm_head.weight = self.wte.weight

    def forward(self, ids: Tensor) -> Tensor:
        x = self.wte(ids) + self.wpe(torch.arange(ids.shape[1]))
        for block in self.h:
            x = block(x)
        return self.lm_head(self.ln_f(x))[:, -1]


class CausalStage(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.ln_1, self.c_attn, self.c_proj = nn.LayerNorm(D), nn.Linear(D, 3 * D), nn.Linear(D, D)
        self.ln_2, self.c_fc, self.out = nn.LayerNorm(D), nn.Linear(D, 2 * D), nn.Linear(2 * D, D)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = map(heads, self.c_attn(self.ln_1(x)).split(D, -1))
        x = x + self.c_proj(merged(F.scaled_dot_product_attention(q, k, v, is_causal=True)))
        return x + self.out(F.gelu(self.c_fc(self.ln_2(x))))


class RootMeanSquare(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.ones(D))

    def forward(self, x: Tensor) -> Tensor:
        return self.gain * x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6)


class LlamaStage(nn.Module):
    """Rotary positions, grouped queries, a gated feed-forward, a hand-written norm."""

    def __init__(self) -> None:
        super().__init__()
        self.before, self.after = RootMeanSquare(), RootMeanSquare()
        self.wq, self.wk, self.wv, self.wo = (
            nn.Linear(D, D),
            nn.Linear(D, D // 2),
            nn.Linear(D, D // 2),
            nn.Linear(D, D),
        )
        self.w1, self.w2, self.w3 = nn.Linear(D, 2 * D), nn.Linear(2 * D, D), nn.Linear(D, 2 * D)

    @staticmethod
    def turned(x: Tensor) -> Tensor:
        angle = torch.arange(x.shape[2], dtype=x.dtype)[:, None]
        half = torch.cat([-x[..., 2:], x[..., :2]], -1)
        return x * angle.cos() + half * angle.sin()

    def forward(self, x: Tensor) -> Tensor:
        h = self.before(x)
        q, k, v = heads(self.wq(h)), self.wk(h).unsqueeze(1), self.wv(h).unsqueeze(1)
        k, v = k.expand(-1, 2, -1, -1), v.expand(-1, 2, -1, -1)
        x = x + self.wo(merged(F.scaled_dot_product_attention(self.turned(q), self.turned(k), v)))
        h = self.after(x)
        return x + self.w2(F.silu(self.w1(h)) * self.w3(h))


class Llama(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words, self.layers = nn.Embedding(WORDS, D), nn.ModuleList(LlamaStage() for _ in range(2))
        self.final, self.output = RootMeanSquare(), nn.Linear(D, WORDS, bias=False)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.words(ids)
        for layer in self.layers:
            x = layer(x)
        return self.output(self.final(x))[:, -1]


class PostNormStage(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.query, self.key, self.value, self.dense = (nn.Linear(D, D) for _ in range(4))
        self.after_attention, self.after_all = nn.LayerNorm(D), nn.LayerNorm(D)
        self.intermediate, self.output = nn.Linear(D, 2 * D), nn.Linear(2 * D, D)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = heads(self.query(x)), heads(self.key(x)), heads(self.value(x))
        x = self.after_attention(x + self.dense(merged((q @ k.transpose(-2, -1)).softmax(-1) @ v)))
        return self.after_all(x + self.output(F.gelu(self.intermediate(x))))


class Bert(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words, self.places, self.kinds = nn.Embedding(WORDS, D), nn.Embedding(T, D), nn.Embedding(2, D)
        self.norm, self.layers = nn.LayerNorm(D), nn.Sequential(PostNormStage(), PostNormStage())
        self.pooler, self.head = nn.Linear(D, D), nn.Linear(D, CLASSES)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.words(ids) + self.places(torch.arange(T)) + self.kinds(torch.zeros_like(ids))
        x = self.layers(self.norm(x))
        return self.head(self.pooler(x[:, 0]).tanh())


class ParallelStage(nn.Module):
    """Attention and feed-forward side by side (PaLM, GPT-J)."""

    def __init__(self) -> None:
        super().__init__()
        self.ln, self.qkv, self.proj = nn.LayerNorm(D), nn.Linear(D, 3 * D), nn.Linear(D, D)
        self.up, self.down = nn.Linear(D, 2 * D), nn.Linear(2 * D, D)

    def forward(self, x: Tensor) -> Tensor:
        h = self.ln(x)
        q, k, v = map(heads, self.qkv(h).chunk(3, -1))
        mixed = self.proj(merged(F.scaled_dot_product_attention(q, k, v)))
        return x + mixed + self.down(F.gelu(self.up(h)))


class Mixer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(D), nn.LayerNorm(D)
        self.tokens = nn.Sequential(nn.Linear(5, 6), nn.GELU(), nn.Linear(6, 5))
        self.channels = nn.Sequential(nn.Linear(D, 2 * D), nn.GELU(), nn.Linear(2 * D, D))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.tokens(self.norm1(x).transpose(1, 2)).transpose(1, 2)
        return x + self.channels(self.norm2(x))


class Translator(nn.Module):
    """An encoder and a decoder with cross-attention, in torch's own modules."""

    def __init__(self) -> None:
        super().__init__()
        self.source, self.target = nn.Embedding(WORDS, D), nn.Embedding(WORDS, D)
        self.encoder = nn.TransformerEncoderLayer(D, 2, 2 * D, 0.0, batch_first=True)
        self.decoder = nn.TransformerDecoderLayer(D, 2, 2 * D, 0.0, batch_first=True)
        self.head = nn.Linear(D, WORDS)

    def forward(self, read: Tensor, written: Tensor) -> Tensor:
        return self.head(self.decoder(self.target(written), self.encoder(self.source(read))))[:, -1]


class CrossStage(nn.Module):
    """Self-attention, cross-attention and feed-forward in one class."""

    def __init__(self) -> None:
        super().__init__()
        self.n1, self.n2, self.n3 = nn.LayerNorm(D), nn.LayerNorm(D), nn.LayerNorm(D)
        self.qkv, self.o1 = nn.Linear(D, 3 * D), nn.Linear(D, D)
        self.q2, self.kv2, self.o2 = nn.Linear(D, D), nn.Linear(D, 2 * D), nn.Linear(D, D)
        self.f1, self.f2 = nn.Linear(D, 2 * D), nn.Linear(2 * D, D)

    def forward(self, x: Tensor, memory: Tensor) -> Tensor:
        q, k, v = map(heads, self.qkv(self.n1(x)).chunk(3, -1))
        x = x + self.o1(merged(F.scaled_dot_product_attention(q, k, v)))
        k, v = map(heads, self.kv2(memory).chunk(2, -1))
        x = x + self.o2(merged(F.scaled_dot_product_attention(heads(self.q2(self.n2(x))), k, v)))
        return x + self.f2(F.gelu(self.f1(self.n3(x))))


class CrossDecoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words, self.image, self.stages = (
            nn.Embedding(WORDS, D),
            nn.Conv2d(2, D, 4, 4),
            nn.ModuleList([CrossStage(), CrossStage()]),
        )
        self.norm, self.head = nn.LayerNorm(D), nn.Linear(D, WORDS)

    def forward(self, picture: Tensor, ids: Tensor) -> Tensor:
        memory = self.image(picture).flatten(2).transpose(1, 2)
        x = self.words(ids)
        for stage in self.stages:
            x = stage(x, memory)
        return self.head(self.norm(x))[:, -1]


class Perceiver(nn.Module):
    """Learnt queries read a long input."""

    def __init__(self) -> None:
        super().__init__()
        self.latents, self.enter = nn.Parameter(torch.zeros(3, D)), nn.Conv2d(2, D, 2, 2)
        self.q, self.kv, self.o = nn.Linear(D, D), nn.Linear(D, 2 * D), nn.Linear(D, D)
        self.stage, self.head = Stage(), nn.Linear(D, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = self.enter(x).flatten(2).transpose(1, 2)
        k, v = map(heads, self.kv(x).chunk(2, -1))
        q = heads(self.q(self.latents.expand(len(x), -1, -1)))
        x = self.o(merged(F.scaled_dot_product_attention(q, k, v)))
        return self.head(self.stage(x).mean(1))


def words() -> Tensor:
    return torch.arange(2 * T).reshape(2, T) % WORDS


ATTENTIVE: dict[str, tuple[Callable[[], nn.Module], Callable[[], Any]]] = {
    "ViT, all in one class": (lambda: ViT(Stage), picture),
    "ViT, split projections": (lambda: ViT(Split, depth=1), picture),
    "ViT, wrapped": (lambda: ViT(wrapped_stage, depth=1), picture),
    "ViT, torch's attention": (lambda: ViT(MhaStage, depth=1), picture),
    "ViT, parallel": (lambda: ViT(ParallelStage), picture),
    "Swin": (Swin, picture),
    "MLP-Mixer": (lambda: ViT(Mixer), picture),
    "Perceiver": (Perceiver, picture),
    "GPT, tied": (Decoder, words),
    "Llama": (Llama, words),
    "BERT": (Bert, words),
    "encoder and decoder": (Translator, lambda: (words(), words())),
    "captions, cross-attention": (CrossDecoder, lambda: (picture(), words())),
}
