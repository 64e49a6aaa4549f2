"""The run file: one run of a study as one small file, named after everything that decides its result."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NotRequired

import torch
from torch import nn
from typing_extensions import TypedDict

from playerfl.data.sites import SiteRecord
from playerfl.errors import RunDirectoryError
from playerfl.federation.messages import ConfusionKey
from playerfl.layers.adapters import adapter_entries
from playerfl.learning.confusion import Matrix
from playerfl.runs.confusions import ConfusionLog, Confusions
from playerfl.runs.experiment import Experiment
from playerfl.runs.files import DataFile, TimingFile
from playerfl.runs.result import Row, RunResult, digest_of
from playerfl.runs.run import Resumed
from playerfl.runs.schema import checked
from playerfl.runs.setup import initial_model
from playerfl.storage import tensor_tree
from playerfl.storage.atomic_files import RERUN_HINT, write_atomically
from playerfl.storage.packed_rows import packed, unpacked
from playerfl.tasks.load import code_hash, names_object

FORMAT = "playerfl cell 1"
GOLDEN_RUNS: dict[int, tuple[str, str]] = {
    1: ("6b51f5af84ca37d7596fcaf548f82d7f", ""),
    2: (
        "6b51f5af84ca37d7596fcaf548f82d7f",
        "only the metrics of diverged models changed: NaN, where NaN logits had counted as class 0; none diverges here",
    ),
}
"""Each version of this package's results: a digest of its golden runs (the "runs" of tests/golden.json), and why they
have the same bits as the version before, if they do.

A change that changes the bits of a result adds a version: `python tests/golden.py --store` gives the line to add and
refuses to store without it, and a test compares the last version with the stored file."""
RESULTS = max(GOLDEN_RUNS)
"""Part of the name of every run file, so that a study never mixes runs of different versions."""


@dataclass(frozen=True)
class PlannedRun:
    """One run of a study, and the name of its file."""

    key: str
    experiment: Experiment


class Software(TypedDict):
    """software.json: what decides the bits of a result besides the experiment and the data."""

    format: str
    results: int
    torch: str
    code: dict[str, str | None]
    """A digest of the file of each task, algorithm and model that is in a user's FILE.py."""


def software(names: Iterable[str] = ()) -> Software:
    """The software of this process; `names`: the tasks, algorithms and models that it runs."""
    code = {name: code_hash(name) for name in sorted(set(names)) if names_object(name)}
    return {"format": FORMAT, "results": RESULTS, "torch": torch.__version__, "code": code}


def planned_run(
    experiment: Experiment, data: DataFile, made_with: Software, *, keep_weights: bool = False
) -> PlannedRun:
    """A run on data with this description (see `Setup`), made with this `software`."""
    code = {name: made_with["code"][name] for name in experiment.names if name in made_with["code"]}
    decides: dict[str, Any] = {
        "experiment": experiment.model_dump(mode="json"),
        "partition": data["partition_hash"],
        "model": data["model"],
        "trainer": data["trainer"],
        "software": {**made_with, "code": code},
    }
    if "frozen" in data and adapter_entries(data["model"]):
        # Another revision of the pretrained model has the same shapes.
        decides["frozen"] = data["frozen"]["digest"]
    if keep_weights:
        decides["keep_weights"] = True
    text = json.dumps(decides, sort_keys=True)
    return PlannedRun(hashlib.blake2b(text.encode(), digest_size=16).hexdigest(), experiment)


class RunFileRecord:
    """The record of a run of a study: saved in `unfinished` from time to time, so that the run can be resumed.

    When the run ends, `file` holds the bytes of its run file: the same bytes whenever and wherever it runs.
    """

    keeps_outcomes = False
    """A study has thousands of runs, and its intervals over runs already account for other patients."""

    def __init__(
        self,
        *,
        keep_weights: bool = False,
        unfinished: Path | None = None,
        checkpoint_seconds: float = 30.0,
        progress: Callable[[int], None] = lambda exchanges: None,
    ) -> None:
        """`progress` is called with the number of exchanges done, after each."""
        self.file = b""
        self.wall_seconds = 0.0
        self._keep_weights = keep_weights
        self._unfinished = unfinished
        self._checkpoint_seconds = checkpoint_seconds
        self._progress = progress
        self._score_rows: list[Row] = []
        self._traffic_rows: list[Row] = []
        self._confusions = ConfusionLog()
        self._exchanges = 0
        self._saved_at = time.monotonic()

    def resume(self, description: DataFile) -> Resumed | None:
        if self._unfinished is None or not self._unfinished.exists():
            return None
        saved = tensor_tree.read(self._unfinished)
        self._score_rows = unpacked(saved["scores"])
        self._traffic_rows = unpacked(saved["traffic"])
        self._exchanges = saved["exchanges"]
        confusions = _confusions_in(saved)
        self._confusions = ConfusionLog(confusions)
        return Resumed(saved, list(self._score_rows), list(self._traffic_rows), confusions)

    def exchanged(
        self,
        scores: list[Row],
        traffic: list[Row],
        confusions: Mapping[ConfusionKey, Matrix],
        state: Callable[[], dict[str, Any]],
    ) -> None:
        self._score_rows += scores
        self._traffic_rows += traffic
        self._confusions.add(confusions)
        self._exchanges += 1
        self._progress(self._exchanges)
        if self._unfinished is None or time.monotonic() - self._saved_at < self._checkpoint_seconds:
            return
        tables = {
            "scores": packed(self._score_rows),
            "traffic": packed(self._traffic_rows),
            **_confusion_table(self._confusions.so_far()),
        }
        saved = tensor_tree.encode({**state(), **tables, "exchanges": self._exchanges})
        write_atomically(self._unfinished, saved, RERUN_HINT)
        self._saved_at = time.monotonic()

    def finish(self, result: RunResult) -> RunResult:
        self.wall_seconds = float(result.timing["wall_seconds"])
        own = own_data(result)
        self.file = tensor_tree.encode(
            {
                **({"data": own} if own else {}),
                # Those about the method are not among the notes of its study's data.
                **({"notes": result.data["notes"]} if result.data["notes"] else {}),
                "format": FORMAT,
                "experiment": result.experiment,
                "environment": result.environment,
                "partition_hash": result.data["partition_hash"],
                "scores": packed(result.score_rows),
                "traffic": packed(result.traffic_rows),
                **_confusion_table(result.confusions),
                "layers": result.layers,
                "weights_digest": digest_of(result.weights),
                "weights": result.weights if self._keep_weights else {},
            }
        )
        return result


def read_run_file(file: bytes, data: DataFile, timing: TimingFile, path: Path | None = None) -> RunResult:
    """The run in a run file; `data` describes the sites of its study, which a run with its own split replaces."""
    try:
        tree = tensor_tree.decode(file)
        data = {**data, **tree.get("data", {}), "notes": tree.get("notes", data["notes"])}
        if tree["format"] != FORMAT or tree["partition_hash"] != data["partition_hash"]:
            raise ValueError("it belongs to another study")
        weights = tree["weights"]
        if weights and digest_of(weights) != tree["weights_digest"]:
            raise ValueError("its models have been changed since the run ended")
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
                confusions=_confusions_in(tree),
            )
        )
    except (ValueError, LookupError, TypeError, AttributeError, StopIteration) as problem:
        name = path or "a run file"
        raise RunDirectoryError(f"{name} cannot be read: {problem}; delete it to run it again") from problem


class OwnData(TypedDict):
    """What a run with its own split, or with unseen sites, has instead of its study's `DataFile`."""

    partition_hash: str | None
    sites: dict[str, SiteRecord]
    unseen: NotRequired[dict[str, SiteRecord]]


def own_data(result: RunResult) -> OwnData | None:
    """A run's own split, and its unseen sites; None if it shares the sites of its study."""
    unseen = result.data.get("unseen")
    if result.experiment["data"].get("split") != "per_run" and not unseen:
        return None
    own: OwnData = {"partition_hash": result.data["partition_hash"], "sites": result.data["sites"]}
    return {**own, "unseen": unseen} if unseen else own


def _confusion_table(confusions: Confusions) -> dict[str, Any]:
    return {"confusions": confusions.tree()} if confusions else {}


def _confusions_in(tree: Mapping[str, Any]) -> Confusions:
    """The matrices in a run file or an unfinished run; earlier versions wrote none."""
    return Confusions.from_tree(tree["confusions"]) if "confusions" in tree else Confusions.none()


def _model_of(table: Mapping[str, Any]) -> nn.Module:
    return initial_model(Experiment.resolve(table))
