"""Every kind of folder is read; what is missing or broken is listed, not fatal."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Protocol

import pytest

import playerfl
from federations import QUICK, task
from playerfl.errors import ConfigError, RunDirectoryError
from playerfl.runs.api import write_comparison
from playerfl.runs.directory import RunDirectory
from playerfl.runs.experiment import Experiment
from playerfl.runs.settings_table import with_settings
from playerfl.studies.collecting import collect
from studies.small_studies import run as small_study


class RunInto(Protocol):
    def __call__(self, place: Path, algorithm: str = "fedavg", seed: int = 0) -> Path: ...


@pytest.fixture(scope="module")
def run_into(tmp_path_factory: pytest.TempPathFactory) -> RunInto:
    """Copies a finished run into a place; each is run once."""
    home = tmp_path_factory.mktemp("runs")

    def copy(place: Path, algorithm: str = "fedavg", seed: int = 0) -> Path:
        original = home / f"{algorithm}-{seed}"
        if not original.exists():
            playerfl.run("synthetic", algorithm, rounds=1, seed=seed, out=original)
        return shutil.copytree(original, place)

    return copy


def test_a_run_directory_is_read_without_its_models(tmp_path: Path) -> None:
    original = playerfl.run("synthetic", "fedavg", rounds=1, out=tmp_path / "run")
    (read,) = collect(tmp_path / "run").results
    assert read.site_scores == original.site_scores
    assert read.sites == original.sites
    assert read.weights == {}
    with pytest.raises(playerfl.PlayerflError):
        read.model(read.sites[0])


def test_a_folder_of_runs_and_comparisons_at_any_depth(run_into: RunInto, tmp_path: Path) -> None:
    run_into(tmp_path / "a" / "deep" / "run", seed=1)
    run_into(tmp_path / "b", seed=2)
    (tmp_path / "empty").mkdir()
    assert sorted(result.experiment["seed"] for result in collect(tmp_path).results) == [1, 2]


def announced(home: Path, *algorithms: str) -> None:
    tables = [with_settings({"task": "synthetic", "rounds": 3}, {"algorithm.name": name}) for name in algorithms]
    write_comparison(home, [Experiment.resolve(table) for table in tables])


def test_runs_that_a_comparison_planned_and_lacks_are_missing(run_into: RunInto, tmp_path: Path) -> None:
    announced(tmp_path, "local", "fedavg")
    run_into(tmp_path / "local", "local")
    found = collect(tmp_path)
    assert [result.algorithm for result in found.results] == ["local"]
    (gap,) = found.missing
    assert (gap.task, gap.algorithm, gap.seed, gap.reason) == ("synthetic", "fedavg", 0, "not started")


def test_an_unfinished_run_is_missing_with_how_far_it_is(run_into: RunInto, tmp_path: Path) -> None:
    run_into(tmp_path / "run")
    (tmp_path / "run" / "finished.json").unlink()
    (gap,) = collect(tmp_path).missing
    assert gap.reason == f"1 of 1 rounds done; continue it with  playerfl run --resume {tmp_path / 'run'}"


def test_broken_runs_are_listed_and_the_others_are_read(run_into: RunInto, tmp_path: Path) -> None:
    run_into(tmp_path / "good")
    broken = ["scores.csv", "layers.json", "experiment.toml", "environment.json", "data.json"]
    for file in (*broken, "empty"):
        shutil.copytree(tmp_path / "good", tmp_path / f"without-{file}")
    for file in broken:
        (tmp_path / f"without-{file}" / file).write_text("{]nonsense", encoding="utf-8")
    heads = "stage,round,client,split,metric,value\n"
    (tmp_path / "without-empty" / "scores.csv").write_text(heads, encoding="utf-8")
    found = collect(tmp_path)
    assert [result.path for result in found.results] == [tmp_path / "good"]
    reasons = " ".join(gap.reason for gap in found.failed)
    assert len(found.failed) == 6
    assert all(f"without-{file}/{file}" in reasons for file in broken)
    assert "without-empty" in reasons


def test_a_broken_comparison_file_is_listed(run_into: RunInto, tmp_path: Path) -> None:
    run_into(tmp_path / "good")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "comparison.json").write_text(json.dumps({"experiments": [1]}), encoding="utf-8")
    found = collect(tmp_path)
    assert len(found.results) == 1
    assert "comparison.json cannot be read" in found.failed[0].reason


@pytest.mark.parametrize("what", ["nothing", "a file", "an empty folder"])
def test_where_there_is_no_run_one_sentence_says_so(tmp_path: Path, what: str) -> None:
    place = tmp_path / "place"
    if what == "a file":
        place.write_text("")
    elif what == "an empty folder":
        place.mkdir()
    with pytest.raises(RunDirectoryError, match=r"not a directory|there are no runs in"):
        collect(place)


def test_a_run_of_a_users_task_is_read_without_the_task(tmp_path: Path) -> None:
    playerfl.run(task(), "fedavg", rounds=1, settings=QUICK, out=tmp_path / "run")
    assert len(collect(tmp_path).results) == 1


def test_a_run_directory_with_a_report_may_be_overwritten(run_into: RunInto, tmp_path: Path) -> None:
    run_into(tmp_path / "run")
    (tmp_path / "run" / "report").mkdir()
    (tmp_path / "run" / "report" / "report.html").write_text("")
    RunDirectory.check_free(tmp_path / "run", overwrite=True)


@pytest.mark.slow
def test_missing_and_broken_runs_of_a_study_are_listed(tmp_path: Path) -> None:
    """Three methods: one complete, one with a run that cannot be read, one that lacks a run that chooses its rate."""
    small_study(tmp_path / "study")
    study = playerfl.StudyDirectory.open(tmp_path / "study")
    whole = collect(tmp_path)
    assert (len(whole.results), whole.tuning_runs, whole.missing, whole.failed) == (9, 12, [], [])
    _, fedavg, fedbabu = study.study.lines
    rate = study.chosen_rate(fedavg)
    assert rate is not None
    (study.path / "cells" / f"{study.planned(fedavg.at(rate, 2)).key}.safetensors").write_bytes(b"nonsense")
    (study.path / "cells" / f"{study.planned(fedbabu.tuning[0]).key}.safetensors").unlink()
    found = collect(tmp_path)
    assert (len(found.results), found.tuning_runs) == (5, 11)
    assert [(gap.algorithm, gap.seed) for gap in found.failed] == [("fedavg", 2)]
    assert [(gap.algorithm, gap.seed, gap.tuning, gap.reason) for gap in found.missing] == [
        ("fedbabu", 1001, True, "not run yet"),
        *(("fedbabu", seed, False, "waits for its learning rate") for seed in (1, 2, 3)),
    ]


def change(file: Path, *keys: str | int, value: object) -> None:
    """Sets one value in a JSON file."""
    content = place = json.loads(file.read_text())
    for key in keys[:-1]:
        place = place[key]
    place[keys[-1]] = value
    file.write_text(json.dumps(content))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("file", "keys", "value"),
    [
        ("layers.json", ("layers", 0, "parameters"), "many"),
        ("layers.json", ("layers",), []),
        ("layers.json", ("decision", "index"), 9),
        ("layers.json", ("decision", "ratios"), None),
        ("layers.json", ("profiles", "site-0", "batches"), [[1.0]]),
        ("layers.json", ("profiles", "site-0", "batch_sizes"), [0]),
        ("data.json", ("sites", "site-0", "train", "examples"), -3),
        ("data.json", ("paper",), "no such dataset"),
        ("data.json", ("sites", "site-0"), None),
        ("timing.json", ("wall_seconds",), "long"),
        ("timing.json", ("runs_side_by_side",), -1),
        ("environment.json", ("threads",), "many"),
    ],
    ids=lambda value: str(value).replace(" ", "") if isinstance(value, tuple) else None,
)
def test_a_run_with_impossible_contents_is_listed_and_the_others_reported(
    file: str, keys: tuple[str | int, ...], value: object, run_into: RunInto, tmp_path: Path
) -> None:
    run_into(tmp_path / "good")
    run_into(tmp_path / "bad", "player_fl")
    change(tmp_path / "bad" / file, *keys, value=value)
    found = collect(tmp_path)
    assert [result.algorithm for result in found.results] == ["fedavg"]
    (gap,) = found.failed
    assert "is not a valid run" in gap.reason
    with pytest.raises(RunDirectoryError, match="is not a valid run"):
        playerfl.load_result(tmp_path / "bad")


def test_scores_of_a_round_beyond_the_last_are_refused(run_into: RunInto, tmp_path: Path) -> None:
    run_into(tmp_path / "bad")
    with (tmp_path / "bad" / "scores.csv").open("a") as table:
        table.write("round,7,site-0,test,loss,0.5\n")
    (gap,) = collect(tmp_path).failed
    assert "scores of round 7" in gap.reason


def test_a_study_whose_method_is_elsewhere_says_where_to_run_the_command(tmp_path: Path) -> None:
    (tmp_path / "study.toml").write_text(
        'name = "mine"\nalgorithms = ["gone.py:Gone"]\nseeds = 1\n[[tasks]]\nname = "synthetic"\n'
    )
    with pytest.raises(ConfigError, match=r"no file gone\.py .* run this where the study was started"):
        collect(tmp_path)
