"""StudyDirectory: the files of a study, written and read only here."""

from __future__ import annotations

import hashlib
import json
import re
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, TypeVar

from pydantic import TypeAdapter, ValidationError

from playerfl.errors import RunDirectoryError
from playerfl.runs.api import limited_threads
from playerfl.runs.experiment import Experiment
from playerfl.runs.files import DataFile, TimingFile
from playerfl.runs.result import RunResult
from playerfl.storage.atomic_files import RERUN_HINT, make_directory, storage_error, write_atomically
from playerfl.storage.csv_table import csv_text
from playerfl.storage.locking import DirectoryLock
from playerfl.studies.backends.group import EndedRun
from playerfl.studies.plan import Line, Study
from playerfl.studies.protocols import PROTOCOLS
from playerfl.studies.rates import (
    choose_rate,
    reported_regret,
    reported_value,
    tuned_loss,
    tuning_notes,
    validation_losses,
)
from playerfl.studies.run_file import PlannedRun, Software, planned_run, read_run_file, software

Phase = Literal["tuning", "evaluation"]
_SECONDS_FOR_WORKERS_TO_END = 10.0
_RUN_AGAIN = "run the study again"
RUN_FILES = "cells"
_FOLDERS = (RUN_FILES, "failed", "unfinished", "data")
_File = TypeVar("_File")
_TIMING = re.compile(r"(\w+),([0-9]+\.[0-9]+),([0-9]{1,9})")
_FILES = {"study.toml", "software.json", "timings.csv", *_FOLDERS}


@dataclass(frozen=True)
class Failure:
    """A run that failed, or (without a seed) a line for which no learning rate could be chosen."""

    task: str
    algorithm: str
    learning_rate: float | None
    seed: int | None
    reason: str
    key: str | None = None

    def __str__(self) -> str:
        at = "" if self.seed is None else f", learning rate {self.learning_rate:g}, seed {self.seed}"
        return f"{self.algorithm} on {self.task}{at}: {self.reason}"


class StudyDirectory:
    """A study and its results so far: one run file per finished run, named after everything that decides its result."""

    def __init__(self, path: Path, study: Study, software: Software, data: Mapping[str, DataFile]) -> None:
        """`data`: the description of each task's sites, by `data_name`."""
        self.path = path
        self.study = study
        self.software = software
        self.data = dict(data)
        self._lock = DirectoryLock(path)

    @classmethod
    def of(cls, path: Path, study: Study, data: Mapping[str, DataFile]) -> StudyDirectory:
        """The directory of a new or existing study; rejects a directory that holds something else."""
        cls._check_free(path)
        return cls(path, study, software(name for line in study.lines for name in line.experiment.names), data)

    @classmethod
    def open(cls, path: Path | str) -> StudyDirectory:
        """An existing study, as it was last run."""
        path = Path(path)
        if not (path / "study.toml").is_file():
            raise RunDirectoryError(
                f"there is no study in {path}; start one with  playerfl study FILE.toml --out {path}"
            )
        study = Study.resolve(Study.stored(path))
        names = {data_name(line.experiment) for line in study.lines}
        data = {name: _read_as(DataFile, path / "data" / f"{name}.json") for name in names}
        return cls(path, study, _read_as(Software, path / "software.json"), data)

    @staticmethod
    def _check_free(path: Path) -> None:
        if path.exists() and not path.is_dir():
            raise RunDirectoryError(f"{path} is a file; give a directory for --out")
        other_files = [entry.name for entry in path.iterdir()] if path.is_dir() else []
        other_files = [name for name in other_files if name not in _FILES and not name.startswith(".")]
        if other_files and not (path / "study.toml").is_file():
            raise RunDirectoryError(
                f"{path} holds files that are not a study's ({min(other_files)}); choose another directory for --out"
            )

    def begin(self) -> None:
        """Makes or reopens the directory, keeps other processes out, and writes the study file."""
        for folder in _FOLDERS:
            make_directory(self.path / folder)
        self._lock.take()
        with self._lock.released_on_failure():
            self._wait_for_workers()
            self._tidy()
            write_atomically(self.path / "software.json", _json_bytes(self.software), RERUN_HINT)
            for name, description in self.data.items():
                write_atomically(self.path / "data" / f"{name}.json", _json_bytes(description), RERUN_HINT)
            # Last, because a directory with this file is a study.
            write_atomically(self.path / "study.toml", self.study.to_toml().encode(), RERUN_HINT)

    def _tidy(self) -> None:
        """Removes what a process killed during `keep` left behind: partial files, and notes on runs that have ended."""
        finished = self.finished
        failed = [file for file in (self.path / "failed").glob("*.json") if file.stem in finished]
        ended = finished | self.failed
        unfinished = [file for file in (self.path / "unfinished").glob("*.safetensors") if file.stem in ended]
        for left in (*self.path.glob(".*.tmp"), *self.path.glob("*/.*.tmp"), *failed, *unfinished):
            _remove(left)
        timings = self.path / "timings.csv"
        noted = timings.read_bytes() if timings.is_file() else b""
        whole = noted[: noted.rfind(b"\n") + 1]
        if whole != noted:
            # The next line would be appended to the partial one, and lost with it.
            write_atomically(timings, whole, RERUN_HINT)

    def _wait_for_workers(self) -> None:
        """Workers of a killed process take a moment to notice; they hold a lock on `unfinished` until they end."""
        lock = DirectoryLock(self.path / "unfinished")
        end = time.monotonic() + _SECONDS_FOR_WORKERS_TO_END
        while True:
            try:
                lock.take()
            except RunDirectoryError:
                if time.monotonic() > end:
                    raise
                time.sleep(0.02)
            else:
                lock.release()
                return

    def end(self) -> None:
        self._lock.release()

    def planned(self, experiment: Experiment) -> PlannedRun:
        data = self.data[data_name(experiment)]
        return planned_run(experiment, data, self.software, keep_weights=self.study.keep_weights)

    @property
    def finished(self) -> set[str]:
        """Keys of the finished runs, of this study and of earlier settings."""
        return {file.stem for file in (self.path / RUN_FILES).glob("*.safetensors")}

    @property
    def failed(self) -> set[str]:
        return {file.stem for file in (self.path / "failed").glob("*.json")}

    def keep(self, run: PlannedRun, outcome: EndedRun, *, beside: int) -> None:
        """Writes the outcome of a run."""
        failure = self.path / "failed" / f"{run.key}.json"
        if outcome.file:
            write_atomically(self._file(run.key), outcome.file, RERUN_HINT)
            self._note_time(run.key, outcome.seconds, beside)
            _remove(failure)
        else:
            content = {
                "reason": outcome.reason,
                "experiment": run.experiment.model_dump(mode="json"),
                "traceback": outcome.traceback.splitlines(),
            }
            write_atomically(failure, _json_bytes(content), RERUN_HINT)
        _remove(self.path / "unfinished" / f"{run.key}.safetensors")

    def _file(self, key: str) -> Path:
        return self.path / RUN_FILES / f"{key}.safetensors"

    def _note_time(self, key: str, seconds: float, beside: int) -> None:
        """Times are stored separately from the run files, because the bytes of those must not depend on the clock."""
        try:
            with (self.path / "timings.csv").open("a", newline="", encoding="utf-8") as table:
                table.write(csv_text([(key, f"{seconds:.6f}", beside)]))
        except OSError as problem:
            raise storage_error(self.path / "timings.csv", problem, RERUN_HINT) from problem
        self.__dict__.pop("_timings", None)

    @cached_property
    def _timings(self) -> dict[str, TimingFile]:
        file = self.path / "timings.csv"
        if not file.is_file():
            return {}
        # A kill may have cut the last line short; one unknown time does no harm.
        lines = file.read_text(encoding="utf-8", errors="replace").splitlines()
        matches = (_TIMING.fullmatch(line) for line in lines)
        return {m[1]: {"wall_seconds": float(m[2]), "runs_side_by_side": int(m[3])} for m in matches if m}

    def result(self, experiment: Experiment) -> RunResult:
        """One finished run."""
        key = self.planned(experiment).key
        path = self._file(key)
        try:
            file = path.read_bytes()
        except OSError as problem:
            raise RunDirectoryError(f"{path} cannot be read: {problem.strerror or problem}") from problem
        unknown: TimingFile = {"wall_seconds": float("nan"), "runs_side_by_side": 1}
        # Its tensors are small: a second thread would only be waited for, for a long time on a busy machine.
        with limited_threads(1):
            return read_run_file(file, self.data[data_name(experiment)], self._timings.get(key, unknown), path)

    def rate_losses(self, line: Line) -> dict[float, float]:
        """The loss that each rate of a line is judged by, once all of its tuning runs have ended."""
        if PROTOCOLS[self.study.protocol].tunes_reported:
            metric = self.study.tuning_metric
            return {rate: reported_regret(values, metric) for rate, values in self._reported_values(line).items()}
        by_rate = self._tuning_results(line)
        return {
            rate: tuned_loss([None if run is None else validation_losses(run) for run in runs])
            for rate, runs in by_rate.items()
        }

    def tuning_notes(self, line: Line) -> list[str]:
        """Notes on the choice of a line's rate."""
        if not PROTOCOLS[self.study.protocol].tunes_reported or self.chosen_rate(line) is None:
            return []
        return tuning_notes(self._reported_values(line), self.study.tuning_metric)

    def all_tuning_notes(self) -> list[str]:
        """Those of all lines, each with its algorithm and task."""
        lines = self.study.lines
        return [f"{line.algorithm} on {line.task}: {note}" for line in lines for note in self.tuning_notes(line)]

    def _reported_values(self, line: Line) -> dict[float, list[float | None]]:
        metric = self.study.tuning_metric
        by_rate = self._tuning_results(line)
        return {
            rate: [None if run is None else reported_value(run, metric) for run in runs]
            for rate, runs in by_rate.items()
        }

    def _tuning_results(self, line: Line) -> dict[float, list[RunResult | None]]:
        """By rate, in the order of the tuning seeds; None for a run that failed."""
        finished = self.finished

        def result(rate: float, seed: int) -> RunResult | None:
            experiment = line.at(rate, seed)
            return self.result(experiment) if self.planned(experiment).key in finished else None

        return {rate: [result(rate, seed) for seed in line.tuning_seeds] for rate in line.rates}

    def chosen_rate(self, line: Line) -> float | None:
        """The rate of the reported runs; None before tuning has ended, or if no rate gave a finite loss."""
        if len(line.rates) == 1:
            return line.rates[0]
        known = self.finished | self.failed
        if any(self.planned(experiment).key not in known for experiment in line.tuning):
            return None
        return choose_rate(self.rate_losses(line))

    @property
    def chosen_rates(self) -> dict[tuple[str, str], float | None]:
        """By task and algorithm."""
        return {(line.task, line.algorithm): self.chosen_rate(line) for line in self.study.lines}

    def results(self, phase: Phase = "evaluation") -> list[RunResult]:
        """The finished runs of a phase: those that are reported, or those that chose the learning rates."""
        if phase == "evaluation":
            return [run for line in self.study.lines for run in self.line_results(line, self.chosen_rate(line))]
        finished = self.finished
        return [self.result(e) for e in self._experiments(phase) if self.planned(e).key in finished]

    def line_results(self, line: Line, rate: float | None) -> list[RunResult]:
        """The finished runs of one line at a rate."""
        finished = self.finished
        experiments = [] if rate is None else line.evaluation(rate)
        return [self.result(experiment) for experiment in experiments if self.planned(experiment).key in finished]

    def _experiments(self, phase: Phase) -> Iterable[Experiment]:
        for line in self.study.lines:
            rate = self.chosen_rate(line) if phase == "evaluation" else None
            yield from line.tuning if phase == "tuning" else line.evaluation(rate) if rate is not None else ()

    def missing(self) -> list[Experiment]:
        """Runs that are neither done nor failed, except those that still wait for their learning rate."""
        known = self.finished | self.failed
        phases: tuple[Phase, ...] = ("tuning", "evaluation")
        return [e for phase in phases for e in self._experiments(phase) if self.planned(e).key not in known]

    def failures(self, rates: Mapping[tuple[str, str], float | None] | None = None) -> list[Failure]:
        """The failures, with reasons; pass `chosen_rates` if you have them."""
        rates = self.chosen_rates if rates is None else rates
        finished, failed = self.finished, self.failed
        known = finished | failed
        failures = []
        for line in self.study.lines:
            rate = rates[line.task, line.algorithm]
            for experiment in (*line.tuning, *(line.evaluation(rate) if rate is not None else ())):
                key = self.planned(experiment).key
                if key in failed:
                    reason = str(_read_as(dict, self.path / "failed" / f"{key}.json").get("reason", "unknown reason"))
                    at = experiment.training.learning_rate
                    failures.append(Failure(line.task, line.algorithm, at, experiment.seed, reason, key))
            if rate is None and all(self.planned(e).key in known for e in line.tuning):
                ran = any(self.planned(e).key in finished for e in line.tuning)
                reason = (
                    "no learning rate gave a finite validation loss; try smaller ones" if ran else "no tuning run ended"
                )
                failures.append(Failure(line.task, line.algorithm, None, None, reason))
        return failures

    @property
    def num_other_runs(self) -> int:
        """Finished runs with other settings: kept, and used again if those settings return."""
        keys = {self.planned(e).key for line in self.study.lines for e in line.tuning}
        keys |= {self.planned(e).key for line in self.study.lines for rate in line.rates for e in line.evaluation(rate)}
        return len(self.finished - keys)


def _remove(file: Path) -> None:
    try:
        file.unlink(missing_ok=True)
    except OSError as problem:
        raise storage_error(file, problem, RERUN_HINT) from problem


def data_name(experiment: Experiment) -> str:
    """A file name for the description of an experiment's sites, model and trainer."""
    given = experiment.model_dump_json(
        include={"task", "data", "trainer", "device", "bn_stats", "tie_policy", "granularity", "model"}
    )
    return f"{experiment.task_file_name}-{hashlib.blake2b(given.encode(), digest_size=4).hexdigest()}"


def _json_bytes(content: Mapping[str, Any]) -> bytes:
    return (json.dumps(content, indent=1) + "\n").encode()


def _read_as(kind: type[_File], path: Path) -> _File:
    try:
        content: _File = json.loads(path.read_text(encoding="utf-8"))
        TypeAdapter(kind).validate_python(content, strict=True)
    except ValidationError as problem:
        raise RunDirectoryError(f"{path} is not a valid file of a study; {_RUN_AGAIN}") from problem
    except (OSError, ValueError, RecursionError) as problem:
        raise RunDirectoryError(f"{path} cannot be read: {problem}; {_RUN_AGAIN}") from problem
    return content
