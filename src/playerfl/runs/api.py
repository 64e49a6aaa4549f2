"""run and resume: from one or several experiments, side by side, to their results."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import nn

from playerfl.algorithms import ALGORITHMS, Algorithm
from playerfl.data.download.directory import use_data_directory
from playerfl.engine.scheduler import drive, gather
from playerfl.engine.transport import Transport
from playerfl.errors import ConfigError, RunDirectoryError
from playerfl.runs.directory import ROSTER, RunDirectory
from playerfl.runs.environment import environment
from playerfl.runs.experiment import Experiment
from playerfl.runs.memory import freed_memory_kept
from playerfl.runs.result import RunResult
from playerfl.runs.run import Listener, Run, check_unseen
from playerfl.runs.settings_table import with_settings
from playerfl.runs.setup import Setups, initial_model
from playerfl.storage.atomic_files import make_directory, write_atomically
from playerfl.tasks.task import Task

COMPARISON = "comparison.json"


def load_result(path: Path | str, *, task: Task | None = None) -> RunResult:
    """Reads a finished run from its directory; pass the `task` again if it was your own."""
    return _finished(RunDirectory.open(Path(path)), task)


def _finished(directory: RunDirectory, task: Task | None) -> RunResult:
    def rebuild() -> nn.Module:
        experiment = Experiment.of_run(directory.path, task)
        return initial_model(experiment, task)

    return directory.result(rebuild)


def run_experiments(
    experiments: Sequence[Experiment],
    places: Sequence[RunDirectory | Path | None],
    task: Task | None = None,
    listener: Listener | None = None,
    *,
    overwrite: bool = False,
    home: Path | None = None,
    transport_for: Callable[[Run], Transport] | None = None,
) -> list[RunResult]:
    """Runs experiments side by side in one process; finished ones are read instead.

    A place is a directory to continue in, a path where one is made once the data have been checked, or None for
    a run that writes no files. `home`: where to record which runs belong to the comparison. `transport_for`:
    the transport of a run whose sites are not in this process.
    """
    directories = [place for place in places if isinstance(place, RunDirectory)]
    works = []
    try:
        for place in places:
            if isinstance(place, Path):
                RunDirectory.check_free(place, overwrite=overwrite)
        setups = Setups(task)
        with freed_memory_kept(), limited_threads(max(experiment.threads for experiment in experiments)):
            unfinished = [
                None if isinstance(place, RunDirectory) and place.is_finished else setups.of(experiment)
                for experiment, place in zip(experiments, places, strict=True)
            ]
            for experiment, setup in zip(experiments, unfinished, strict=True):
                if setup:
                    experiment.build_algorithm().check_layers(setup.learner.layers)
                    check_unseen(experiment, setup)
            if home is not None:
                write_comparison(home, experiments)
            for experiment, place, setup in zip(experiments, places, unfinished, strict=True):
                directory = None if isinstance(place, Path) else place
                if isinstance(place, Path):
                    made_with = environment(experiment.device, experiment.threads)
                    directory = RunDirectory.create(place, experiment.to_toml(), made_with, overwrite=overwrite)
                    directories.append(directory)
                if setup:
                    started = Run(experiment, setup, directory, listener, beside=len(places))
                    works.append(started.rounds(transport_for(started) if transport_for else None))
                elif directory:
                    works.append(_already(_finished(directory, task)))
            return drive(gather(works))
    finally:
        # If a later run could not start, those before it were never driven.
        for work in works:
            work.close()
        for directory in directories:
            directory.unlock()


async def _already(result: RunResult) -> RunResult:
    return result


@contextmanager
def limited_threads(count: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def reopen_directory(path: Path, task: Task | None = None) -> tuple[Experiment, RunDirectory]:
    """Opens and locks a run directory, and records in it any change of software; also returns its experiment."""
    directory = RunDirectory.open(path)
    if directory.has(ROSTER):
        raise RunDirectoryError(f"{path} is a job across institutions; continue it with  {directory.continued_with}")
    experiment = Experiment.of_run(path, task)
    directory.lock()
    with directory.unlocked_on_failure():
        recorded = directory.read_json("environment.json")
        now = environment(experiment.device, experiment.threads)
        before = recorded.get("resumed_with", [])
        known = [recorded, *before]
        if directory.is_finished:
            directory.drop_checkpoint()
        elif all(any(past.get(k) != v for k, v in now.items()) for past in known):
            directory.write_json("environment.json", {**recorded, "resumed_with": [*before, now]})
    return experiment, directory


def write_comparison(home: Path, experiments: Sequence[Experiment]) -> None:
    """Records which runs belong together, and in which order, before the first of them has a directory."""
    if (home / "experiment.toml").exists():
        raise RunDirectoryError(f"{home} holds a single run; choose another directory for --out")
    make_directory(home)
    tables = [experiment.to_toml() for experiment in experiments]
    write_atomically(home / COMPARISON, (json.dumps({"experiments": tables}, indent=1) + "\n").encode())


def read_comparison(home: Path) -> list[Experiment] | None:
    """The experiments of a comparison in order; None if the directory holds no comparison."""
    file = home / COMPARISON
    if not file.is_file():
        return None
    try:
        tables = json.loads(file.read_text(encoding="utf-8"))["experiments"]
        return [Experiment.resolve(tomllib.loads(table)) for table in tables]
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as problem:
        raise RunDirectoryError(f"{file} cannot be read: {problem}") from problem


def run(
    task: str | Task = "digits",
    algorithm: str | Algorithm = "player_fl",
    *,
    rounds: int | None = None,
    seed: int = 0,
    learning_rate: float | None = None,
    settings: Mapping[str, Any] | Sequence[str] = (),
    out: Path | str | None = None,
    overwrite: bool = False,
    device: str = "auto",
    data_dir: Path | str | None = None,
    listener: Listener | None = None,
) -> RunResult:
    """Runs one experiment and returns its result.

    `task` is a name, a folder with one file per site, FILE.py:NAME, or your own `Task` (see `own_task`); `algorithm`
    is a name or an instance. `settings` takes any other setting of an experiment file, as
    {"training.batch_size": 16} or ["training.batch_size=16"].
    With `out`, the run is saved in that directory and can be resumed; without it, nothing is written. `data_dir` is
    where dataset files are (default: $PLAYERFL_DATA, or else the user's cache). `listener` is called after every
    exchange, and can stop the run by raising `StopRun`.
    """
    own_task = task if isinstance(task, Task) else None
    given: dict[str, Any] = {"task": own_task.name if own_task else task, "seed": seed, "device": device}
    if rounds is not None:
        given["rounds"] = rounds
    if learning_rate is not None:
        given["training"] = {"learning_rate": learning_rate}
    given["algorithm"] = _algorithm_table(algorithm)
    experiment = Experiment.resolve(with_settings(given, settings), own_task)
    place = None if out is None else Path(out)
    with use_data_directory(None if data_dir is None else Path(data_dir)):
        return run_experiments([experiment], [place], own_task, listener, overwrite=overwrite)[0]


def resume(path: Path | str, *, task: Task | None = None, listener: Listener | None = None) -> RunResult:
    """Continues an interrupted run; pass the `task` again if it was your own."""
    experiment, directory = reopen_directory(Path(path), task)
    return run_experiments([experiment], [directory], task, listener)[0]


def _algorithm_table(algorithm: str | Algorithm) -> dict[str, Any]:
    if isinstance(algorithm, str):
        return {"name": algorithm}
    for name, kind in ALGORITHMS.items():
        if type(algorithm) is kind:
            return {"name": name, **algorithm.__dict__}
    raise ConfigError(
        f"{type(algorithm).__name__} is not in playerfl.algorithms.ALGORITHMS; add it there under a name first"
    )
