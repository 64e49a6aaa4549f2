"""A group of cells, run side by side in one process: what workers do, wherever they are."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from playerfl.data.download.directory import use_data_directory
from playerfl.engine.scheduler import drive, gather
from playerfl.errors import StorageError, sentence_of
from playerfl.learning.job import AbandonedError
from playerfl.runs.api import limited_threads
from playerfl.runs.environment import environment
from playerfl.runs.run import Run
from playerfl.runs.setup import Setup, Setups
from playerfl.studies.run_file import Cell, CellRecord

STACKED_RUNS = 50


def runs_together(setup: Setup) -> int:
    """How many runs are best trained side by side: many where models are stacked, else one."""
    return STACKED_RUNS if setup.learner.trainer == "stacked" else 1


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
    storage: bool = False
    """It could not be written, which is no fault of the cell."""


@cache
def _made_with(device: str, threads: int) -> Mapping[str, Any]:
    return environment(device, threads)


def run_group(
    cells: Sequence[Cell], setups: Setups, orders: Orders, heard: Callable[[float], None] = lambda share: None
) -> list[Outcome]:
    """Runs cells side by side; one that raises fails alone.

    Those that shared a stack with it are run again without it.

    `heard` is told which share of the group's rounds is done.
    """
    try:
        with use_data_directory(Path(orders.data_directory) if orders.data_directory else None):
            return _side_by_side(cells, setups, orders, heard)
    except Exception as problem:
        if len(cells) == 1:
            return [_failed(cells[0], problem)]
        return [outcome for cell in cells for outcome in run_group([cell], setups, orders, heard)]


def _side_by_side(
    cells: Sequence[Cell], setups: Setups, orders: Orders, heard: Callable[[float], None]
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
        runs = [
            Run(cell.experiment, setups.of(cell.experiment), record, beside=len(cells))
            for cell, record in zip(cells, records, strict=True)
        ]
        problems = drive(gather([_guarded(run) for run in runs]))
    outcomes = {
        cell.key: _failed(cell, problem) if problem else Outcome(cell.key, record.file, record.wall_seconds)
        for cell, record, problem in zip(cells, records, problems, strict=True)
    }
    # One that was abandoned, because another in its stack failed, is run again without that one.
    abandoned = [c for c, problem in zip(cells, problems, strict=True) if isinstance(problem, AbandonedError)]
    if abandoned:
        outcomes |= {outcome.key: outcome for outcome in run_group(abandoned, setups, orders, heard)}
    # One exception raised in several runs is of their stack as a whole: each of them may do well alone.
    for cell, problem in zip(cells, problems, strict=True):
        if problem is not None and sum(other is problem for other in problems) > 1:
            (outcomes[cell.key],) = run_group([cell], setups, orders, heard)
    return [outcomes[cell.key] for cell in cells]


async def _guarded(run: Run) -> Exception | None:
    try:
        await run.rounds()
    except Exception as problem:
        return problem
    return None


def _failed(cell: Cell, problem: Exception) -> Outcome:
    told = "".join(traceback.format_exception(problem))
    storage = isinstance(problem, StorageError)
    return Outcome(cell.key, reason=" ".join(sentence_of(problem).split()), traceback=told, storage=storage)
