"""A group of cells, run side by side in one process: what workers do, wherever they are."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from torch import nn

from playerfl.data.directory import use_data_directory
from playerfl.engine.scheduler import drive, gather
from playerfl.environment import environment
from playerfl.errors import PlayerflError
from playerfl.experiment import Experiment, find_task
from playerfl.ground import Ground, prepare_ground
from playerfl.running import limited_threads
from playerfl.single_run import Run
from playerfl.studies.cell import Cell, CellRecord
from playerfl.tasks.task import Task

STACKED_RUNS = 50
_STACKABLE = (nn.Linear, nn.ReLU, nn.LeakyReLU, nn.GELU, nn.SiLU, nn.Tanh, nn.Sigmoid, nn.Flatten, nn.Identity)
# What may differ between runs that stand on the same ground.
_NOT_OF_THE_GROUND: Any = {
    "algorithm": True, "rounds": True, "participation": True, "selection": True, "eval_point": True,
    "training": {"learning_rate"},
}  # fmt: skip


def runs_together(model: nn.Module) -> int:
    """How many runs of a model are best trained side by side: many where they can be stacked, else one."""
    leaves = [module for module in model.modules() if not list(module.children())]
    return STACKED_RUNS if all(isinstance(leaf, _STACKABLE) for leaf in leaves) else 1


class Grounds:
    """What runs stand on. Data are read once and kept; grounds are kept while group after group asks for them."""

    def __init__(self) -> None:
        self._tasks: dict[str, Task] = {}
        self._grounds: dict[str, Ground] = {}

    def of(self, experiments: Sequence[Experiment]) -> list[Ground]:
        """The ground of each; those no experiment of this group stands on are forgotten."""
        found: dict[str, Ground] = {}
        keys = [experiment.model_dump_json(exclude=_NOT_OF_THE_GROUND) for experiment in experiments]
        for key, experiment in zip(keys, experiments, strict=True):
            if key not in found:
                found[key] = self._grounds.get(key) or prepare_ground(experiment, self._task(experiment))
        self._grounds = found
        return [found[key] for key in keys]

    def _task(self, experiment: Experiment) -> Task:
        """The task with its data in memory."""
        key = experiment.model_dump_json(include={"task", "data"})
        if key not in self._tasks:
            task = find_task(experiment.task)
            options = experiment.data_options(task)
            task = task.for_options(options)
            sites = task.load_sites(options)
            # One task at a time: the data of all tasks of a study need not fit into memory together.
            self._tasks = {key: replace(task, adapt=None, load_sites=lambda _: sites)}
        return self._tasks[key]


@dataclass(frozen=True)
class Orders:
    """What a study asks of whoever runs its cells."""

    keep_weights: bool = False
    unfinished: str | None = None
    """Directory for runs under way; None where the worker has no access to the study's."""
    checkpoint_seconds: float = 30.0
    data_directory: str | None = None
    """Where dataset files are, if the user said so; else whatever the worker's surroundings say."""


@dataclass(frozen=True)
class Outcome:
    """What became of a cell: its file, or why it failed."""

    key: str
    file: bytes = b""
    seconds: float = 0.0
    reason: str = ""
    traceback: str = ""


@cache
def _made_with(device: str, threads: int) -> Mapping[str, Any]:
    return environment(device, threads)


def run_group(
    cells: Sequence[Cell], grounds: Grounds, orders: Orders, heard: Callable[[float], None] = lambda share: None
) -> list[Outcome]:
    """Runs cells side by side. If one of them raises, they are run one by one, so that only that one fails.

    `heard` is told which share of the group's rounds is done.
    """
    try:
        with use_data_directory(Path(orders.data_directory) if orders.data_directory else None):
            return _side_by_side(cells, grounds, orders, heard)
    except Exception as problem:
        if len(cells) == 1:
            return [_failed(cells[0], problem)]
        return [outcome for cell in cells for outcome in run_group([cell], grounds, orders, heard)]


def _side_by_side(
    cells: Sequence[Cell], grounds: Grounds, orders: Orders, heard: Callable[[float], None]
) -> list[Outcome]:
    total = sum(cell.experiment.rounds + 2 for cell in cells)
    done: dict[str, int] = {}

    def told(key: str) -> Callable[[int], None]:
        def tell(exchanges: int) -> None:
            done[key] = exchanges
            heard(sum(done.values()) / total)

        return tell

    with limited_threads(max(cell.experiment.threads for cell in cells)):
        records = [
            CellRecord(
                cell,
                _made_with(cell.experiment.device, cell.experiment.threads),
                keep_weights=orders.keep_weights,
                unfinished=Path(orders.unfinished) / f"{cell.key}.safetensors" if orders.unfinished else None,
                seconds=orders.checkpoint_seconds,
                heard=told(cell.key),
            )
            for cell in cells
        ]
        standing = grounds.of([cell.experiment for cell in cells])
        runs = [
            Run(cell.experiment, ground, record, beside=len(cells))
            for cell, ground, record in zip(cells, standing, records, strict=True)
        ]
        drive(gather([run.rounds() for run in runs]))
    return [Outcome(cell.key, record.file, record.wall_seconds) for cell, record in zip(cells, records, strict=True)]


def _failed(cell: Cell, problem: Exception) -> Outcome:
    reason = str(problem) if isinstance(problem, PlayerflError) else f"{type(problem).__name__}: {problem}"
    told = "".join(traceback.format_exception(problem))
    return Outcome(cell.key, reason=" ".join(reason.split()), traceback=told)
