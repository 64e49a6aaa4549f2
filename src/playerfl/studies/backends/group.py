"""Runs of a study side by side in one process: what every worker does."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from playerfl.data.download.directory import use_data_directory
from playerfl.data.examples import TensorExamples
from playerfl.engine.scheduler import drive, gather
from playerfl.errors import StorageError, sentence_of, users_traceback
from playerfl.learning.job import AbandonedError
from playerfl.runs.api import limited_threads
from playerfl.runs.run import Run
from playerfl.runs.setup import Setup, Setups
from playerfl.studies.run_file import PlannedRun, RunFileRecord

STACKED_RUNS = 50
# Of the training data of runs side by side, where each has its own; the trainer holds as much again while it trains.
_MOST_BYTES = 2**28


def runs_together(setup: Setup, *, own_data: bool = False) -> int:
    """How many runs to train side by side: many if their models are stacked, else one.

    `own_data`: whether every run has its own split, so that the data of all of them must fit into memory.
    """
    if setup.learner.trainer != "stacked":
        return 1
    parts = [part for site in setup.sites.values() for part in (site.train, site.validation, site.test)]
    held = sum(part.num_bytes for part in parts if isinstance(part, TensorExamples))
    return max(1, min(STACKED_RUNS, _MOST_BYTES // max(1, held))) if own_data else STACKED_RUNS


@dataclass(frozen=True)
class WorkerConfig:
    """What every worker of a study needs to know."""

    keep_weights: bool = False
    unfinished: str | None = None
    """Directory for checkpoints; None if the worker has no access to the study's directory."""
    checkpoint_seconds: float = 30.0
    data_directory: str | None = None
    """Where dataset files are, if the user gave a folder; None for the worker's own default."""


@dataclass(frozen=True)
class EndedRun:
    """How a run ended: its run file, or why it failed."""

    key: str
    file: bytes = b""
    seconds: float = 0.0
    reason: str = ""
    traceback: str = ""
    storage: bool = False
    """Its checkpoint could not be written, which is not the run's fault."""


def run_group(
    runs: Sequence[PlannedRun],
    setups: Setups,
    config: WorkerConfig,
    progress: Callable[[float], None] = lambda share: None,
) -> list[EndedRun]:
    """Trains runs side by side; a run that raises fails on its own.

    The runs that shared a stack with it are run again without it.

    `progress` is called with the share of the group's rounds that is done.
    """
    try:
        with use_data_directory(Path(config.data_directory) if config.data_directory else None):
            return _side_by_side(runs, setups, config, progress)
    except Exception as problem:
        if len(runs) == 1:
            return [_failed(runs[0], problem)]
        return [outcome for run in runs for outcome in run_group([run], setups, config, progress)]


def _side_by_side(
    runs: Sequence[PlannedRun], setups: Setups, config: WorkerConfig, progress: Callable[[float], None]
) -> list[EndedRun]:
    total = sum(run.experiment.rounds + 2 for run in runs)
    done: dict[str, int] = {}

    def progress_of(key: str) -> Callable[[int], None]:
        def note(exchanges: int) -> None:
            done[key] = exchanges
            progress(sum(done.values()) / total)

        return note

    with limited_threads(max(run.experiment.threads for run in runs)):
        records = [
            RunFileRecord(
                keep_weights=config.keep_weights,
                unfinished=Path(config.unfinished) / f"{run.key}.safetensors" if config.unfinished else None,
                checkpoint_seconds=config.checkpoint_seconds,
                progress=progress_of(run.key),
            )
            for run in runs
        ]
        works = [_guarded(run, setups, record, len(runs)) for run, record in zip(runs, records, strict=True)]
        problems = drive(gather(works))
    outcomes = {
        run.key: _failed(run, problem) if problem else EndedRun(run.key, record.file, record.wall_seconds)
        for run, record, problem in zip(runs, records, problems, strict=True)
    }
    # A run abandoned because another in its stack failed is run again without that one.
    abandoned = [run for run, problem in zip(runs, problems, strict=True) if isinstance(problem, AbandonedError)]
    if abandoned:
        outcomes |= {outcome.key: outcome for outcome in run_group(abandoned, setups, config, progress)}
    # One exception raised in several runs is about their stack as a whole: each of them may succeed alone.
    for run, problem in zip(runs, problems, strict=True):
        if problem is not None and sum(other is problem for other in problems) > 1:
            (outcomes[run.key],) = run_group([run], setups, config, progress)
    return [outcomes[run.key] for run in runs]


async def _guarded(run: PlannedRun, setups: Setups, record: RunFileRecord, beside: int) -> Exception | None:
    try:
        await Run(run.experiment, setups.of(run.experiment), record, beside=beside).rounds()
    except Exception as problem:
        return problem
    return None


def _failed(run: PlannedRun, problem: Exception) -> EndedRun:
    trace = users_traceback(problem) or "".join(traceback.format_exception(problem))
    storage = isinstance(problem, StorageError)
    return EndedRun(run.key, reason=" ".join(sentence_of(problem).split()), traceback=trace, storage=storage)
