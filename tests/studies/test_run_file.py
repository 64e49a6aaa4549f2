"""A run file is named after everything that decides its result, and gives the run back exactly."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from playerfl.engine.scheduler import drive
from playerfl.errors import PlayerflError
from playerfl.runs.experiment import Experiment
from playerfl.runs.files import TimingFile
from playerfl.runs.run import Run
from playerfl.runs.setup import prepare_setup
from playerfl.storage.packed_rows import packed, unpacked
from playerfl.storage.tensor_tree import decode, encode
from playerfl.studies.run_file import RunFileRecord, planned_run, read_run_file, software
from playerfl.tasks import TASKS

TABLE: dict[str, Any] = {"task": "synthetic", "rounds": 3, "data": {"rows": 60, "sites": 2}, "algorithm": "player_fl"}
EXPERIMENT = Experiment.resolve(TABLE)
SETUP = prepare_setup(EXPERIMENT, TASKS["synthetic"])
TIMING: TimingFile = {"wall_seconds": 1.0, "runs_side_by_side": 1}
PLANNED = planned_run(EXPERIMENT, SETUP.description, software())


def test_another_choice_data_or_software_is_another_run_file() -> None:
    data, made_with = SETUP.description, software()
    others = [
        planned_run(EXPERIMENT.model_copy(update={"seed": 1}), data, made_with),
        planned_run(Experiment.resolve({**TABLE, "training": {"eps": 1e-7}}), data, made_with),
        planned_run(
            Experiment.resolve({**TABLE, "algorithm": {"name": "player_fl", "threshold": 9.0}}), data, made_with
        ),
        planned_run(EXPERIMENT, {**data, "partition_hash": "0"}, made_with),
        planned_run(EXPERIMENT, {**data, "model": {}}, made_with),
        planned_run(EXPERIMENT, data, {**made_with, "torch": "1.0"}),
        planned_run(EXPERIMENT, data, {**made_with, "results": 0}),
        planned_run(EXPERIMENT, data, {**made_with, "code": {"player_fl": "0"}}),
        planned_run(EXPERIMENT, data, made_with, keep_weights=True),
    ]
    assert len({PLANNED.key, *(other.key for other in others)}) == 10
    assert planned_run(Experiment.resolve(TABLE), data, software()) == PLANNED


def finished(**options: Any) -> tuple[RunFileRecord, Any]:
    record = RunFileRecord(**options)
    return record, drive(Run(EXPERIMENT, SETUP, record).rounds())


def interrupted(folder: Path, at: int) -> Path:
    """The checkpoint of a run that was interrupted at this exchange, before it was saved."""
    kept = folder / "unfinished.safetensors"

    def stop(exchanges: int) -> None:
        if exchanges == at:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        finished(unfinished=kept, checkpoint_seconds=0.0, progress=stop)
    return kept


@pytest.mark.parametrize("keep", [True, False])
def test_a_file_gives_the_run_back(keep: bool) -> None:
    record, made = finished(keep_weights=keep)
    read = read_run_file(record.file, SETUP.description, TIMING)
    assert read.score_rows == made.score_rows
    assert [tuple(row) for row in read.traffic_rows] == [tuple(row) for row in made.traffic_rows]
    assert read.confusions == made.confusions
    assert len(read.confusions) == 3 * 2 * 2  # rounds, sites, splits
    assert read.site_scores == made.site_scores
    assert read.chosen_rounds == made.chosen_rounds
    assert read.sites == made.sites == ["site-0", "site-1"]
    assert read.cut == made.cut
    assert read.experiment == made.experiment
    if keep:
        x = torch.randn(5, 13)
        assert torch.equal(read.model("site-1")(x), made.model("site-1")(x))
    else:
        assert not read.weights
        with pytest.raises(PlayerflError, match=r"it was not kept \(keep_weights = true"):
            read.model("site-1")


def test_the_bytes_are_the_same_each_time_and_small() -> None:
    assert finished()[0].file == finished()[0].file
    assert len(finished()[0].file) < 10_000


def test_a_run_is_resumed_from_its_checkpoint(tmp_path: Path) -> None:
    kept = interrupted(tmp_path, at=3)
    assert decode(kept.read_bytes())["exchanges"] == 2
    exchanges: list[int] = []
    record, _ = finished(unfinished=kept, checkpoint_seconds=1000.0, progress=exchanges.append)
    assert exchanges == [3, 4, 5]
    assert record.file == finished()[0].file


def test_a_checkpoint_holds_the_matrices_and_one_of_an_earlier_version_none(tmp_path: Path) -> None:
    kept = interrupted(tmp_path, at=4)
    saved = decode(kept.read_bytes())
    assert finished(unfinished=kept)[0].file == finished()[0].file
    del saved["confusions"]
    kept.write_bytes(encode(saved))
    _, resumed = finished(unfinished=kept)
    assert {key[1] for key in resumed.confusions} == {2, 3}


def test_a_file_of_an_earlier_version_has_no_matrices() -> None:
    record, made = finished()
    tree = decode(record.file)
    del tree["confusions"]
    read = read_run_file(encode(tree), SETUP.description, TIMING)
    assert len(read.confusions) == 0
    assert read.score_rows == made.score_rows


def test_matrices_that_cannot_be_are_refused() -> None:
    for change in (
        {"classes": 1},
        {"classes": 2**40},
        {"sizes": torch.tensor([-1])},
        {"cells": torch.tensor([0.5])},
        {"counts": torch.tensor([0])},
        {"keys": packed([("round", 1, "site-0")])},
        {"keys": packed([("round", 9, "site-0", "test")]), "sizes": torch.tensor([1]), "cells": torch.tensor([0]),
         "counts": torch.tensor([1])},
    ):  # fmt: skip
        tree = decode(finished()[0].file)
        tree["confusions"].update(change)
        with pytest.raises(PlayerflError, match="confusion matri"):
            read_run_file(encode(tree), SETUP.description, TIMING)


def test_short_runs_need_no_checkpoint(tmp_path: Path) -> None:
    finished(unfinished=tmp_path / "unfinished.safetensors")
    assert not list(tmp_path.iterdir())


def test_a_damaged_file_is_refused() -> None:
    file = finished()[0].file
    for broken in (b"", file[:100], file[:-4]):
        with pytest.raises(PlayerflError, match=r"cannot be read: .*; delete it to run it again"):
            read_run_file(broken, SETUP.description, TIMING)
    with pytest.raises(PlayerflError, match="belongs to another study"):
        read_run_file(file, {**SETUP.description, "partition_hash": "0"}, TIMING)


@given(
    st.lists(
        st.tuples(st.text(max_size=2), st.integers(-(2**40), 2**40), st.sampled_from("ab"), st.floats(allow_nan=False))
    )
)
def test_tables_read_back_exactly(rows: list[tuple[str, int, str, float]]) -> None:
    assert unpacked(packed(rows)) == rows
