"""A site of a deployed job exports its own model from its state and its own data."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="deployments need playerfl[flower]")

import own_data
from command_line import playerfl
from flower.jobs import Job
from playerfl.tasks.load import load_task


@pytest.mark.slow
def test_the_model_in_a_sites_state_is_exported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    own_data.hospitals(tmp_path / "hospitals")
    job = Job(tmp_path / "home", "player_fl", load_task("hospitals"), rounds=2, sites=("north", "south"))
    job.run()
    job.assert_equals_in_process()
    state = job.home / "north" / "job"
    said = playerfl(
        "export",
        "--state",
        state,
        "--task",
        "hospitals",
        "--site",
        "north",
        "--out",
        "model",
        "--no-onnx",
        cwd=tmp_path,
    )
    assert said.returncode == 0, said.stderr
    about = json.loads((tmp_path / "model" / "model.json").read_text())
    scores = [line.split(",") for line in (job.folder / "scores.csv").read_text().splitlines()]
    expected = {s[4]: float(s[5]) for s in scores if s[1:4] == [str(about["round"]), "north", "test"]}
    assert about["test"]["scores"] == pytest.approx(expected, rel=1e-6)
    assert about["test"]["rows"] == 12
    # What the server cannot know, the site can: its data are here.
    low, high = about["test"]["intervals"]["accuracy"]
    assert low <= about["test"]["scores"]["accuracy"] <= high
    in_process = job.in_process().setup.description["sites"]["north"]
    assert about["test"]["baseline"]["loss"] == in_process["baseline"]["loss"]
    assert set(about["test"]["baseline"]) == {"f1", "accuracy", "loss"}
    assert [limits["column"] for limits in about["ranges"]] == ["age", "dose", "ward", "ward", "smoker"]
    assert about["layers"]["shared"] + about["layers"]["private"] == ["fc1", "fc2", "fc3"]
    (tmp_path / "new.csv").write_text("age,dose,ward,smoker\n61,2,lung,true\n")
    assert playerfl("predict", "model", "new.csv", cwd=tmp_path).stdout.startswith("row,predicted outcome,")


@pytest.mark.slow
def test_a_number_is_predicted_at_a_site_in_its_own_units(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each institution has its own data only, and a template."""
    monkeypatch.chdir(tmp_path)
    own_data.hospitals(tmp_path / "hospitals")
    settings = {"data.target": "age", "data.drop_columns": ["outcome"]}
    job = Job(tmp_path / "home", "fedavg", load_task("hospitals"), rounds=2, sites=("north", "south"), **settings)
    job.run()
    export = ("export", "--state", job.home / "south" / "job", "--task", "hospitals", "--site", "south", "--no-onnx")
    said = playerfl(*export, "--out", "model", cwd=tmp_path)
    assert said.returncode == 0, said.stderr
    about = json.loads((tmp_path / "model" / "model.json").read_text())
    assert set(about["test"]["baseline"]) >= {"mae", "rmse"}
    assert (
        about["test"]["intervals"]["mae"][0] <= about["test"]["scores"]["mae"] <= about["test"]["intervals"]["mae"][1]
    )
    (tmp_path / "new.csv").write_text("dose,ward,smoker\n2,lung,true\n500,lung,true\n")
    rows = playerfl("predict", "model", "new.csv", cwd=tmp_path).stdout.splitlines()
    assert rows[0] == "row,predicted age,outside training range"
    assert 20 < float(rows[1].split(",")[1]) < 100
    assert [row.split(",")[2] for row in rows[1:]] == ["", "dose"]
