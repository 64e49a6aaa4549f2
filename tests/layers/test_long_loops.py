"""A loop of a thousand turns has the layers of a short one, and they are found in seconds."""

from __future__ import annotations

import time
from collections.abc import Callable
from itertools import pairwise

import pytest
import torch
from torch import Tensor, nn

from playerfl.layers.derive import call_model
from playerfl.layers.finding.loops import with_short_loops
from playerfl.layers.finding.trace import Trace, trace
from playerfl.layers.layer_map import LayerMap
from playerfl.runs.api import limited_threads
from zoo.recurrent import RECURRENT, BothWays, GateByGate, LstmCell, Translator, Unrolled

LOOPS = [name for name in RECURRENT if name not in ("ConvLSTM", "Transformer-XL", "LSTM cell by hand, one time step")]


def ids(length: int) -> Tensor:
    return torch.arange(2 * length).reshape(2, length) % 7


def recorded(model: nn.Module, example: Tensor) -> Trace:
    return trace(model.eval(), lambda: call_model(model, example), example)


@pytest.mark.parametrize("name", LOOPS)
def test_a_long_loop_has_the_layers_and_reasons_of_a_short_one(name: str) -> None:
    build = RECURRENT[name][0]
    short, long = (LayerMap.of(build(), ids(length)) for length in (5, 60))
    assert long.difference(short) is None
    assert long.reasons == short.reasons


@pytest.mark.parametrize("name", LOOPS)
def test_nothing_is_found_in_the_turns_that_are_left_out(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    build = RECURRENT[name][0]
    shortened = LayerMap.of(build(), ids(30))
    monkeypatch.setattr("playerfl.layers.finding.layers.with_short_loops", lambda recorded: recorded)
    assert LayerMap.of(build(), ids(30)).difference(shortened) is None


def test_the_turns_in_the_middle_are_left_out() -> None:
    model = Unrolled(LstmCell)
    whole, short = (recorded(model, ids(length)) for length in (100, 20))
    shorter = with_short_loops(whole)
    assert len(shorter.steps) < len(short.steps)
    assert [step.number for step in shorter.steps] == list(range(len(shorter.steps)))
    assert all(number < step.number for step in shorter.steps for number in step.inputs)
    hidden = [step for step in shorter.steps if step.unit is not None and step.unit.name == "cells.0.hh"]
    assert all(any(number >= before.number for number in step.inputs) for before, step in pairwise(hidden)), (
        "each turn reads the one before"
    )
    assert with_short_loops(short) is short


class MapPerColumn(nn.Module):
    """Every column is cut out in the same way, or read by the same layer, and then has a network of its own."""

    def __init__(self, *, encoded: bool, summed: bool) -> None:
        super().__init__()
        self.encoded, self.summed = encoded, summed
        self.enter = nn.Linear(4, 4)
        self.own = nn.ModuleList(nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2)) for _ in range(40))
        self.head = nn.Linear(2 if summed else 80, 2)

    def forward(self, x: Tensor) -> Tensor:
        if self.encoded:
            columns = [self.enter(x[:, n]).relu() for n in range(40)]
        else:
            entered = self.enter(x)
            columns = [entered[:, n].relu() for n in range(40)]
        found = [own(column) for own, column in zip(self.own, columns, strict=True)]
        result: Tensor = self.head(torch.stack(found).sum(0) if self.summed else torch.cat(found, 1))
        return result


@pytest.mark.parametrize(
    "model",
    [
        MapPerColumn(encoded=False, summed=False),
        MapPerColumn(encoded=True, summed=False),
        MapPerColumn(encoded=False, summed=True),
    ],
)
def test_turns_that_different_layers_read_are_not_left_out(model: nn.Module, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 40 heads, 29 became one layer, because all of them seemed to read the same column."""
    found = LayerMap.of(model, torch.ones(2, 40, 4))
    monkeypatch.setattr("playerfl.layers.finding.layers.with_short_loops", lambda recorded: recorded)
    assert LayerMap.of(model, torch.ones(2, 40, 4)).difference(found) is None


class Nested(nn.Module):
    """A loop over time, and in each time step one over the rounds of a solver."""

    def __init__(self) -> None:
        super().__init__()
        self.enter, self.change, self.head = nn.Linear(1, 4), nn.Linear(4, 4), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        state = torch.zeros(len(x), 4)
        for now in x.unbind(1):
            state = state + self.enter(now[:, None])
            for _ in range(30):
                state = state + self.change(state).tanh() / 30
        result: Tensor = self.head(state)
        return result


def test_a_loop_inside_a_loop() -> None:
    whole = recorded(Nested(), torch.ones(2, 40))
    assert len(with_short_loops(whole).steps) < len(whole.steps) / 5
    assert LayerMap.of(Nested(), torch.ones(2, 40)).names == LayerMap.of(Nested(), torch.ones(2, 3)).names


@pytest.mark.slow
@pytest.mark.parametrize("build", [lambda: Unrolled(LstmCell), lambda: Unrolled(GateByGate), BothWays, Translator])
def test_a_thousand_time_steps_take_seconds(build: Callable[[], nn.Module]) -> None:
    """An LSTM's took 48 s: every time step was compared with every other."""
    model = build()
    started = time.process_time()
    with limited_threads(1):
        LayerMap.of(model, ids(1000))
    assert time.process_time() - started < 15
