"""Cell: one run of a study, named by everything that decides its result, kept as one small file."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from playerfl.errors import RunDirectoryError
from playerfl.runs.experiment import Experiment, find_task
from playerfl.runs.result import Row, RunResult, digest_of
from playerfl.runs.run import InMemory
from playerfl.runs.schema import checked
from playerfl.runs.setup import seeded_model
from playerfl.storage import tensor_tree
from playerfl.storage.atomic_files import RERUN_HINT, write_atomically
from playerfl.tasks.load import code_hash, names_object
from playerfl.weights import Weights

FORMAT = "playerfl cell 1"
GOLDEN_RUNS = {1: "6b51f5af84ca37d7596fcaf548f82d7f"}
"""Each version of this package's arithmetic, with a digest of its golden runs (the "runs" of tests/golden.json).

A change that changes the bits of a result adds a version: `python tests/golden.py --store` gives the line to add and
refuses to store without it, and a test compares the last version with the stored file."""
RESULTS = max(GOLDEN_RUNS)
"""Part of the name of every run file, so that a study never mixes runs of different versions."""


@dataclass(frozen=True)
class Cell:
    """A run and its name."""

    key: str
    experiment: Experiment


def software(names: Iterable[str] = ()) -> dict[str, Any]:
    """What besides the experiment and the data decides the bits of a result.

    `names`: of tasks and algorithms; the files of those that are one's own belong to it.
    """
    code = {name: code_hash(name) for name in sorted(set(names)) if names_object(name)}
    return {"format": FORMAT, "results": RESULTS, "torch": torch.__version__, "code": code}


def cell_of(
    experiment: Experiment, data: Mapping[str, Any], made_with: Mapping[str, Any], *, keep_weights: bool = False
) -> Cell:
    """The cell of an experiment on data with this description (see `Setup`)."""
    own = (experiment.task, experiment.algorithm["name"])
    decides: dict[str, Any] = {
        "experiment": experiment.model_dump(mode="json"),
        "partition": data["partition_hash"],
        "model": data["model"],
        "trainer": data["trainer"],
        "software": {**made_with, "code": {name: made_with["code"][name] for name in own if name in made_with["code"]}},
    }
    if keep_weights:
        decides["keep_weights"] = True
    text = json.dumps(decides, sort_keys=True)
    return Cell(hashlib.blake2b(text.encode(), digest_size=16).hexdigest(), experiment)


class CellRecord(InMemory):
    """The record of a cell under way: in memory, and now and then in a file, from which it can be taken up.

    When the run ends, `file` holds the bytes to keep. They are the same whenever and wherever the cell is run.
    """

    def __init__(
        self,
        cell: Cell,
        made_with: Mapping[str, Any],
        *,
        keep_weights: bool = False,
        unfinished: Path | None = None,
        seconds: float = 30.0,
        heard: Callable[[int], None] = lambda rounds: None,
    ) -> None:
        """`heard` is told how many exchanges are done, after each of them."""
        super().__init__(cell.experiment, made_with)
        self.file = b""
        self.wall_seconds = 0.0
        self._keep_weights = keep_weights
        self._unfinished = unfinished
        self._seconds = seconds
        self._heard = heard
        self._exchanges = 0
        self._saved_at = time.monotonic()

    def resume(self, description: Mapping[str, Any]) -> Any | None:
        super().resume(description)
        if self._unfinished is None or not self._unfinished.exists():
            return None
        saved = tensor_tree.read(self._unfinished)
        self.score_rows = unpacked(saved["scores"])
        self.traffic_rows = unpacked(saved["traffic"])
        self._exchanges = saved["exchanges"]
        return saved

    def exchanged(self, scores: list[Row], traffic: list[Row], state: Callable[[], dict[str, Any]]) -> None:
        super().exchanged(scores, traffic, state)
        self._exchanges += 1
        self._heard(self._exchanges)
        if self._unfinished is None or time.monotonic() - self._saved_at < self._seconds:
            return
        tables = {"scores": packed(self.score_rows), "traffic": packed(self.traffic_rows)}
        saved = tensor_tree.encode({**state(), **tables, "exchanges": self._exchanges})
        write_atomically(self._unfinished, saved, RERUN_HINT)
        self._saved_at = time.monotonic()

    def finish(
        self,
        weights: Mapping[str, Weights],
        layers: Mapping[str, Any],
        timing: Mapping[str, Any],
        build_model: Callable[[], nn.Module],
    ) -> RunResult:
        result = super().finish(weights, layers, timing, build_model)
        self.wall_seconds = float(timing["wall_seconds"])
        self.file = tensor_tree.encode(
            {
                "format": FORMAT,
                "experiment": result.experiment,
                "environment": result.environment,
                "partition_hash": self.data["partition_hash"],
                "scores": packed(self.score_rows),
                "traffic": packed(self.traffic_rows),
                "layers": layers,
                "weights_digest": digest_of(weights),
                "weights": weights if self._keep_weights else {},
            }
        )
        return result


def read_cell(file: bytes, data: Mapping[str, Any], timing: Mapping[str, Any], path: Path | None = None) -> RunResult:
    """The run in a cell's file; `data` describes its sites."""
    try:
        tree = tensor_tree.decode(file)
        if tree["format"] != FORMAT or tree["partition_hash"] != data["partition_hash"]:
            raise ValueError("it is not of this study")
        weights = tree["weights"]
        if weights and digest_of(weights) != tree["weights_digest"]:
            raise ValueError("its models were changed since the run ended")
        experiment = tree["experiment"]
        return checked(
            RunResult(
                experiment=experiment,
                environment=tree["environment"],
                score_rows=unpacked(tree["scores"]),
                traffic_rows=unpacked(tree["traffic"]),
                layers=tree["layers"],
                data=data,
                weights=weights,
                build_model=lambda: _model_of(experiment),
                timing=timing,
                path=path,
            )
        )
    except (ValueError, LookupError, TypeError, AttributeError, StopIteration) as problem:
        raise RunDirectoryError(f"{path or 'a cell'} cannot be read: {problem}; delete it to run it again") from problem


def _model_of(table: Mapping[str, Any]) -> nn.Module:
    experiment = Experiment.resolve(table)
    task = find_task(experiment.task)
    return seeded_model(experiment.seed, task, experiment.data_options(task))


def packed(rows: Sequence[Row]) -> dict[str, Any]:
    """Rows of equal kinds by column: texts as places in a list of the combinations there are, numbers as tensors.

    >>> packed([("a", 1, 0.5), ("b", 2, 0.25)])["texts"]
    [['a'], ['b']]
    >>> unpacked(packed([("a", 1, 0.5), ("b", 2, 0.25)]))
    [('a', 1, 0.5), ('b', 2, 0.25)]
    """
    if not rows:
        return {"kinds": [], "texts": [], "places": torch.empty(0, dtype=torch.int16), "numbers": []}
    kinds = ["text" if isinstance(v, str) else "float" if isinstance(v, float) else "int" for v in rows[0]]
    columns = list(zip(*rows, strict=True))
    texts = list(zip(*(column for column, kind in zip(columns, kinds, strict=True) if kind == "text"), strict=True))
    places = {text: place for place, text in enumerate(dict.fromkeys(texts))}
    return {
        "kinds": kinds,
        "texts": [list(text) for text in places],
        "places": _integers([places[text] for text in texts]),
        "numbers": [
            _integers(column) if kind == "int" else torch.tensor(column, dtype=torch.float64)
            for column, kind in zip(columns, kinds, strict=True)
            if kind != "text"
        ],
    }


def _integers(values: Sequence[Any]) -> Tensor:
    """The smallest kind that holds them."""
    largest = max(map(abs, values))
    kind = torch.int16 if largest < 2**15 else torch.int32 if largest < 2**31 else torch.int64
    return torch.tensor(values, dtype=kind)


def unpacked(table: Mapping[str, Any]) -> list[Row]:
    """What `packed` was given."""
    places = table["places"].tolist()
    texts = iter(zip(*table["texts"], strict=True))
    numbers = iter(table["numbers"])
    columns: list[list[Any]] = []
    for kind in table["kinds"]:
        if kind == "text":
            words = next(texts)
            columns.append([words[place] for place in places])
        else:
            columns.append(next(numbers).tolist())
    return list(zip(*columns, strict=True))
