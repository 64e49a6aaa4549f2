"""The live page: what it says about runs and studies under way, and whom it answers."""

from __future__ import annotations

import http.client
import shutil
import threading
import urllib.request
import webbrowser
from collections.abc import Iterator
from pathlib import Path

import pytest

from command_line import playerfl
from playerfl.errors import ConfigError
from playerfl.live.page import points, status_part
from playerfl.live.server import LiveServer, serving
from playerfl.live.status import Entry, FolderStatus, SiteNews, Watcher
from playerfl.storage.locking import locked

STUDY = """
name = "small"
tasks = ["synthetic"]
algorithms = ["local", "fedavg"]
learning_rates = [0.1, 0.01]
tuning_seeds = 1
seeds = 2
[settings]
rounds = 2
data = { rows = 60, sites = 2 }
"""


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A comparison of two methods, and a study, both finished."""
    place = tmp_path_factory.mktemp("finished")
    small = ("--set", "data.rows=60", "--set", "data.sites=2", "--rounds", "6", "-q")
    assert (
        playerfl("run", "synthetic", "-a", "local", "-a", "fedavg", *small, "--out", "two", cwd=place).returncode == 0
    )
    (place / "small.toml").write_text(STUDY)
    assert playerfl("study", "small.toml", "--out", "many", "--backend", "serial", "-q", cwd=place).returncode == 0
    return place


def interrupted(finished: Path, place: Path) -> Path:
    """The comparison as it was when FedAvg had done four of six rounds and was writing a line of the fifth."""
    home = shutil.copytree(finished / "two", place / "two")
    (home / "fedavg" / "finished.json").unlink()
    scores = home / "fedavg" / "scores.csv"
    lines = scores.read_text().splitlines(keepends=True)
    kept = [line for line in lines if line.split(",")[1] in ("round", "0", "1", "2", "3", "4")]
    scores.write_text("".join(kept) + "evaluate,5,site-0,vali")
    return home


def entries(status: FolderStatus) -> dict[str, Entry]:
    return {entry.title: entry for entry in status.entries}


@pytest.fixture
def under_way(finished: Path, tmp_path: Path) -> Iterator[Path]:
    """The interrupted comparison, while a process still works on FedAvg."""
    home = interrupted(finished, tmp_path)
    with locked(home / "fedavg"):
        yield home


def test_a_run_under_way_shows_its_round_its_curve_and_the_time_left(finished: Path, under_way: Path) -> None:
    home = under_way
    now = (home / "fedavg" / "scores.csv").stat().st_mtime
    watcher = Watcher(home, clock=lambda: now)
    fedavg, local = (entries(watcher.look())[f"{name} on synthetic, seed 0"] for name in ("FedAvg", "Local"))
    assert (local.state, local.done, len(local.curve)) == ("finished", 6, 6)
    assert (fedavg.state, fedavg.done, fedavg.total) == ("training", 4, 6)
    assert fedavg.words == "time left unknown"
    assert len(fedavg.curve) == 4
    shutil.copy(finished / "two" / "fedavg" / "scores.csv", home / "fedavg" / "scores.csv")
    now += 20
    assert entries(watcher.look())["FedAvg on synthetic, seed 0"].done == 6


def test_the_time_left_follows_from_the_pace(under_way: Path) -> None:
    home = under_way
    scores = home / "fedavg" / "scores.csv"
    whole = scores.read_text()
    now = scores.stat().st_mtime
    watcher = Watcher(home, clock=lambda: now)
    scores.write_text("".join(line for line in whole.splitlines(keepends=True) if line.split(",")[1] not in "4"))
    watcher.look()
    scores.write_text(whole)
    now += 10
    assert entries(watcher.look())["FedAvg on synthetic, seed 0"].words == "20 s left"


def test_a_run_that_no_process_works_on_has_stopped(finished: Path, tmp_path: Path) -> None:
    home = interrupted(finished, tmp_path)
    status = Watcher(home).look()
    fedavg = entries(status)["FedAvg on synthetic, seed 0"]
    assert fedavg.state == "stopped"
    assert fedavg.words == f"stopped before its end; continue it with  playerfl run --resume {home / 'fedavg'}"
    assert status.headline == "1 of 2 finished, 1 stopped."


def test_silence_is_named_with_the_command_that_continues(under_way: Path) -> None:
    home = under_way
    later = (home / "fedavg" / "scores.csv").stat().st_mtime + 300
    fedavg = entries(Watcher(home, clock=lambda: later).look())["FedAvg on synthetic, seed 0"]
    assert fedavg.state == "quiet"
    assert fedavg.words.startswith("no news for 5 min")
    assert f"playerfl run --resume {home / 'fedavg'}" in fedavg.words


def test_a_planned_run_waits_and_a_broken_one_does_not_end_the_page(finished: Path, tmp_path: Path) -> None:
    home = interrupted(finished, tmp_path)
    shutil.rmtree(home / "fedavg")
    (home / "local" / "experiment.toml").write_text("task = ")
    states = [entry.state for entry in Watcher(home).look().entries]
    assert states == ["waiting", "waiting"]
    shutil.copy(finished / "two" / "local" / "experiment.toml", home / "local" / "experiment.toml")
    with (home / "local" / "scores.csv").open("a") as scores:
        scores.write("9" * 200_000)
    assert [entry.words for entry in Watcher(home).look().entries] == ["not started", "not readable yet"]
    (home / "local" / "experiment.toml").write_text("algorithm = { name = 3 }")
    assert len(Watcher(home).look().entries) == 2
    assert Watcher(tmp_path / "nothing yet").look().headline == "Waiting for the first run."


def test_a_study_shows_every_line_and_its_failures(finished: Path, tmp_path: Path) -> None:
    home = shutil.copytree(finished / "many", tmp_path / "many")
    status = Watcher(home).look()
    assert {title: (e.done, e.total) for title, e in entries(status).items()} == {
        "Local on synthetic": (4, 4),
        "FedAvg on synthetic": (4, 4),
    }
    assert status.over
    assert not status.failures
    first, second = sorted((home / "cells").glob("*.safetensors"))[:2]
    first.unlink()
    second.rename(tmp_path / "elsewhere")
    (home / "failed" / f"{first.stem}.json").write_text(
        '{"reason": "out of memory", "experiment": {"task": "synthetic", "algorithm": {"name": "local"}, "seed": 3}}'
    )
    status = Watcher(home).look()
    assert status.failures == ("Local on synthetic, seed 3: out of memory",)
    assert sum(entry.done for entry in status.entries) == 6
    assert not status.over
    (tmp_path / "elsewhere").rename(second)
    status = Watcher(home).look()
    assert status.over
    assert status.headline == "Everything has ended; 1 run failed."
    failed = entries(status)["Local on synthetic"]
    assert failed.words == f"1 failed; try again with  playerfl study {home} --retry-failed"


def test_runs_of_one_title_say_where_they_are(finished: Path, tmp_path: Path) -> None:
    for place in ("first", "second"):
        shutil.copytree(finished / "two" / "local", tmp_path / place)
    shutil.copytree(finished / "two" / "fedavg", tmp_path / "third")
    assert {entry.title for entry in Watcher(tmp_path).look().entries} == {
        "Local on synthetic, seed 0 (first)",
        "Local on synthetic, seed 0 (second)",
        "FedAvg on synthetic, seed 0",
    }


def test_a_job_shows_which_sites_answered(finished: Path, tmp_path: Path) -> None:
    home = interrupted(finished, tmp_path)
    (home / "fedavg" / "participation.csv").write_text(
        "round,verbs,site,outcome,reason,seconds\n1,fit,north,answered,,1.0\n1,fit,south,answered,,1.0\n"
        "2,fit,north,answered,,1.0\n2,fit,south,late,no reply in 60 s,60.0\n"
    )
    shown = entries(Watcher(home).look())["FedAvg on synthetic, seed 0"].sites
    assert shown == (SiteNews("north", "answered", ""), SiteNews("south", "late", "no reply in 60 s"))
    assert "late (no reply in 60 s)" in status_part(Watcher(home).look())


def test_names_are_escaped() -> None:
    hostile = "<script>alert(1)</script>"
    entry = Entry(
        hostile, hostile, 1, 2, "rounds", "quiet", hostile, (1.0, float("nan")), (SiteNews(hostile, "late", hostile),)
    )
    assert "<script" not in status_part(FolderStatus((entry,), (hostile,), 0))


def test_a_curve_without_a_finite_value_is_no_line() -> None:
    assert points([float("nan"), float("inf")]) == ""
    assert points([1.0, 1.0]) == "0.0,3.0 300.0,3.0"


@pytest.fixture
def server(finished: Path) -> Iterator[LiveServer]:
    with serving(LiveServer(finished / "two", "playerfl: two")) as running:
        yield running


def asked(server: LiveServer, path: str, method: str = "GET", host: str | None = None) -> tuple[int, str]:
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=20)
    connection.request(method, path, headers={"Host": host or f"127.0.0.1:{server.port}"})
    answer = connection.getresponse()
    text = answer.read().decode()
    connection.close()
    return answer.status, text


def test_a_folder_that_disappears_is_named_and_may_come_back(tmp_path: Path) -> None:
    watcher = Watcher(tmp_path / "later")
    assert watcher.look().headline == "Waiting for the first run."
    (tmp_path / "later").mkdir()
    assert watcher.look().headline == "Waiting for the first run."
    (tmp_path / "later").rmdir()
    assert "no longer there" in watcher.look().headline
    (tmp_path / "later").mkdir()
    assert watcher.look().headline == "Waiting for the first run."


@pytest.mark.slow
def test_the_server_has_three_pages_and_only_reads(server: LiveServer) -> None:
    files = {file: file.stat().st_mtime_ns for file in server.home.rglob("*")}
    assert asked(server, "/")[0] == 200
    assert "Everything has finished" in asked(server, "/status")[1]
    code, report = asked(server, "/report?runs=2")
    assert code == 200
    assert "macro-F1" in report
    for path in ("/../secret", "/two/local/experiment.toml", "/report/x"):
        assert asked(server, path)[0] == 404
    for method in ("POST", "PUT", "DELETE"):
        assert asked(server, "/status", method)[0] == 501
    assert files == {file: file.stat().st_mtime_ns for file in server.home.rglob("*")}


def test_only_this_computer_is_answered(server: LiveServer) -> None:
    assert server.address.startswith("http://127.0.0.1:")
    assert asked(server, "/", host=f"localhost:{server.port}")[0] == 200
    for host in ("evil.example", f"evil.example:{server.port}", "127.0.0.1.evil.example:80"):
        assert asked(server, "/status", host=host)[0] == 403


def test_a_port_in_use_is_named(server: LiveServer) -> None:
    with pytest.raises(ConfigError, match=f"port {server.port} cannot be used"):
        LiveServer(server.home, "again", server.port)


def test_a_folder_that_does_not_exist_is_refused(tmp_path: Path) -> None:
    said = playerfl("watch", "nowhere", cwd=tmp_path)
    assert said.returncode == 2
    assert "nowhere is not a directory" in said.stderr


@pytest.mark.slow
def test_run_open_shows_the_run_and_then_its_report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read: dict[str, str] = {}
    threads = []

    def reader(address: str) -> None:
        for page in ("", "report"):
            while page == "report" and "Everything has finished" not in _text(f"{address}status"):
                pass
            read[page] = _text(address + page)

    def opened(address: str) -> bool:
        threads.append(threading.Thread(target=reader, args=(address,)))
        threads[0].start()
        return True

    monkeypatch.setattr(webbrowser, "open", opened)
    said = playerfl("run", "synthetic", "-a", "local", "--rounds", "2", "-q", "--open", "--out", "one", cwd=tmp_path)
    threads[0].join()
    assert said.returncode == 0, said.stderr
    assert "watching: http://127.0.0.1:" in said.stderr
    assert "Waiting for the first run" in read[""] or "Local on synthetic" in read[""]
    assert "Federated" in read["report"] or "playerfl: one" in read["report"]


def _text(address: str) -> str:
    with urllib.request.urlopen(address, timeout=20) as answer:
        return str(answer.read().decode())


def test_nothing_is_opened_unless_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(webbrowser, "open", lambda address: pytest.fail(address))
    assert playerfl("run", "synthetic", "-a", "local", "--rounds", "1", "-q", cwd=tmp_path).returncode == 0
    assert [entry.name for entry in tmp_path.iterdir()] == ["runs"]


@pytest.mark.parametrize("file", ["contract.json", "model.json"])
def test_a_sites_part_in_a_job_and_an_exported_model_are_no_runs(finished: Path, tmp_path: Path, file: str) -> None:
    """The page said of every site of a rehearsal, and of every model, that it had stopped, and how to continue it."""
    shutil.copytree(finished / "two" / "local", tmp_path / "server" / "jobs" / "demo")
    state = tmp_path / "north" / "state" / "demo"
    state.mkdir(parents=True)
    shutil.copy(finished / "two" / "local" / "experiment.toml", state)
    (state / file).write_text("{}")
    (entry,) = Watcher(tmp_path).look().entries
    assert entry.state == "finished"
    said = playerfl("report", tmp_path, "--out", tmp_path / "page.html", cwd=tmp_path)
    assert said.returncode == 0 and "not finished" not in said.stderr.lower()
