"""Small federations for tests: tasks of a few rows, and ways to run and compare them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import cache
from typing import Any

import pytest
import torch
from torch import nn

from playerfl.algorithms import Algorithm
from playerfl.engine.scheduler import drive
from playerfl.runs.experiment import Experiment
from playerfl.runs.result import RunResult
from playerfl.runs.run import Run
from playerfl.runs.settings_table import with_settings
from playerfl.runs.setup import Setup, Setups, prepare_setup
from playerfl.selftest.small import CLASSES as CLASSES
from playerfl.selftest.small import FEATURES as FEATURES
from playerfl.selftest.small import MODELS, mlp, sites
from playerfl.selftest.small import convolutional as convolutional
from playerfl.selftest.small import with_batch_norm as with_batch_norm
from playerfl.selftest.small import with_dropout as with_dropout
from playerfl.tasks.task import Task, own_task

QUICK = {"training.batch_size": 8, "training.learning_rate": 0.01, "selection": "last"}


def quick_for(names: Iterable[str], *quick: str) -> list[Any]:
    """All names as parameters, most of them only in the full suite."""
    return [name if name in quick else pytest.param(name, marks=pytest.mark.slow) for name in names]


def task(model: str = "mlp", count: int = 3, **changes: Any) -> Task:
    return (
        own_task(MODELS[model], changes.pop("sites", None) or sites(count), **changes)
        if changes
        else _task(model, count)
    )


@cache
def _task(model: str, count: int) -> Task:
    own = own_task(MODELS[model], sites(count))
    _SETUPS[id(own)] = Setups(own)
    return own


_SETUPS: dict[int, Setups] = {}


def setup_of(experiment: Experiment, a_task: Task) -> Setup:
    """Prepared once for the tasks above, as in a study: preparing takes a quarter of a short run's time."""
    return _SETUPS[id(a_task)].of(experiment) if id(a_task) in _SETUPS else prepare_setup(experiment, a_task)


def double_task(build: Callable[[], nn.Module] = mlp, **changes: Any) -> Task:
    """In float64, where trainers may differ only by rounding."""
    return own_task(lambda: build().double(), {name: (x.double(), y) for name, (x, y) in sites().items()}, **changes)


def settings_of(algorithm: str | Algorithm, settings: Mapping[str, Any]) -> dict[str, Any]:
    from playerfl.runs.api import _algorithm_table

    return with_settings({"algorithm": _algorithm_table(algorithm)}, {**QUICK, **settings})


def federate(algorithm: str | Algorithm, a_task: Task | None = None, rounds: int = 3, **settings: Any) -> RunResult:
    return drive(build(algorithm, a_task, rounds, **settings).rounds())


@cache
def plain_run(name: str, model: str = "mlp") -> RunResult:
    """Three rounds with the settings above, run once, for comparison with other ways to run them. Only to be read."""
    return federate(name, task(model))


def build(algorithm: str | Algorithm, a_task: Task | None = None, rounds: int = 3, **settings: Any) -> Run:
    """A run that has not started, with its server and clients accessible."""
    own = a_task or task()
    experiment = Experiment.resolve(settings_of(algorithm, {"rounds": rounds, **settings}), own)
    return Run(experiment, setup_of(experiment, own))


def largest_difference(left: RunResult, right: RunResult) -> float:
    """Over all sites' final models; 0.0 means bit for bit equal (nan differs from itself)."""
    assert left.sites == right.sites
    return max(
        float((left.weights[site][name].double() - right.weights[site][name].double()).abs().max())
        for site in left.sites
        for name in left.weights[site]
    )


def assert_same(left: RunResult, right: RunResult) -> None:
    """The same models and the same scores, bit for bit."""
    for site in left.sites:
        for name, tensor in left.weights[site].items():
            assert torch.equal(tensor, right.weights[site][name]), f"{site} differs in {name}"
    assert sorted(left.score_rows) == sorted(right.score_rows)
