"""`playerfl flower demo` on your own data; tests/documentation/test_tutorials.py runs the whole of it."""

from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path

import pytest

from command_line import playerfl, refused
from documented import ROOT
from flower.jobs import Job
from playerfl.cli.flower_jobs import shown_changes
from playerfl.cli.site.jobs import ask_about_jobs
from playerfl.errors import ConfigError
from playerfl.flower.operate.demo import demo_experiment, incomparable, own_data
from playerfl.flower.server.job_status import AT_WORK, JobStatus
from playerfl.flower.site.policy import Policy
from playerfl.flower.site.setup import experiment_sites

HOSPITALS = ROOT / "examples" / "hospitals"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with what a real one has besides the sites' tables."""
    folder = tmp_path / "hospitals"
    folder.mkdir()
    for file in HOSPITALS.glob("*.csv"):
        (folder / file.name).write_bytes(file.read_bytes())
    (folder / "README.md").write_text("Our data.\n")
    (folder / "old.csv").write_text("not,a,site\n")
    return folder


def test_a_site_sees_its_own_file_only(folder: Path, tmp_path: Path) -> None:
    skipped = ["data.skip_sites=old", "data.drop_columns=patient"]
    experiment = demo_experiment(str(folder), None, skipped)
    place = Path(own_data(experiment, "north", tmp_path / "north" / "data"))
    assert {path.name for path in place.iterdir()} == {"north.csv", "README.md", "old.csv"}
    assert all(path.is_symlink() for path in place.iterdir())
    assert experiment_sites(demo_experiment(str(place), None, skipped)) == ["north"]


def test_a_template_is_for_every_site_and_is_not_one(folder: Path, tmp_path: Path) -> None:
    (folder / "old.csv").unlink()
    (folder / "template.csv").write_bytes((folder / "north.csv").read_bytes())
    experiment = demo_experiment(str(folder), 3)
    place = Path(own_data(experiment, "south", tmp_path / "south" / "data"))
    assert {path.name for path in place.iterdir()} == {"south.csv", "template.csv", "README.md"}
    assert "template" in str(incomparable(experiment))


def test_numbers_of_all_sites_cannot_be_compared_with_those_of_one(folder: Path) -> None:
    (folder / "old.csv").unlink()
    experiment = demo_experiment(str(folder), None, ["data.drop_columns=patient"])
    assert incomparable(experiment) is None
    number = demo_experiment(str(folder), None, ["data.drop_columns=patient", "data.target=cholesterol"])
    assert "a target that is a number" in str(incomparable(number))


def test_other_tasks_find_a_sites_data_by_its_name(tmp_path: Path) -> None:
    assert own_data(demo_experiment(None, None), "site-0", tmp_path / "data") == "digits"
    assert demo_experiment(None, None).rounds == 2
    assert demo_experiment("synthetic", 7, ["algorithm.name=fedper"]).rounds == 7


def test_mistakes_are_noticed_before_anything_is_started(folder: Path, tmp_path: Path) -> None:
    assert "unknown task 'hospital'" in refused(playerfl("flower", "demo", "hospital", cwd=tmp_path))
    (folder / "old.csv").rename(folder / "server.csv")
    (folder / "server.csv").write_bytes((folder / "north.csv").read_bytes())
    said = refused(playerfl("flower", "demo", "hospitals", "--out", "rehearsal", cwd=tmp_path))
    assert "cannot be called 'server'" in said
    assert not (tmp_path / "rehearsal").exists()


@pytest.fixture
def waiting(tmp_path: Path) -> Job:
    job = Job(tmp_path, "fedper", rounds=1, policy=Policy.of({"jobs": {"least_sites": 1}}))
    job.wait_in_vain()
    return job


def test_a_person_is_shown_the_job_and_decides(
    waiting: Job, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("perhaps\ny\nNo\n"))
    for name, site in waiting.sites.items():
        if name != "site-2":
            ask_about_jobs(name, site.home)
    assert [site.statuses()["job"] for site in waiting.sites.values()] == ["approved", "refused", "waiting"]
    shown = capsys.readouterr()
    assert shown.out == ""
    assert "layers that leave this site: " in shown.err and shown.err.count("approve? [y/n]") == 3
    ask_about_jobs("site-0", waiting.sites["site-0"].home)
    assert capsys.readouterr().err == ""


def test_nobody_to_ask_is_not_an_approval(waiting: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(""))
    with pytest.raises(ConfigError, match="--ask needs someone at the terminal"):
        ask_about_jobs("site-0", waiting.sites["site-0"].home)
    assert waiting.sites["site-0"].statuses() == {"job": "waiting"}


def test_a_site_that_has_not_started_yet_is_not_asked(tmp_path: Path) -> None:
    ask_about_jobs("north", tmp_path / "none")


def test_progress_is_a_line_per_round_and_names_sites_that_are_really_missing() -> None:
    status = JobStatus("demo", "running", "", 3, 20, "player_fl", {"north": "2:fit"}, 1.0, "2026-11-18T13:58:19Z")
    shown: list[str] = []
    on_change = shown_changes(shown.append)
    at_work = {"since": "2026-11-18T13:58:19Z", "asked": 1, "why": AT_WORK}
    on_change(status)
    on_change(replace(status, missing={"north": at_work, "south": at_work}))
    assert shown == ["running, round 3 of 20"]
    offline = {"north": {**at_work, "why": "its node is offline"}, "south": {**at_work, "why": "its node is offline"}}
    on_change(replace(status, missing=offline))
    on_change(replace(status, missing={"south": {**at_work, "asked": 2}}))
    assert shown[1:] == [
        "running, round 3 of 20; north and south: its node is offline",
        f"running, round 3 of 20; south: {AT_WORK}",
    ]


def test_a_file_where_a_folder_should_be_is_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert "file is not an empty folder" in refused(playerfl("flower", "demo", "--out", "file", cwd=tmp_path))
    (tmp_path / "job.toml").write_text('task = "synthetic"\nselection = "client_best"\n')
    init = ("flower", "init", "file", "--config", "job.toml", "--site", "a", "--site", "b")
    assert "file is a file" in refused(playerfl(*init, cwd=tmp_path))
    (tmp_path / "server.json").write_text('{"port": 9092}')
    (tmp_path / "jobs").touch()
    assert "unknown job 'heart'" in refused(playerfl("flower", "stop", "heart", "--home", ".", cwd=tmp_path))
