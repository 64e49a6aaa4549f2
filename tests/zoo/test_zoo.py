"""Models of many kinds: their layers are found, every algorithm runs them, and stacking is exact or declined."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest
import torch

from playerfl.algorithms import ALGORITHMS
from playerfl.engine.scheduler import drive
from playerfl.errors import ConfigError
from playerfl.layers.layer_map import LayerMap, state_entries
from playerfl.runs.experiment import Experiment
from playerfl.runs.result import RunResult
from playerfl.runs.run import Run
from playerfl.runs.settings_table import with_settings
from playerfl.runs.setup import Setups
from playerfl.seeding import generator_for
from playerfl.tasks.task import Task, own_task
from zoo.architectures import CLASSES, ZOO

ROWS = 24
every_architecture = pytest.mark.parametrize("name", ZOO)
# A method that averages, and one that measures, cuts and remembers.
QUICK = ("fedavg", "player_fl")
DOCUMENT = Path(__file__).parents[2] / "docs" / "reliability.md"


@cache
def zoo_task(name: str) -> Task:
    """Two sites with a few rows each, in double precision, so that rounding cannot explain a difference."""
    own = ZOO[name]
    sites = {}
    for number in range(2):
        random = generator_for(number, name)
        sites[f"site-{number}"] = (own.inputs(ROWS, random), torch.arange(ROWS) % CLASSES)
    return own_task(lambda: own.build().double(), sites)


@cache
def setups_of(name: str) -> Setups:
    """Prepared once for all algorithms, as in a comparison: the trial of stacking takes longer than a round."""
    return Setups(zoo_task(name))


@cache
def federated(name: str, algorithm: str, trainer: str) -> RunResult:
    settings = {
        "algorithm.name": algorithm,
        "rounds": 1,
        "training.batch_size": 8,
        "training.learning_rate": 1e-3,
        "data.accept_small_sites": True,
        "selection": "last",
        "trainer": trainer,
    }
    experiment = Experiment.resolve(with_settings({}, settings), zoo_task(name))
    return drive(Run(experiment, setups_of(name).of(experiment)).rounds())


def reason_against(name: str) -> str | None:
    """Why a model is not stacked, as the run itself says it."""
    data = federated(name, "fedavg", "stacked").data
    notes = [note.partition("not stacked: ")[2] for note in data["notes"] if "not stacked" in note]
    assert (data["trainer"] == "loop") == bool(notes), "a run reports a fallback, and only a fallback"
    return notes[0] if notes else None


def table() -> str:
    """The table of docs/reliability.md."""
    rows = ["| architecture | layers | stacked | why not |", "|---|---|---|---|"]
    for name in ZOO:
        reason = reason_against(name)
        layers = len(federated(name, "fedavg", "stacked").layers["layers"])
        rows.append(f"| {name} | {layers} | {'no' if reason else 'yes'} | {reason or ''} |")
    return "\n".join(rows)


def test_the_zoo_is_large() -> None:
    assert len(ZOO) >= 30


@every_architecture
def test_layers_are_complete_disjoint_and_in_the_order_of_the_data(name: str) -> None:
    own = ZOO[name]
    model = own.build().double()
    layers = LayerMap.of(model, own.inputs(2, generator_for(0, name)))
    held = [entry for entries in layers.entries.values() for entry in entries]
    assert sorted(held) == sorted(state_entries(model))
    assert sum(layers.num_parameters.values()) == sum(p.numel() for p in model.parameters() if p.requires_grad)
    assert layers.frozen == {entry for entry, p in model.named_parameters() if not p.requires_grad}
    assert layers.names[0].startswith(own.first)
    if "head" in layers.names:
        assert layers.names[-1] == "head"


def check(name: str, algorithm: str) -> None:
    """One round, asked to be stacked, gives what the loop gives, or falls back to the loop."""
    asked = federated(name, algorithm, "stacked")
    assert all(torch.isfinite(entry).all() for own in asked.weights.values() for entry in own.values())
    assert asked.data["trainer"] == ("stacked" if ZOO[name].stacks else "loop"), reason_against(name)
    if not ZOO[name].stacks:
        return  # the loop has just run: there is nothing to compare it with
    loop = federated(name, algorithm, "loop")
    assert [row[:5] for row in loop.score_rows] == [row[:5] for row in asked.score_rows]
    assert max(abs(a[5] - b[5]) for a, b in zip(loop.score_rows, asked.score_rows, strict=True)) < 1e-5  # type: ignore[operator]
    for site, own in loop.weights.items():
        for entry, tensor in own.items():
            assert float((tensor - asked.weights[site][entry]).abs().max()) < 1e-5, f"{site}, {entry}"
    assert loop.traffic_rows == asked.traffic_rows


@every_architecture
@pytest.mark.parametrize("algorithm", QUICK)
def test_a_round_is_the_same_stacked_or_not(name: str, algorithm: str) -> None:
    check(name, algorithm)


@pytest.mark.slow
@every_architecture
def test_every_other_algorithm_runs_stacked_or_not(name: str) -> None:
    for algorithm in ALGORITHMS.keys() - set(QUICK):
        try:
            check(name, algorithm)
        except ConfigError as refused:
            assert (algorithm, "linear last layer with a bias" in str(refused)) == ("feddbe", True)


@every_architecture
def test_frozen_parts_stay_as_they_were(name: str) -> None:
    kept = federated(name, "fedavg", "loop")
    frozen = {entry for entry, p in ZOO[name].build().named_parameters() if not p.requires_grad}
    start = kept.build_model().state_dict()
    for own in kept.weights.values():
        assert all(torch.equal(own[entry], start[entry]) for entry in frozen)


def test_the_documentation_has_this_table() -> None:
    assert table() in DOCUMENT.read_text(encoding="utf-8")


if __name__ == "__main__":
    print(table())  # noqa: T201 for the documentation
