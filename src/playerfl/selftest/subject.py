"""The algorithm under test: how it is run on small sites, and how two of its runs are compared."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from playerfl.engine.loop import run_rounds
from playerfl.engine.scheduler import drive
from playerfl.engine.transport import InProcess, Transport
from playerfl.federation.messages import SiteId
from playerfl.runs.experiment import Experiment, find_algorithm
from playerfl.runs.result import Row, RunResult
from playerfl.runs.run import Run
from playerfl.runs.settings_table import with_settings
from playerfl.runs.setup import Setups
from playerfl.selftest.small import MODELS, sites
from playerfl.selftest.statics import Statics
from playerfl.tasks.task import Task, own_task
from playerfl.weights import digest

ROUNDS = 3
TRAINING: dict[str, Any] = {
    "data.accept_small_sites": True, "training.batch_size": 8, "training.learning_rate": 0.01,
}  # fmt: skip
_SETTINGS = {"rounds": ROUNDS, "device": "cpu", "selection": "last", **TRAINING}


class BrokenError(Exception):
    """What an algorithm does wrong, and what to do about it."""


class NewProcess(Protocol):
    """Runs that another process makes."""

    def outcomes(self, seconds: float) -> dict[str, Outcome]: ...

    def close(self) -> None: ...


class Subject:
    """The algorithm under test, and how it is run."""

    def __init__(self, name: str, seconds: float = 60.0) -> None:
        """`name`: of the package, or FILE.py:NAME. `seconds`: the time limit of a check."""
        self.name = name
        self.seconds = seconds
        self.kind: Any = find_algorithm(name)
        self.statics = Statics(self.kind)
        self.namespace = vars(sys.modules[self.kind.__module__])
        self.file = str(self.namespace.get("__file__", ""))
        self.fresh_process: NewProcess | None = None
        """The same run in a new process, if there is one."""
        self._setups: dict[str, Setups] = {}
        self._tasks: dict[str, Task] = {}

    def task(self, model: str = "mlp") -> Task:
        if model not in self._tasks:
            self._tasks[model] = own_task(MODELS[model], sites(), name="selftest")
            self._setups[model] = Setups(self._tasks[model])
        return self._tasks[model]

    def started(self, model: str = "mlp", **settings: Any) -> Run:
        """A run that has not begun."""
        task = self.task(model)
        table = with_settings({"algorithm": {"name": self.name}}, {**_SETTINGS, **settings})
        experiment = Experiment.resolve(table, task)
        setup = self._setups[model].of(experiment)
        experiment.build_algorithm().check_layers(setup.learner.layers)
        return Run(experiment, setup)

    def run(self, model: str = "mlp", transport: Callable[[Run], Transport] | None = None, **settings: Any) -> Run:
        """A finished run."""
        return finished(self.started(model, **settings), transport)


def finished(run: Run, transport: Callable[[Run], Transport] | None = None) -> Run:
    """Runs all rounds of a run; in this process, unless a transport is given."""
    way = transport(run) if transport else InProcess(run.algorithm, run.clients, run.experiment.seed, run.evaluation)
    plan, experiment = run.evaluation, run.experiment
    drive(run_rounds(run.algorithm, run.server, way, experiment.rounds, run, plan, experiment.participation))
    return run


@dataclass(frozen=True)
class Outcome:
    """What a run gave: its scores, and a fingerprint of each tensor of each site's model."""

    rows: list[Row]
    models: dict[SiteId, dict[str, str]]

    @classmethod
    def of(cls, result: Run | RunResult) -> Outcome:
        finished_run = result._result() if isinstance(result, Run) else result
        models = {s: {n: digest({n: w}) for n, w in weights.items()} for s, weights in finished_run.weights.items()}
        return cls([tuple(row) for row in finished_run.score_rows], models)

    def differs_from(self, other: Outcome) -> str | None:
        """Where the other outcome differs first, in words; None if both are the same bit for bit."""
        for one, two in zip(sorted(self.rows, key=_place), sorted(other.rows, key=_place), strict=False):
            if one != two and not (one[:5] == two[:5] and one[5] != one[5] and two[5] != two[5]):
                return f"from round {one[1]} on, at {one[2]} ({one[3]} {one[4]} {one[5]:.6g}, not {two[5]:.6g})"
        for site, model in self.models.items():
            for name, fingerprint in model.items():
                if other.models[site][name] != fingerprint:
                    return f"in {name} of {site}'s model"
        return None if len(self.rows) == len(other.rows) else "in how often sites were scored"


def _place(row: Any) -> tuple[Any, ...]:
    return (row[1], row[0], *row[2:5])
