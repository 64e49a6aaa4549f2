"""Studies on worker processes: killed, interrupted, with workers that die."""

from __future__ import annotations

import csv
import json
import os
import random
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest

from command_line import playerfl as command
from killing import ended, start, undisturbed
from studies.small_studies import SMALL, own_task, run, run_files, stamps, written

pytestmark = pytest.mark.system

# Long enough for ten kills; saved after every round, so that it makes progress between kills and can be watched.
KILLED = {
    **SMALL,
    "algorithms": ["local", "player_fl"],
    "checkpoint_seconds": 0,
    "seeds_per_group": 2,
    "settings": {"rounds": 60, "data": {"rows": 120, "sites": 2}, "training": {"batch_size": 8}},
}
KILLS = 10


def files(out: Path) -> set[tuple[str, int]]:
    """What is finished or under way, and since when."""
    found = set()
    for file in (*out.glob("cells/*.safetensors"), *out.glob("unfinished/*.safetensors")):
        with suppress(FileNotFoundError):
            found.add((file.name, file.stat().st_mtime_ns))
    return found


def killed(arguments: list[str], out: Path, rng: random.Random) -> int:
    """Starts a study and kills it once a few more rounds are saved, or before; returns its exit code.

    Progress is counted in saved files rather than in seconds, which mean little on a busy machine.
    """
    child = start(arguments)
    before, wanted = files(out), rng.choice([0, *range(40)])
    seen: set[tuple[str, int]] = set()
    while wanted and len(seen) < wanted:
        seen |= files(out) - before
        gone, status = os.waitpid(child, os.WNOHANG)
        if gone:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.002)
    time.sleep(rng.uniform(0, 1 if wanted == 0 else 0.02))
    os.kill(child, signal.SIGKILL)
    return ended(child)


@pytest.mark.long
def test_killed_at_ten_random_moments_a_study_ends_bit_for_bit_the_same(tmp_path: Path) -> None:
    file = written(tmp_path, KILLED)
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    undisturbed(["study", str(file), "-q", "--out", str(whole)])

    rng = random.Random(20261115)
    again = ["study", str(file), "-q", "--out", str(broken)]
    seen: dict[str, int] = {}
    for kill in range(KILLS + 1):
        code = killed(again, broken, rng) if kill < KILLS else ended(start(again))
        assert (code < 0) == (kill < KILLS), "the study is too short for so many kills"
        now = stamps(broken)
        assert {**now, **seen} == now, "a finished run was run again"
        seen = now
    assert code == 0
    assert run_files(broken) == run_files(whole)
    assert not list((broken / "unfinished").glob("*"))
    with (broken / "timings.csv").open() as table:
        keys = [row[0] for row in csv.reader(table)]
    assert len(keys) == len(set(keys)), "a finished run was run again"


def test_workers_give_what_this_process_gives_and_end_with_it(tmp_path: Path) -> None:
    run(tmp_path / "here")
    found = run(tmp_path / "there", backend="processes", workers=2)
    assert not found.failures
    assert run_files(tmp_path / "there") == run_files(tmp_path / "here")
    assert all(result.timing["wall_seconds"] > 0 for result in found.results)


@pytest.mark.parametrize(("file", "failed"), [("deadly once", []), ("deadly", [3])])
def test_a_worker_that_dies_costs_at_most_the_run_that_killed_it(tmp_path: Path, file: str, failed: list[int]) -> None:
    task = own_task(tmp_path)
    changes = {"tasks": [task], "settings": {"rounds": 2, "training": {"batch_size": 16}}, "algorithms": ["local"]}
    (tmp_path / file).touch()
    found = run(tmp_path / "o", **changes, backend="processes", workers=1)
    assert [failure.seed for failure in found.failures] == failed
    assert all("ended by SIGKILL" in f.reason and "3 times" in f.reason for f in found.failures)
    assert len(found.results) == 3 - len(failed)
    (tmp_path / file).unlink(missing_ok=True)
    run(tmp_path / "o", **changes, retry_failed=True)
    run(tmp_path / "whole", **changes)
    assert run_files(tmp_path / "o") == run_files(tmp_path / "whole")


def children(parent: int) -> list[int]:
    output = subprocess.run(["ps", "-o", "pid=", "--ppid", str(parent)], capture_output=True, text=True, check=False)
    return [int(line) for line in output.stdout.split()]


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
def test_workers_end_with_their_study_which_says_how_to_continue(tmp_path: Path, how: signal.Signals) -> None:
    file = written(tmp_path, {**KILLED, "settings": {**KILLED["settings"], "rounds": 5000}})
    study = ["study", str(file), "--out", str(tmp_path / "o")]
    arguments = [sys.executable, "-m", "playerfl.cli.main", *study, "--workers", "2"]
    with subprocess.Popen(arguments, stderr=subprocess.PIPE, text=True) as process:
        end = time.monotonic() + 400
        while not (tmp_path / "o" / "unfinished").is_dir() or not any((tmp_path / "o" / "unfinished").iterdir()):
            assert time.monotonic() < end
            time.sleep(0.05)
        workers = children(process.pid)
        assert len(workers) == 2
        refused = command(*study, "-q", cwd=tmp_path)
        assert refused.returncode == 2
        assert "is in use by another process" in refused.stderr
        since = time.monotonic()
        process.send_signal(how)
        text = process.communicate(timeout=60)[1]
        assert time.monotonic() - since < 10
    assert process.returncode == (130 if how == signal.SIGINT else -signal.SIGKILL)
    end = time.monotonic() + 10
    while any(Path(f"/proc/{worker}").exists() for worker in workers):
        assert time.monotonic() < end, "a worker outlived its study"
        time.sleep(0.05)
    if how == signal.SIGINT:
        assert f"continue with  playerfl study {tmp_path / 'o'}" in text
        assert "Traceback" not in text


def test_the_command_shows_medians_failures_and_exit_codes(tmp_path: Path) -> None:
    task = own_task(tmp_path)
    (tmp_path / "bad").touch()
    study = {**SMALL, "tasks": [task], "settings": {"rounds": 2, "training": {"batch_size": 16}}}
    file = written(tmp_path, study)
    output = command("study", str(file), "--out", "o", "--backend", "serial", "--json", cwd=tmp_path)
    assert output.returncode == 1
    printed = json.loads(output.stdout)
    assert [row["runs"] for row in printed["results"]] == [2, 2, 2]
    assert all(set(row["median"]) == {"f1", "accuracy", "loss"} for row in printed["results"])
    assert len(printed["failures"]) == 3
    assert "playerfl study o --retry-failed" in output.stderr
    (tmp_path / "bad").unlink()
    output = command("study", "o", "--backend", "serial", "--retry-failed", cwd=tmp_path)
    assert output.returncode == 0
    assert "median over runs" in output.stdout
    assert "results: o" in output.stderr
    dry = command("study", "o", "--dry-run", cwd=tmp_path)
    assert "Missing runs: 0." in dry.stdout
    assert command("study", "nowhere.toml", cwd=tmp_path).returncode == 2


def test_a_worker_that_cannot_start_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("playerfl.studies.backends.processes._START", "raise SystemExit('no such luck')")
    found = run(tmp_path / "o", backend="processes", workers=2, algorithms=["local"], learning_rates=[0.01], seeds=1)
    assert [failure.reason for failure in found.failures] == [
        "the worker process ended with exit code 1: no such luck, 3 times"
    ]
