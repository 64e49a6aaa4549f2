"""RunResult: what a run found out, and the directory it is kept in. Written and read here only."""

from __future__ import annotations

import csv
import io
import json
import os
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, unquote

from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import nn

from playerfl.engine import checkpoint
from playerfl.engine.checkpoint import storage_error, write_atomically
from playerfl.errors import RunDirectoryError
from playerfl.layers.split import Cut
from playerfl.weights import Weights

if TYPE_CHECKING:
    import pandas as pd

FORMAT = "playerfl run 1"
SCORE_COLUMNS = ("stage", "round", "client", "split", "metric", "value")
TRAFFIC_COLUMNS = ("round", "client", "verbs", "down", "up")
_FILES = {
    "experiment.toml",
    "environment.json",
    "scores.csv",
    "traffic.csv",
    "layers.json",
    "data.json",
    "timing.json",
    "checkpoint.safetensors",
    "finished.json",
    "weights",
    "comparison.png",
}
Row = Sequence[str | int | float]


@dataclass(frozen=True, repr=False)
class RunResult:
    """One run: who scored what in which round, what travelled, where the cut is, and every site's model."""

    experiment: Mapping[str, Any]
    environment: Mapping[str, Any]
    score_rows: Sequence[Row]
    traffic_rows: Sequence[Row]
    layers: Mapping[str, Any]
    data: Mapping[str, Any]
    """Sizes, class counts, fingerprint and notes of the sites' data."""
    weights: Mapping[str, Weights]
    """The model each site keeps, chosen on its validation part."""
    build_model: Callable[[], nn.Module]
    timing: Mapping[str, Any]
    path: Path | None = None

    def __repr__(self) -> str:
        place = f", in {self.path}" if self.path else ""
        task, rounds = self.experiment["task"], self.experiment["rounds"]
        return f"<RunResult: {self.algorithm} on {task}, {rounds} rounds, {len(self.clients)} sites{place}>"

    @cached_property
    def scores(self) -> pd.DataFrame:
        """Tidy: stage, round, client, split, metric, value."""
        import pandas as pd

        return pd.DataFrame(list(self.score_rows), columns=list(SCORE_COLUMNS))

    @cached_property
    def traffic(self) -> pd.DataFrame:
        """Tidy: round, client, verbs, bytes down, bytes up."""
        import pandas as pd

        return pd.DataFrame(list(self.traffic_rows), columns=list(TRAFFIC_COLUMNS))

    @property
    def algorithm(self) -> str:
        return str(self.experiment["algorithm"]["name"])

    @property
    def clients(self) -> list[str]:
        return sorted(self.weights)

    @cached_property
    def chosen_rounds(self) -> dict[str, int]:
        """The round reported for each site, by the experiment's `selection`, from validation losses alone."""
        return choose_rounds(self.score_rows, self.num_examples, self.experiment["selection"])

    @cached_property
    def num_examples(self) -> dict[str, int]:
        """Training examples of each site: the weights of averages."""
        return {client: int(parts["train"]["examples"]) for client, parts in self.data["sites"].items()}

    @cached_property
    def site_scores(self) -> dict[str, dict[str, float]]:
        """Each site's test scores at its chosen round: site, then metric."""
        stage = _reported_stage(self.score_rows)
        found: dict[str, dict[str, float]] = {client: {} for client in self.clients}
        for row_stage, round_, client, split, metric, value in self.score_rows:
            if row_stage == stage and split == "test" and round_ == self.chosen_rounds[str(client)]:
                found[str(client)][str(metric)] = float(value)
        return found

    @property
    def diverged(self) -> bool:
        """Whether a loss became NaN on the way."""
        return any(row[4] == "loss" and row[5] != row[5] for row in self.score_rows)

    @property
    def cut(self) -> Cut | None:
        """Where the layers were cut and why, if the algorithm decided that."""
        decision = self.layers.get("decision")
        if decision is None:
            return None
        return Cut(
            index=decision["index"],
            layers=(*decision["federated"], *decision["personal"]),
            rule=decision["rule"],
            threshold=decision["threshold"],
            ratios=tuple(decision["ratios"]),
            reason=decision["reason"],
            warnings=tuple(decision["warnings"]),
            importance=decision["importance"],
        )

    def model(self, client: str) -> nn.Module:
        """The model a site keeps, ready to use, in eval mode."""
        from playerfl.errors import ConfigError, one_of
        from playerfl.layers.layer_map import state_entries

        if client not in self.weights:
            raise ConfigError(one_of(client, self.weights, "site"))
        model = self.build_model()
        for name, entry in state_entries(model).items():
            entry.detach().copy_(self.weights[client][name])
        return model.eval()


def _reported_stage(rows: Iterable[Row]) -> str:
    """Where an algorithm has a finishing phase, only what comes after it is reported."""
    return "finish" if any(row[0] == "finish" for row in rows) else "round"


def choose_rounds(rows: Sequence[Row], num_examples: Mapping[str, int], selection: str) -> dict[str, int]:
    """The reported round of each site: lowest validation loss (own, or all sites' together), or the last.

    >>> rows = [("round", 1, "a", "validation", "loss", 0.5), ("round", 2, "a", "validation", "loss", 0.7)]
    >>> choose_rounds(rows, {"a": 10}, "client_best"), choose_rounds(rows, {"a": 10}, "last")
    ({'a': 1}, {'a': 2})
    """
    stage = _reported_stage(rows)
    losses: dict[int, dict[str, float]] = {}
    for row_stage, round_, client, split, metric, value in rows:
        if (row_stage, split, metric) == (stage, "validation", "loss"):
            losses.setdefault(int(round_), {})[str(client)] = float(value)

    def lowest(loss_of: Callable[[int], float], rounds: list[int]) -> int:
        # nan compares as false, so a diverged round is never chosen over one that is a number.
        best = rounds[0]
        for round_ in rounds[1:]:
            if loss_of(round_) < loss_of(best) or loss_of(best) != loss_of(best):
                best = round_
        return best

    chosen = {}
    for client in sorted(num_examples):
        rounds = sorted(round_ for round_ in losses if client in losses[round_])
        if selection == "last":
            chosen[client] = rounds[-1]
        elif selection == "client_best":
            chosen[client] = lowest(lambda r, c=client: losses[r][c], rounds)  # type: ignore[misc]
        else:
            common = [round_ for round_ in rounds if losses[round_].keys() >= num_examples.keys()]
            chosen[client] = lowest(lambda r: sum(losses[r][c] * n for c, n in num_examples.items()), common)
    return chosen


class RunDirectory:
    """The files of one run. Every write is atomic, or is cut back to the last checkpoint on resume."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock: int | None = None

    @classmethod
    def create(
        cls, path: Path, experiment_toml: str, environment: Mapping[str, Any], *, overwrite: bool = False
    ) -> RunDirectory:
        present = cls.check_free(path, overwrite=overwrite)
        directory = cls(path)
        try:
            path.mkdir(parents=True, exist_ok=True)
            directory.lock()
            for name in sorted(present & _FILES):
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
        """Refuses a place that is taken; gives the names of what is there and may go."""
        if path.exists() and not path.is_dir():
            raise RunDirectoryError(f"{path} is a file; give a directory for --out")
        present = {entry.name for entry in path.iterdir()} if path.is_dir() else set()
        strangers = {name for name in present if name not in _FILES and not name.startswith(".")}
        if strangers:
            raise RunDirectoryError(
                f"{path} holds files that are not a run's ({min(strangers)}); choose another directory for --out"
            )
        if "experiment.toml" in present and not overwrite:
            raise RunDirectoryError(
                f"{path} holds a run already; continue it with --resume {path}, replace it with --overwrite, "
                "or choose another directory for --out"
            )
        return present

    @classmethod
    def open(cls, path: Path) -> RunDirectory:
        directory = cls(path)
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
        """Keeps a second process out until this one ends."""
        try:
            import fcntl
        except ImportError:  # Windows
            return
        self._lock = os.open(self.path, os.O_RDONLY)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as problem:
            os.close(self._lock)
            raise RunDirectoryError(f"{self.path} is in use by another process; wait for it to end") from problem

    def unlock(self) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    @property
    def is_finished(self) -> bool:
        return (self.path / "finished.json").is_file()

    def has(self, name: str) -> bool:
        return (self.path / name).is_file()

    def read_json(self, name: str) -> dict[str, Any]:
        try:
            content = json.loads((self.path / name).read_text(encoding="utf-8"))
        except (OSError, ValueError) as problem:
            raise RunDirectoryError(f"{self.path / name} cannot be read: {problem}") from problem
        if not isinstance(content, dict):
            raise RunDirectoryError(f"{self.path / name} does not hold what a run writes there")
        return content

    def write_json(self, name: str, content: Mapping[str, Any]) -> None:
        write_atomically(self.path / name, (json.dumps(content, indent=1) + "\n").encode())

    def start_tables(self, lengths: Mapping[str, int] | None) -> None:
        """Empty tables with their headings, or the tables as they were at a checkpoint."""
        for name, columns in (("scores.csv", SCORE_COLUMNS), ("traffic.csv", TRAFFIC_COLUMNS)):
            if lengths is None:
                write_atomically(self.path / name, _csv_bytes([columns]))
                continue
            table = self.path / name
            if not table.is_file() or table.stat().st_size < lengths[name]:
                raise RunDirectoryError(f"{table} is shorter than its checkpoint says; it was changed by hand")
            os.truncate(table, lengths[name])

    def append(self, scores: Iterable[Row], traffic: Iterable[Row]) -> dict[str, int]:
        """Adds rows and says how long the tables are now."""
        lengths = {}
        for name, rows in (("scores.csv", scores), ("traffic.csv", traffic)):
            try:
                with (self.path / name).open("ab") as table:
                    table.write(_csv_bytes(rows))
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
        }
        try:
            with (self.path / name).open(newline="", encoding="utf-8") as table:
                lines = csv.reader(table)
                if tuple(next(lines, ())) != tuple(columns):
                    raise ValueError(f"its columns are not {', '.join(columns)}")
                convert = [kinds.get(column, str) for column in columns]
                return [tuple(f(v) for f, v in zip(convert, line, strict=True)) for line in lines]
        except (OSError, ValueError) as problem:
            raise RunDirectoryError(f"{self.path / name} cannot be read: {problem}") from problem

    def save_checkpoint(self, tree: Any) -> None:
        write_atomically(self.path / "checkpoint.safetensors", checkpoint.encode(tree))

    def load_checkpoint(self) -> Any | None:
        file = self.path / "checkpoint.safetensors"
        return checkpoint.read(file) if file.exists() else None

    def finish(
        self,
        weights: Mapping[str, Weights],
        layers: Mapping[str, Any],
        timing: Mapping[str, Any],
        digest: str,
    ) -> None:
        """Writes the results, marks the run as finished, and drops the checkpoint."""
        folder = self.path / "weights"
        try:
            folder.mkdir(exist_ok=True)
        except OSError as problem:
            raise storage_error(folder, problem) from problem
        for client, entries in weights.items():
            contiguous = {name: entry.contiguous() for name, entry in entries.items()}
            write_atomically(folder / f"{quote(client, safe=' ')}.safetensors", save(contiguous))
        self.write_json("layers.json", layers)
        self.write_json("timing.json", timing)
        self.write_json("finished.json", {"weights_digest": digest})
        (self.path / "checkpoint.safetensors").unlink(missing_ok=True)

    def read_weights(self) -> dict[str, Weights]:
        """Every site's model by site name."""
        found = {}
        for file in sorted((self.path / "weights").glob("*.safetensors")):
            try:
                found[unquote(file.stem)] = load(file.read_bytes())
            except (OSError, SafetensorError) as problem:
                raise RunDirectoryError(f"{file} cannot be read: {problem}") from problem
        return found


def _csv_bytes(rows: Iterable[Row]) -> bytes:
    text = io.StringIO()
    # repr gives floats back bit for bit.
    csv.writer(text, lineterminator="\n").writerows(
        [repr(value) if isinstance(value, float) else value for value in row] for row in rows
    )
    return text.getvalue().encode()
