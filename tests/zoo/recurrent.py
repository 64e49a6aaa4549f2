"""Recurrent networks whose time loop is written by hand."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from zoo.attentive import WORDS, heads, merged, words
from zoo.vision import CLASSES, D


class LstmCell(nn.Module):
    """Two linear maps, one of the input and one of the state, for all four gates."""

    def __init__(self, enter: int = D) -> None:
        super().__init__()
        self.ih, self.hh = nn.Linear(enter, 4 * D), nn.Linear(D, 4 * D, bias=False)

    def gates(self, x: Tensor, h: Tensor) -> Tensor:
        return self.ih(x) + self.hh(h)

    def forward(self, x: Tensor, state: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        h, c = state
        i, f, g, o = self.gates(x, h).chunk(4, -1)
        c = f.sigmoid() * c + i.sigmoid() * g.tanh()
        return o.sigmoid() * c.tanh(), c


class NormedLstmCell(LstmCell):
    def __init__(self, enter: int = D) -> None:
        super().__init__(enter)
        self.norm_i, self.norm_h, self.norm_c = nn.LayerNorm(4 * D), nn.LayerNorm(4 * D), nn.LayerNorm(D)

    def gates(self, x: Tensor, h: Tensor) -> Tensor:
        return self.norm_i(self.ih(x)) + self.norm_h(self.hh(h))

    def forward(self, x: Tensor, state: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        h, c = super().forward(x, state)
        return h, self.norm_c(c)


class GruCell(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.ih, self.hh = nn.Linear(D, 3 * D), nn.Linear(D, 3 * D)

    def forward(self, x: Tensor, state: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        h, _ = state
        (a, b, c), (d, e, f) = self.ih(x).chunk(3, -1), self.hh(h).chunk(3, -1)
        r, z = (a + d).sigmoid(), (b + e).sigmoid()
        h = (1 - z) * (c + r * f).tanh() + z * h
        return h, h


class GateByGate(nn.Module):
    """A linear map for each gate and source, as in textbooks."""

    def __init__(self) -> None:
        super().__init__()
        self.from_input = nn.ModuleDict({gate: nn.Linear(D, D) for gate in "ifgo"})
        self.from_state = nn.ModuleDict({gate: nn.Linear(D, D, bias=False) for gate in "ifgo"})

    def forward(self, x: Tensor, state: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        h, c = state
        i, f, g, o = (self.from_input[gate](x) + self.from_state[gate](h) for gate in "ifgo")
        c = f.sigmoid() * c + i.sigmoid() * g.tanh()
        return o.sigmoid() * c.tanh(), c


class RawCell(nn.Module):
    """Parameters without modules."""

    def __init__(self) -> None:
        super().__init__()
        self.w_ih, self.w_hh = nn.Parameter(torch.ones(4 * D, D) / D), nn.Parameter(torch.ones(4 * D, D) / D)
        self.bias = nn.Parameter(torch.zeros(4 * D))

    def forward(self, x: Tensor, state: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        h, c = state
        i, f, g, o = (F.linear(x, self.w_ih) + F.linear(h, self.w_hh) + self.bias).chunk(4, -1)
        c = f.sigmoid() * c + i.sigmoid() * g.tanh()
        return o.sigmoid() * c.tanh(), c


class Unrolled(nn.Module):
    """Words, some cells, a head; the cells advance together, or one after the other has read everything."""

    def __init__(self, cell: Callable[[], nn.Module], depth: int = 1, *, layer_by_layer: bool = False) -> None:
        super().__init__()
        self.head, self.words = nn.Linear(D, CLASSES), nn.Embedding(WORDS, D)
        self.cells, self.layer_by_layer = nn.ModuleList(cell() for _ in range(depth)), layer_by_layer

    def forward(self, ids: Tensor) -> Tensor:
        sequence = list(self.words(ids).unbind(1))
        states = [(torch.zeros(len(ids), D), torch.zeros(len(ids), D)) for _ in self.cells]
        if self.layer_by_layer:
            for cell, state in zip(self.cells, states, strict=True):
                for t, x in enumerate(sequence):
                    state = cell(x, state)
                    sequence[t] = state[0]
            return self.head(sequence[-1])
        for x in sequence:
            for number, cell in enumerate(self.cells):
                states[number] = cell(x, states[number])
                x = states[number][0]
        return self.head(x)


class Flat(nn.Module):
    """Everything in one class: the loop, the two maps and the head. The input is mapped once, outside of the loop."""

    def __init__(self, *, once: bool) -> None:
        super().__init__()
        self.words, self.enter, self.again, self.head = (
            nn.Embedding(WORDS, D),
            nn.Linear(D, D),
            nn.Linear(D, D),
            nn.Linear(D, CLASSES),
        )
        self.once = once

    def forward(self, ids: Tensor) -> Tensor:
        x, h = self.words(ids), torch.zeros(len(ids), D)
        if self.once:
            for part in self.enter(x).unbind(1):
                h = (part + self.again(h)).tanh()
        else:
            for part in x.unbind(1):
                h = (self.enter(part) + self.again(h)).tanh()
        return self.head(h)


class BothWays(nn.Module):
    """A cell for each direction."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.onward, self.back = nn.Embedding(WORDS, D), LstmCell(), LstmCell()
        self.head = nn.Linear(2 * D, CLASSES)

    def forward(self, ids: Tensor) -> Tensor:
        sequence = self.words(ids).unbind(1)
        ends = []
        for cell, steps in ((self.onward, sequence), (self.back, sequence[::-1])):
            state = (torch.zeros(len(ids), D), torch.zeros(len(ids), D))
            for x in steps:
                state = cell(x, state)
            ends.append(state[0])
        return self.head(torch.cat(ends, -1))


class ConvLstm(nn.Module):
    """One convolution over frame and state, two cells, a decoder."""

    def __init__(self) -> None:
        super().__init__()
        self.gates = nn.ModuleList([nn.Conv2d(2 + 4, 16, 3, padding=1), nn.Conv2d(4 + 4, 16, 3, padding=1)])
        self.peephole = nn.ParameterList([torch.zeros(4, 1, 1), torch.zeros(4, 1, 1)])
        self.decode = nn.Conv2d(4, 2, 1)

    def forward(self, frames: Tensor) -> Tensor:
        states = [(torch.zeros(len(frames), 4, 4, 4), torch.zeros(len(frames), 4, 4, 4)) for _ in self.gates]
        for x in frames.unbind(1):
            for number, (gates, peephole) in enumerate(zip(self.gates, self.peephole, strict=True)):
                h, c = states[number]
                i, f, g, o = gates(torch.cat([x, h], 1)).chunk(4, 1)
                c = (f + peephole * c).sigmoid() * c + i.sigmoid() * g.tanh()
                x = o.sigmoid() * c.tanh()
                states[number] = (x, c)
        return self.decode(x)


class Translator(nn.Module):
    """A decoder that attends to the encoder's states and feeds what it saw into its next step."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.encoder = nn.Embedding(WORDS, D), nn.GRU(D, D, batch_first=True)
        self.cell, self.query, self.join, self.out = (
            nn.GRUCell(2 * D, D),
            nn.Linear(D, D),
            nn.Linear(2 * D, D),
            nn.Linear(D, WORDS),
        )

    def forward(self, ids: Tensor) -> Tensor:
        x = self.words(ids)
        memory, last = self.encoder(x)
        h, seen, outs = last[0], torch.zeros(len(ids), D), []
        for word in x.unbind(1):
            h = self.cell(torch.cat([word, seen], -1), h)
            weights = (memory @ self.query(h)[..., None]).softmax(1)
            seen = self.join(torch.cat([(weights * memory).sum(1), h], -1)).tanh()
            outs.append(self.out(seen))
        return torch.stack(outs, 1)


class SegmentStage(nn.Module):
    """Attends to its own input of the segment before, with learnt biases for content and place (Transformer-XL)."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.kv, self.o = nn.Linear(D, D, bias=False), nn.Linear(D, 2 * D, bias=False), nn.Linear(D, D)
        self.u = nn.Parameter(torch.zeros(D))
        self.norm1, self.norm2 = nn.LayerNorm(D), nn.LayerNorm(D)
        self.up, self.down = nn.Linear(D, 2 * D), nn.Linear(2 * D, D)

    def forward(self, x: Tensor, memory: Tensor) -> Tensor:
        k, v = map(heads, self.kv(torch.cat([memory, x], 1)).chunk(2, -1))
        q = heads(self.q(x) + self.u)
        x = self.norm1(x + self.o(merged((q @ k.transpose(-2, -1)).softmax(-1) @ v)))
        return self.norm2(x + self.down(self.up(x).relu()))


class Segments(nn.Module):
    """A text in two segments; the second sees the first (Transformer-XL)."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.head = nn.Embedding(WORDS, D), nn.Linear(D, WORDS)
        self.stages = nn.ModuleList(SegmentStage() for _ in range(2))

    def forward(self, ids: Tensor) -> Tensor:
        memories = [torch.zeros(len(ids), 2, D) for _ in self.stages]
        for segment in ids[:, :4].chunk(2, 1):
            x = self.words(segment)
            for number, stage in enumerate(self.stages):
                memories[number], x = x.detach(), stage(x, memories[number])
        return self.head(x)


RECURRENT: dict[str, tuple[Callable[[], nn.Module], Callable[[], Any]]] = {
    "LSTM cell by hand": (lambda: Unrolled(LstmCell), words),
    "LSTM cells by hand, advancing together": (lambda: Unrolled(LstmCell, 2), words),
    "LSTM cells by hand, layer by layer": (lambda: Unrolled(LstmCell, 2, layer_by_layer=True), words),
    "LSTM cells with norms": (lambda: Unrolled(NormedLstmCell, 2), words),
    "LSTM cells, gate by gate": (lambda: Unrolled(GateByGate, 2), words),
    "LSTM cells of bare parameters": (lambda: Unrolled(RawCell, 2), words),
    "LSTM cell by hand, one time step": (lambda: Unrolled(LstmCell, 2), lambda: words()[:, :1]),
    "GRU cells by hand": (lambda: Unrolled(GruCell, 2), words),
    "recurrent net in one class": (lambda: Flat(once=False), words),
    "recurrent net in one class, input mapped once": (lambda: Flat(once=True), words),
    "recurrent cells, both directions": (BothWays, words),
    "ConvLSTM": (ConvLstm, lambda: torch.linspace(-1, 1, 192).reshape(2, 3, 2, 4, 4)),
    "translator with input feeding": (Translator, words),
    "Transformer-XL": (Segments, words),
}
