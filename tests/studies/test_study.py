"""Studies as a whole, in this process: nothing twice, nothing lost, one bad run spoils no other."""

from __future__ import annotations

import errno
import json
import shutil
from dataclasses import dataclass
from pathlib import Path

import pytest

import playerfl
from playerfl.algorithms import ALGORITHMS, FedAvg
from playerfl.errors import PlayerflError
from playerfl.runs.settings_table import with_settings
from playerfl.storage.atomic_files import storage_error
from playerfl.storage.locking import DirectoryLock
from playerfl.studies.api import StudyResult
from playerfl.studies.estimate import estimate
from playerfl.studies.plan import Study
from playerfl.studies.scheduler import prepare
from studies.small_studies import SMALL, own_task, run, run_files, stamps


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> StudyResult:
    """The small study, run once; tests that write work on a copy."""
    return run(tmp_path_factory.mktemp("study") / "whole")


def copy_of(study: StudyResult, place: Path) -> Path:
    """Files keep the time at which they were written."""
    return shutil.copytree(study.path, place)


def test_a_study_gives_what_single_runs_give(whole: StudyResult) -> None:
    assert len(whole.results) == 9
    assert not whole.failures
    assert len(run_files(whole.path)) == 3 * (2 * 2 + 3)
    rate = whole.chosen_rates["synthetic", "fedavg"]
    assert rate == 0.01
    settings = with_settings(SMALL["settings"], {"data.split": "per_run"})
    single = playerfl.run("synthetic", "fedavg", seed=2, learning_rate=rate, settings=settings)
    twin = whole.runs["synthetic", "fedavg"][1]
    assert twin.score_rows == single.score_rows
    assert twin.experiment == single.experiment
    assert repr(whole) == f"<StudyResult: 9 runs, in {whole.path}>"


def test_the_chosen_rate_is_that_of_the_smallest_tuned_loss(whole: StudyResult) -> None:
    directory = playerfl.StudyDirectory.open(whole.path)
    for line in directory.study.lines:
        losses = directory.rate_losses(line)
        assert directory.chosen_rate(line) == min(losses, key=lambda rate: losses[rate])
    assert len(directory.results("tuning")) == 3 * 2 * 2
    assert {result.experiment["seed"] for result in directory.results("tuning")} == {1001, 1002}


def test_a_second_call_runs_nothing(whole: StudyResult, tmp_path: Path) -> None:
    again = playerfl.study(copy_of(whole, tmp_path / "o"), backend="serial", quiet=True)
    assert stamps(tmp_path / "o") == stamps(whole.path)
    assert [r.score_rows for r in again.results] == [r.score_rows for r in whole.results]


@pytest.mark.slow
def test_an_extended_study_runs_only_what_is_new_and_equals_one_made_in_one_go(
    whole: StudyResult, tmp_path: Path
) -> None:
    run(tmp_path / "grown", seeds=2, algorithms=["local"])
    early = stamps(tmp_path / "grown")
    run(tmp_path / "grown", seeds=2)
    middle = stamps(tmp_path / "grown")
    run(tmp_path / "grown")
    late = stamps(tmp_path / "grown")
    assert len(early) < len(middle) < len(late)
    assert {**late, **early} == late
    assert {**late, **middle} == late
    assert run_files(tmp_path / "grown") == run_files(whole.path)


@pytest.mark.slow
def test_the_size_of_groups_changes_no_result(whole: StudyResult, tmp_path: Path) -> None:
    run(tmp_path / "one", seeds_per_group=1)
    assert all(together >= 4 for together in prepare(Study.resolve(SMALL)).together.values())
    assert run_files(tmp_path / "one") == run_files(whole.path)


def test_with_one_worker_all_seeds_of_a_method_train_side_by_side(tmp_path: Path) -> None:
    settings = {**SMALL["settings"], "rounds": 1}
    found = run(tmp_path / "o", algorithms=["fedavg"], learning_rates=[0.01], seeds=10, settings=settings)
    assert {result.timing["runs_side_by_side"] for result in found.results} == {10}


def test_runs_of_both_trainers_are_kept_apart(tmp_path: Path) -> None:
    tasks = [{"name": "synthetic", "trainer": "loop"}, {"name": "synthetic", "trainer": "stacked"}]
    found = run(tmp_path / "o", tasks=tasks, algorithms=["fedavg"], learning_rates=[0.01], seeds=2)
    assert [result.data["trainer"] for result in found.results] == ["loop", "loop", "stacked", "stacked"]
    assert len(run_files(tmp_path / "o")) == 4


@pytest.mark.slow
def test_another_setting_gives_other_runs_and_keeps_the_old_ones(tmp_path: Path) -> None:
    first = run(tmp_path / "o", learning_rates=[0.01])
    before = run_files(tmp_path / "o")
    settings = {**SMALL["settings"], "rounds": 3}
    other = run(tmp_path / "o", learning_rates=[0.01], settings=settings)
    assert {r.experiment["rounds"] for r in other.results} == {3}
    assert {**run_files(tmp_path / "o"), **before} == run_files(tmp_path / "o")
    assert playerfl.StudyDirectory.open(tmp_path / "o").num_other_runs == len(before)
    back = stamps(tmp_path / "o")
    again = run(tmp_path / "o", learning_rates=[0.01])
    assert stamps(tmp_path / "o") == back
    assert [r.score_rows for r in again.results] == [r.score_rows for r in first.results]


@pytest.mark.slow
def test_a_failed_run_spoils_no_other_and_is_tried_again_on_demand(tmp_path: Path) -> None:
    task, bad = own_task(tmp_path), tmp_path / "bad"
    changes = {"tasks": [task], "settings": {"rounds": 2, "training": {"batch_size": 16}}, "algorithms": ["local"]}
    bad.touch()
    found = run(tmp_path / "o", **changes)
    (failure,) = found.failures
    assert failure.seed == 3
    assert failure.reason.endswith("cannot be built: RuntimeError: this seed is unlucky (own.py, line 13)")
    assert [r.experiment["seed"] for r in found.results] == [1, 2]
    kept = json.loads(next((tmp_path / "o" / "failed").iterdir()).read_text())
    assert kept["experiment"]["seed"] == 3
    assert any("RuntimeError" in line for line in kept["traceback"])
    before = stamps(tmp_path / "o")

    bad.unlink()
    assert run(tmp_path / "o", **changes).failures, "only on demand"
    found = run(tmp_path / "o", **changes, retry_failed=True)
    assert not found.failures
    assert not list((tmp_path / "o" / "failed").iterdir())
    assert {**stamps(tmp_path / "o"), **before} == stamps(tmp_path / "o")
    run(tmp_path / "whole", **changes)
    assert run_files(tmp_path / "o") == run_files(tmp_path / "whole")


def test_a_rate_that_diverges_is_not_chosen_and_it_is_an_error_if_all_do(tmp_path: Path) -> None:
    found = run(tmp_path / "o", algorithms=["fedavg"], learning_rates=[1e30, 0.01], seeds=1)
    assert found.chosen_rates == {("synthetic", "fedavg"): 0.01}
    found = run(tmp_path / "o", algorithms=["fedavg", "local"], learning_rates=[1e30, 1e29], seeds=1)
    assert found.chosen_rates == {("synthetic", "fedavg"): None, ("synthetic", "local"): None}
    assert not found.results
    assert str(found.failures[0]) == (
        "fedavg on synthetic: no learning rate gave a finite validation loss; try smaller ones"
    )


def test_models_are_kept_on_demand(tmp_path: Path) -> None:
    found = run(tmp_path / "o", keep_weights=True, algorithms=["local"], learning_rates=[0.01], seeds=1)
    settings = with_settings(SMALL["settings"], {"data.split": "per_run"})
    single = playerfl.run("synthetic", "local", seed=1, learning_rate=0.01, settings=settings)
    weight = single.weights["site-0"]
    assert all(weight[name].equal(tensor) for name, tensor in found.results[0].weights["site-0"].items())

    before = stamps(tmp_path / "o")
    run(tmp_path / "o", algorithms=["local"], learning_rates=[0.01], seeds=1)
    assert len({**stamps(tmp_path / "o"), **before}) == 2, "a run without models is a different run"


OWN_ALGORITHM = """
from dataclasses import dataclass
from playerfl.algorithms import FedAvg

@dataclass(frozen=True)
class Mine(FedAvg):
    strength: float = 1.0
"""


@pytest.mark.system
def test_workers_know_a_users_algorithm_and_its_text_is_part_of_the_runs_name(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(OWN_ALGORITHM)
    name = f"{file}:Mine"
    changes = {"algorithms": ["fedavg", {"name": name, "strength": 2.0}], "learning_rates": [0.01], "seeds": 1}
    found = run(tmp_path / "o", **changes, backend="processes", workers=1)
    theirs, mine = found.results
    assert mine.score_rows == theirs.score_rows
    assert mine.experiment["algorithm"] == {"name": name, "strength": 2.0}
    before = stamps(tmp_path / "o")
    file.write_text(f"{OWN_ALGORITHM}    weakness: float = 0.0\n")
    run(tmp_path / "o", **changes)
    after = stamps(tmp_path / "o")
    assert len(after) == 3, "fedavg is the same, the changed file gives another run"
    assert {**after, **before} == after


def test_an_algorithm_that_only_this_process_knows_needs_the_serial_backend(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    @dataclass(frozen=True)
    class Mine(FedAvg):
        pass

    monkeypatch.setitem(ALGORITHMS, "mine", Mine)
    changes = {"algorithms": ["mine"], "learning_rates": [0.01], "seeds": 1}
    with pytest.raises(PlayerflError, match=r"call it FILE.py:NAME, or use the backend serial"):
        run(tmp_path / "o", **changes, backend="processes")
    assert len(run(tmp_path / "o", **changes).results) == 1


def test_a_checkpoint_that_cannot_be_written_does_not_fail_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There is room for small files but not for a large one: the study stops; the same command runs what is missing."""

    def full(path: Path, _: bytes, then: str) -> None:
        raise storage_error(path, OSError(errno.ENOSPC, "No space left on device"), then)

    small = {"algorithms": ["local"], "learning_rates": [0.01], "checkpoint_seconds": 0.0}
    with monkeypatch.context() as patch:
        patch.setattr("playerfl.studies.run_file.write_atomically", full)
        with pytest.raises(PlayerflError, match=r"cannot write .*unfinished.*run the same command again"):
            run(tmp_path, **small)
    assert list((tmp_path / "failed").iterdir()) == []
    found = run(tmp_path, **small)
    assert (len(found.results), found.failures) == (3, [])


def test_files_left_by_a_killed_process_are_removed(tmp_path: Path) -> None:
    small = {"algorithms": ["local"], "learning_rates": [0.01]}
    run(tmp_path, **small)
    key = min(run_files(tmp_path)).removesuffix(".safetensors")
    left = [tmp_path / "unfinished" / f"{key}.safetensors", tmp_path / "failed" / f"{key}.json"]
    other = tmp_path / "unfinished" / "another.safetensors"
    for file in (*left, other):
        file.write_bytes(b"{}")
    timings = (tmp_path / "timings.csv").read_text()
    (tmp_path / "timings.csv").write_text(timings + f"{key},12")
    run(tmp_path, **small)
    assert not any(file.exists() for file in left)
    assert other.exists(), "a run with other settings is resumed when those settings return"
    assert (tmp_path / "timings.csv").read_text() == timings


def test_a_second_process_is_refused(tmp_path: Path) -> None:
    run(tmp_path / "o", algorithms=["local"])
    lock = DirectoryLock(tmp_path / "o")
    lock.take()
    with pytest.raises(PlayerflError, match="is in use by another process"):
        run(tmp_path / "o")
    lock.release()


def test_places_that_hold_something_else_are_refused(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").touch()
    with pytest.raises(PlayerflError, match="holds files that are not a study's"):
        run(tmp_path)
    with pytest.raises(PlayerflError, match="is a file; give a directory"):
        run(tmp_path / "thesis.txt")
    with pytest.raises(PlayerflError, match="is not the directory of a study"):
        playerfl.study(tmp_path)
    with pytest.raises(PlayerflError, match="there is no study in"):
        playerfl.StudyDirectory.open(tmp_path)


def test_what_cannot_run_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    for changes, sentence in (
        ({"algorithms": [{"name": "fedper", "personal_layers": 9}]}, "personal_layers"),
        ({"settings": {"data": {"rows": 3}}}, "."),
        ({"backend": "threads"}, "unknown backend 'threads'"),
        ({"workers": 0}, "workers must be at least 1"),
        ({"ray_address": "auto"}, "needs the backend ray, not serial"),
    ):
        with pytest.raises(PlayerflError, match=sentence):
            run(tmp_path / "o", **changes)
        assert not (tmp_path / "o").exists()


def test_a_study_under_way_says_what_is_missing(whole: StudyResult, tmp_path: Path) -> None:
    directory = playerfl.StudyDirectory.open(copy_of(whole, tmp_path / "o"))
    assert not directory.missing()
    victim = directory.planned(directory.study.lines[1].at(0.01, 2)).key
    (tmp_path / "o" / "cells" / f"{victim}.safetensors").unlink()
    (missing,) = directory.missing()
    assert (missing.algorithm["name"], missing.seed) == ("fedavg", 2)


@pytest.mark.slow
def test_an_estimate_counts_runs_and_writes_nothing(whole: StudyResult, tmp_path: Path) -> None:
    prepared = prepare(Study.resolve({**SMALL, "algorithms": "all"}))
    found = estimate(prepared, tmp_path / "o", workers=2, start=3.0)
    assert not (tmp_path / "o").exists()
    printed = found.as_json()
    assert printed["runs_left"] == len(ALGORITHMS) * (2 * 2 + 3)
    assert all(line["seconds_per_run"] > 0 for line in printed["lines"])
    assert printed["seconds"] == pytest.approx(sum(7 * line["seconds_per_run"] for line in printed["lines"]) / 2 + 3.0)
    found = estimate(prepare(Study.resolve({**SMALL, "seeds": 5})), whole.path)
    assert [line["evaluation"] for line in found.as_json()["lines"]] == [
        {"runs": 5, "done": 3, "failed": 0, "missing": 2}
    ] * 3
