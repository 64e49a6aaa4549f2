"""Studies in which every run has its own split: kept with the run, resumed, archived, and weighted by its own sites."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import playerfl
from playerfl.errors import RunDirectoryError
from playerfl.report.compute.comparison import compare
from playerfl.report.compute.grid import arrange
from playerfl.runs.result import RunResult
from playerfl.storage.tensor_tree import decode, encode
from playerfl.studies.archive import read_archive, write_archive
from playerfl.studies.collecting import collect
from playerfl.studies.directory import StudyDirectory
from playerfl.studies.run_file import read_run_file
from studies.small_studies import SMALL, own_task, run, run_files, stamps

OWN: dict[str, Any] = {
    "algorithms": ["local", "fedavg"],
    "learning_rates": [0.01],
    "settings": {**SMALL["settings"], "data": {**SMALL["settings"]["data"], "split": "per_run"}},
}


def hashes(results: list[RunResult]) -> list[str | None]:
    return [result.data["partition_hash"] for result in results]


def test_every_seed_has_its_split_and_every_method_the_same(tmp_path: Path) -> None:
    found = run(tmp_path / "o", **OWN)
    local, fedavg = (hashes(found.runs["synthetic", name]) for name in ("local", "fedavg"))
    assert local == fedavg
    assert len(set(local)) == 3
    single = playerfl.run("synthetic", "fedavg", seed=2, learning_rate=0.01, settings=OWN["settings"])
    twin = found.runs["synthetic", "fedavg"][1]
    assert twin.score_rows == single.score_rows
    assert twin.data == single.data
    again = playerfl.study(tmp_path / "o", backend="serial", quiet=True)
    assert [r.data for r in again.results] == [r.data for r in found.results]
    assert not arrange(collect(tmp_path / "o").results).notes


def test_run_files_keep_only_splits_of_their_own(tmp_path: Path) -> None:
    run(tmp_path / "own", **OWN)
    run(tmp_path / "shared", **{**OWN, "settings": SMALL["settings"], "protocol": "2026.1"})
    assert all(set(decode(f)["data"]) == {"partition_hash", "sites"} for f in run_files(tmp_path / "own").values())
    assert all("data" not in decode(file) for file in run_files(tmp_path / "shared").values())


def test_an_interrupted_study_ends_with_the_same_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run(tmp_path / "whole", **OWN)
    kept = StudyDirectory.keep
    done = 0

    def stop(self: StudyDirectory, *given: Any, **options: Any) -> None:
        nonlocal done
        done += 1
        if done == 3:
            raise KeyboardInterrupt
        kept(self, *given, **options)

    monkeypatch.setattr(StudyDirectory, "keep", stop)
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path / "cut", **OWN)
    monkeypatch.undo()
    before = stamps(tmp_path / "cut")
    assert len(before) == 2
    run(tmp_path / "cut", **OWN)
    assert {**stamps(tmp_path / "cut"), **before} == stamps(tmp_path / "cut")
    assert run_files(tmp_path / "cut") == run_files(tmp_path / "whole")


def test_a_file_whose_split_is_not_its_own_is_refused(tmp_path: Path) -> None:
    found = run(tmp_path / "o", **OWN, seeds=1)
    (file, *_) = run_files(tmp_path / "o").values()
    tree = decode(file)
    tree["data"]["partition_hash"] = "0"
    with pytest.raises(RunDirectoryError, match="it belongs to another study"):
        read_run_file(encode(tree), found.results[0].data, found.results[0].timing)


@pytest.mark.slow
def test_one_seed_that_cannot_be_prepared_leaves_the_others_in_their_stack(tmp_path: Path) -> None:
    (tmp_path / "bad").touch()
    data = {"data": {"split": "per_run"}, "rounds": 2, "training": {"batch_size": 16}}
    found = run(tmp_path / "o", tasks=[own_task(tmp_path)], algorithms=["local"], learning_rates=[0.01], settings=data)
    assert [failure.seed for failure in found.failures] == [3]
    assert {result.timing["runs_side_by_side"] for result in found.results} == {3}


@pytest.mark.slow
def test_an_archive_keeps_the_sites_of_each_run(tmp_path: Path) -> None:
    """Digits dealt anew in every run: sites of other sizes, by which averages are weighted."""
    settings = {"rounds": 1, "data": {"split": "per_run", "sites": 3}, "training": {"batch_size": 64}}
    changes = {"tasks": ["digits"], "algorithms": ["local", "fedavg"], "learning_rates": [0.01], "seeds": 2}
    found = run(tmp_path / "o", **changes, settings=settings)
    write_archive(StudyDirectory.open(tmp_path / "o"), tmp_path / "a")
    archived = read_archive(tmp_path / "a").results
    assert [r.data for r in archived] == [r.data for r in found.results]
    first, second = (result.num_examples for result in archived[:2])
    assert first != second
    for ours, theirs in zip(archived, found.results, strict=True):
        (summary,) = compare([ours])
        sizes = {site: record["train"]["examples"] for site, record in theirs.data["sites"].items()}
        expected = sum(theirs.site_scores[s]["accuracy"] * n for s, n in sizes.items()) / sum(sizes.values())
        assert summary.average["accuracy"] == pytest.approx(expected, rel=1e-8)
    splits = tmp_path / "a" / "splits.jsonl.bz2"
    splits.write_bytes(splits.read_bytes()[:-8])
    with pytest.raises(RunDirectoryError, match=r"splits\.jsonl\.bz2 has been changed since it was written"):
        read_archive(tmp_path / "a")
