"""RunDirectory: the files of one run, written and read only here."""

from __future__ import annotations

import contextlib
import csv
import json
import os
import shutil
import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

from torch import nn

from playerfl.errors import RunDirectoryError
from playerfl.federation.messages import ConfusionKey
from playerfl.learning.confusion import Matrix
from playerfl.runs.confusions import CONFUSION_COLUMNS, Confusions
from playerfl.runs.files import DataFile, EnvironmentFile, LayersFile, TimingFile
from playerfl.runs.measures.outcomes import Outcomes, from_tree, tree_of
from playerfl.runs.model_files import FOLDER, FROZEN, ModelFiles, write_models
from playerfl.runs.result import SCORE_COLUMNS, TRAFFIC_COLUMNS, Row, RunResult, digest_of
from playerfl.runs.run import Resumed
from playerfl.runs.schema import checked
from playerfl.storage import tensor_tree
from playerfl.storage.atomic_files import make_directory, storage_error, write_atomically
from playerfl.storage.csv_table import csv_text, plain_cell
from playerfl.storage.locking import DirectoryLock, in_use
from playerfl.weights import Weights

FORMAT = "playerfl run 1"
_HELD_BYTES = 2**28
"""If all sites' models together are larger than this, they are read from their files one by one."""
ROSTER = "roster.json"
"""The sites of a job across institutions; a run on one machine has no such file."""
CONFUSIONS = "confusions.csv"
OUTCOMES = "outcomes.safetensors"
_FILES = {
    "experiment.toml",
    "environment.json",
    "scores.csv",
    "traffic.csv",
    CONFUSIONS,
    OUTCOMES,
    "layers.json",
    "data.json",
    "timing.json",
    "checkpoint.safetensors",
    "finished.json",
    FOLDER,
    FROZEN,
    "comparison.png",
    "report",
}


class RunDirectory:
    """The files of one run. Every write is atomic, or is truncated to the last checkpoint on resume."""

    keeps_outcomes = True

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = DirectoryLock(path)

    @classmethod
    def create(
        cls, path: Path, experiment_toml: str, environment: EnvironmentFile, *, overwrite: bool = False
    ) -> RunDirectory:
        present = cls.check_free(path, overwrite=overwrite)
        directory = cls(path)
        with directory.unlocked_on_failure():
            make_directory(path)
            try:
                directory.lock()
                # experiment.toml first: a partly removed run must not look like a run.
                for name in sorted(present & _FILES, key=lambda name: (name != "experiment.toml", name)):
                    target = path / name
                    shutil.rmtree(target) if target.is_dir() else target.unlink()
            except OSError as problem:
                raise storage_error(path, problem) from problem
            directory.write_json("environment.json", {"format": FORMAT, **environment})
            # Last, because a directory with this file is a run.
            write_atomically(path / "experiment.toml", experiment_toml.encode())
        return directory

    @staticmethod
    def check_free(path: Path, *, overwrite: bool = False) -> set[str]:
        """Refuses a directory that holds something else; returns the names of the files that may be removed."""
        if path.exists() and not path.is_dir():
            raise RunDirectoryError(f"{path} is a file; give a directory for --out")
        present = {entry.name for entry in path.iterdir()} if path.is_dir() else set()
        others = {name for name in present if name not in _FILES and not name.startswith(".")}
        if others:
            raise RunDirectoryError(
                f"{path} holds files that are not a run's ({min(others)}); choose another directory for --out"
            )
        if "experiment.toml" in present and not overwrite:
            raise RunDirectoryError(
                f"{path} already holds a run; continue it with --resume {path}, replace it with --overwrite, "
                "or choose another directory for --out"
            )
        return present

    @classmethod
    def open(cls, path: Path) -> RunDirectory:
        directory = cls(path)
        if path.is_file():
            raise RunDirectoryError(f"{path} is a file; give the directory of a run")
        if not path.is_dir():
            raise RunDirectoryError(f"there is no run in {path}; start one with --out {path}")
        if not (path / "experiment.toml").is_file():
            raise RunDirectoryError(f"{path} is not a run directory: it has no experiment.toml")
        made_by = directory.read_json("environment.json").get("format")
        if made_by != FORMAT:
            raise RunDirectoryError(
                f"{path} was not written by this version of playerfl (it says {made_by!r}, not {FORMAT!r})"
            )
        return directory

    def lock(self) -> None:
        """Keeps other processes out until this one ends."""
        self._lock.take()

    def unlocked_on_failure(self) -> AbstractContextManager[None]:
        """A context that releases the lock if anything in it fails."""
        return self._lock.released_on_failure()

    def unlock(self) -> None:
        self._lock.release()

    @property
    def is_finished(self) -> bool:
        return (self.path / "finished.json").is_file()

    @property
    def in_use(self) -> bool:
        """Whether a process works in it; on Windows, which has no such lock, always True."""
        return os.name != "posix" or in_use(self.path)

    @property
    def continued_with(self) -> str:
        """The command that continues the run."""
        return "playerfl flower run" if self.has(ROSTER) else f"playerfl run --resume {self.path}"

    def has(self, name: str) -> bool:
        return (self.path / name).is_file()

    def read_json(self, name: str) -> dict[str, Any]:
        try:
            content = json.loads((self.path / name).read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError) as problem:
            raise RunDirectoryError(f"{self.path / name} cannot be read: {problem}") from problem
        if not isinstance(content, dict):
            raise RunDirectoryError(f"{self.path / name} is not a valid file of a run")
        return content

    def read_toml(self, name: str) -> dict[str, Any]:
        try:
            return tomllib.loads((self.path / name).read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError) as problem:
            raise RunDirectoryError(f"{self.path / name} cannot be read: {problem}") from problem

    def write_json(self, name: str, content: Mapping[str, Any]) -> None:
        write_atomically(self.path / name, (json.dumps(content, indent=1) + "\n").encode())

    def note_warnings(self, warnings: Sequence[str]) -> None:
        """Adds what the data check warned about to data.json, for the report."""
        self.write_json("data.json", {**self.read_json("data.json"), "warnings": list(warnings)})

    def resume(self, description: DataFile) -> Resumed | None:
        """The last checkpoint, with the tables cut back to it; None for a run that has none."""
        self._check_same_setup(description)
        saved = self._load_checkpoint()
        self._start_tables(None if saved is None else saved["tables"])
        if saved is None:
            return None
        scores = self.read_table("scores.csv", SCORE_COLUMNS)
        return Resumed(saved, scores, self.read_table("traffic.csv", TRAFFIC_COLUMNS), self.confusions())

    def _check_same_setup(self, description: DataFile) -> None:
        """A run continues with the data and the model it was started with, or not at all."""
        if not self.has("data.json"):
            self.write_json("data.json", description)
            return
        begun = self.read_json("data.json")
        for key, value, what in (
            ("partition_hash", description["partition_hash"], "different data"),
            ("model", description["model"], "a different model"),
            ("trainer", description["trainer"], "a different trainer"),
        ):
            if begun.get(key) != value:
                raise RunDirectoryError(
                    f"{self.path} was started with {what}; resume it as it was started, or start a new run"
                )
        if begun.get("frozen", description.get("frozen")) != description.get("frozen"):
            raise RunDirectoryError(
                f"{self.path} was started with other frozen weights, such as another revision of the pretrained model; "
                "resume it with those, or start a new run"
            )

    def exchanged(
        self,
        scores: Iterable[Row],
        traffic: Iterable[Row],
        confusions: Mapping[ConfusionKey, Matrix],
        state: Callable[[], dict[str, Any]],
    ) -> None:
        """Writes the rows first, then the checkpoint that knows their number."""
        rows: dict[str, Iterable[Row]] = {"scores.csv": scores, "traffic.csv": traffic}
        if self.has(CONFUSIONS):
            rows[CONFUSIONS] = Confusions.of(confusions).rows()
        elif confusions:
            rows[CONFUSIONS] = [CONFUSION_COLUMNS, *Confusions.of(confusions).rows()]
        tables = self._append(rows)
        saved = tensor_tree.pieces({**state(), "tables": tables})
        write_atomically(self.path / "checkpoint.safetensors", saved)

    def _start_tables(self, lengths: Mapping[str, int] | None) -> None:
        """Starts empty tables, or truncates them to where they were at a checkpoint."""
        if CONFUSIONS not in (lengths or {}):
            # Created with the first matrices, since not every run has any.
            try:
                (self.path / CONFUSIONS).unlink(missing_ok=True)
            except OSError as problem:
                raise storage_error(self.path / CONFUSIONS, problem) from problem
        if lengths is None:
            for name, columns in (("scores.csv", SCORE_COLUMNS), ("traffic.csv", TRAFFIC_COLUMNS)):
                write_atomically(self.path / name, csv_text([columns]).encode())
            return
        for name in lengths:
            table = self.path / name
            if not table.is_file() or table.stat().st_size < lengths[name]:
                raise RunDirectoryError(f"{table} is shorter than at its checkpoint; it was changed by hand")
            try:
                os.truncate(table, lengths[name])
            except OSError as problem:
                raise storage_error(table, problem) from problem

    def _append(self, tables: Mapping[str, Iterable[Row]]) -> dict[str, int]:
        """Appends rows; returns the new lengths of the tables in bytes."""
        lengths = {}
        for name, rows in tables.items():
            try:
                with (self.path / name).open("ab") as table:
                    table.write(csv_text(rows).encode())
                    table.flush()
                    os.fsync(table.fileno())
                    lengths[name] = table.tell()
            except OSError as problem:
                raise storage_error(self.path / name, problem) from problem
        return lengths

    def read_table(self, name: str, columns: Sequence[str]) -> list[Row]:
        kinds: dict[str, Callable[[str], str | int | float]] = {
            "round": int,
            "value": float,
            "down": int,
            "up": int,
            **dict.fromkeys(("classes", "true", "predicted", "count"), int),
        }
        try:
            with (self.path / name).open(newline="", encoding="utf-8") as table:
                lines = csv.reader(table)
                # Version 0.1 headed the column of sites "client".
                if tuple("site" if name == "client" else name for name in next(lines, ())) != tuple(columns):
                    raise ValueError(f"its columns are not {', '.join(columns)}")
                convert = [kinds.get(column, plain_cell) for column in columns]
                return [tuple(f(v) for f, v in zip(convert, line, strict=True)) for line in lines]
        except (OSError, ValueError, csv.Error) as problem:
            raise RunDirectoryError(f"{self.path / name} cannot be read: {problem}") from problem

    def confusions(self) -> Confusions:
        """The confusion matrices recorded so far; none in runs of earlier versions."""
        if not self.has(CONFUSIONS):
            return Confusions.none()
        try:
            return Confusions.from_rows(self.read_table(CONFUSIONS, CONFUSION_COLUMNS))
        except ValueError as problem:
            raise RunDirectoryError(f"{self.path / CONFUSIONS} cannot be read: {problem}") from problem

    def outcomes(self) -> Outcomes:
        """The outcomes of test rows; none in runs of earlier versions, and where they are not kept."""
        if not self.has(OUTCOMES):
            return {}
        try:
            return from_tree(tensor_tree.read(self.path / OUTCOMES))
        except ValueError as problem:
            raise RunDirectoryError(f"{self.path / OUTCOMES} cannot be read: {problem}") from problem

    def _load_checkpoint(self) -> Any | None:
        file = self.path / "checkpoint.safetensors"
        if not file.exists():
            return None
        saved = tensor_tree.read(file)
        tables = saved.get("tables") if isinstance(saved, dict) else None
        needed = {"scores.csv", "traffic.csv"}
        if (
            not isinstance(tables, dict)
            or not needed <= tables.keys() <= needed | {CONFUSIONS}
            or any(type(length) is not int for length in tables.values())
        ):
            raise RunDirectoryError(f"{file} is not a valid checkpoint; start a new run")
        return saved

    def finish(self, result: RunResult) -> RunResult:
        """Writes the results of a run, and returns them as they will be read back."""
        if result.outcomes:
            write_atomically(self.path / OUTCOMES, tensor_tree.encode(tree_of(result.outcomes)))
        if result.data["notes"] != self.read_json("data.json").get("notes"):
            # A listener has stopped the run since it began.
            self.write_json("data.json", cast(Mapping[str, Any], result.data))
        self.write_ending(result.weights, result.layers, result.timing)
        models = ModelFiles(self.path)
        return replace(
            result,
            experiment=self.read_toml("experiment.toml"),
            environment=cast(EnvironmentFile, self.read_json("environment.json")),
            weights=models if models.num_bytes > _HELD_BYTES else result.weights,
            path=self.path,
        )

    def write_ending(self, weights: Mapping[str, Weights], layers: LayersFile, timing: TimingFile) -> None:
        """Writes models, layers and times, marks the run as finished and drops the checkpoint."""
        frozen = self.read_json("data.json").get("frozen", {}) if weights else {}
        write_models(self.path, weights, frozen.get("entries", ()))
        self.write_json("layers.json", layers)
        self.write_json("timing.json", timing)
        self.write_json("finished.json", {"weights_digest": digest_of(weights)})
        self.drop_checkpoint()

    def drop_checkpoint(self) -> None:
        """Removes the checkpoint of a finished run; if that fails, it does no harm."""
        with contextlib.suppress(OSError):
            (self.path / "checkpoint.safetensors").unlink(missing_ok=True)

    def result(self, build_model: Callable[[], nn.Module], *, with_weights: bool = True) -> RunResult:
        """Reads and checks the finished run; `build_model` builds the model that its weights belong to."""
        if not self.is_finished:
            raise RunDirectoryError(f"{self.path} is not finished; continue it with  {self.continued_with}")
        weights: Mapping[str, Weights] = {}
        if with_weights:
            models = ModelFiles(self.path)
            weights = models if models.num_bytes > _HELD_BYTES else dict(models)
        if with_weights and digest_of(weights) != self.read_json("finished.json").get("weights_digest"):
            raise RunDirectoryError(f"{self.path / 'weights'} has been changed since the run ended; run it again")
        files: Any = {name: self.read_json(f"{name}.json") for name in ("environment", "layers", "data", "timing")}
        result = checked(
            RunResult(
                experiment=self.read_toml("experiment.toml"),
                score_rows=self.read_table("scores.csv", SCORE_COLUMNS),
                traffic_rows=self.read_table("traffic.csv", TRAFFIC_COLUMNS),
                weights=weights,
                build_model=build_model,
                path=self.path,
                confusions=self.confusions(),
                outcomes=self.outcomes(),
                **files,
            )
        )
        # A job across institutions has no weights: models stay at their sites.
        if weights and sorted([*result.sites, *result.unseen_scores]) != sorted(weights):
            raise RunDirectoryError(f"{self.path / 'data.json'} does not describe the sites of this run")
        return result
