"""Listeners that stop a run: it ends cleanly, and resumes to the bits of a run that was never stopped."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import pytest

import playerfl
from command_line import playerfl as command
from federations import assert_same, task
from playerfl.errors import ConfigError
from playerfl.observers.stopping import Patience, TimeBudget
from playerfl.runs.run import Listener, Progress
from playerfl.studies.scheduler import Status

QUICK = {"training.batch_size": 8}


def after(round_: int, *, finish: bool = False) -> Listener:
    def stop(progress: Progress) -> None:
        if progress.round == round_:
            raise playerfl.StopRun("enough", finish=finish)

    return stop


def test_a_stopped_run_resumes_to_the_same_bits(tmp_path: Path) -> None:
    own = task()
    with pytest.raises(playerfl.StopRun, match="enough"):
        playerfl.run(own, "fedavg", rounds=4, settings=QUICK, out=tmp_path / "r", listener=after(2))
    assert not (tmp_path / "r" / "finished.json").exists()
    resumed = playerfl.resume(tmp_path / "r", task=own)
    assert_same(resumed, playerfl.run(own, "fedavg", rounds=4, settings=QUICK))


def test_a_stopped_run_can_be_stopped_again(tmp_path: Path) -> None:
    own = task()
    with pytest.raises(playerfl.StopRun):
        playerfl.run(own, "player_fl", rounds=3, settings=QUICK, out=tmp_path / "r", listener=after(0))
    with pytest.raises(playerfl.StopRun):
        playerfl.resume(tmp_path / "r", task=own, listener=after(1))
    assert_same(playerfl.resume(tmp_path / "r", task=own), playerfl.run(own, "player_fl", rounds=3, settings=QUICK))


@pytest.mark.parametrize("name", ["fedavg", "fedbabu"])
def test_a_run_that_finishes_early_is_a_shorter_run(name: str, tmp_path: Path) -> None:
    own = task()
    ended = playerfl.run(own, name, rounds=6, settings=QUICK, out=tmp_path / "r", listener=after(2, finish=True))
    assert_same(ended, playerfl.run(own, name, rounds=2, settings=QUICK))
    assert "a listener stopped the run after round 2: enough" in ended.data["notes"]
    read = playerfl.load_result(tmp_path / "r", task=own)
    assert (read.site_scores, read.data["notes"]) == (ended.site_scores, ended.data["notes"])


def test_a_kill_while_finishing_early_does_not_train_on(tmp_path: Path) -> None:
    own = task()

    def killed(progress: Progress) -> None:
        if progress.done:
            raise KeyboardInterrupt
        after(2, finish=True)(progress)

    with pytest.raises(KeyboardInterrupt):
        playerfl.run(own, "fedavg", rounds=6, settings=QUICK, out=tmp_path / "r", listener=killed)
    assert_same(playerfl.resume(tmp_path / "r", task=own), playerfl.run(own, "fedavg", rounds=2, settings=QUICK))


def test_a_run_that_is_to_finish_before_its_first_round_trains_one() -> None:
    own = task()
    ended = playerfl.run(own, "player_fl", rounds=6, settings=QUICK, listener=TimeBudget(0.0, finish=True))
    assert_same(ended, playerfl.run(own, "player_fl", rounds=1, settings=QUICK))
    assert ended.data["notes"][-1].startswith("a listener stopped the run after round 1: the time budget")


@pytest.mark.parametrize("trainer", ["loop", "stacked"])
def test_stacked_training_stops_and_resumes_alike(trainer: str, tmp_path: Path) -> None:
    own, settings = task(), {**QUICK, "trainer": trainer}
    with pytest.raises(playerfl.StopRun):
        playerfl.run(own, "scaffold", rounds=3, settings=settings, out=tmp_path / "r", listener=after(1))
    assert_same(playerfl.resume(tmp_path / "r", task=own), playerfl.run(own, "scaffold", rounds=3, settings=settings))


def test_a_study_that_a_listener_stops_continues_to_the_same_results(tmp_path: Path) -> None:
    plan = {"name": "stopped", "tasks": ["synthetic"], "algorithms": ["local", "fedavg"], "seeds": 1, "quiet": True}
    plan |= {"settings": {"rounds": 2, "data": {"sites": 2, "rows": 60}}, "backend": "serial"}

    def stop(status: Status) -> None:
        if sum(line.done["evaluation"] for line in status.lines) == 1:
            raise playerfl.StopRun("one is enough")

    with pytest.raises(playerfl.StopRun, match="one is enough"):
        playerfl.study(**plan, out=tmp_path / "stopped", listener=stop)
    assert len(list((tmp_path / "stopped" / "cells").iterdir())) == 1
    continued, whole = (playerfl.study(**plan, out=tmp_path / name) for name in ("stopped", "whole"))
    assert [run.score_rows for run in continued.results] == [run.score_rows for run in whole.results]


@pytest.mark.slow
def test_the_commands_stop_after_a_time_and_say_how_to_continue(tmp_path: Path) -> None:
    small = ["--rounds", 1, "--quiet", "--set", "data.rows=60", "--set", "data.sites=2"]
    output = command("run", "synthetic", "-a", "fedavg", *small, "--stop-after", 0, "--out", "r", cwd=tmp_path)
    assert output.returncode == 130
    assert output.stderr.strip().endswith("nothing is lost: continue with  playerfl run --resume r")
    assert command("run", "--resume", "r", "--quiet", cwd=tmp_path).returncode == 0
    (tmp_path / "s.toml").write_text('name = "s"\ntasks = ["synthetic"]\nalgorithms = ["local"]\nseeds = 1\n')
    output = command("study", "s.toml", "--backend", "serial", "--quiet", "--stop-after", 0, cwd=tmp_path)
    assert output.returncode == 130
    assert "the time budget of 0 s is used up; finished runs are saved: continue with" in output.stderr


def test_stopping_after_the_last_exchange_changes_nothing() -> None:
    def late(progress: Progress) -> None:
        if progress.done:
            raise playerfl.StopRun("too late")

    own = task()
    assert_same(
        playerfl.run(own, "fedavg", rounds=2, settings=QUICK, listener=late),
        playerfl.run(own, "fedavg", rounds=2, settings=QUICK),
    )


def test_a_time_budget_stops_at_the_next_exchange() -> None:
    with pytest.raises(playerfl.StopRun, match="time budget of 0 s"):
        playerfl.run(task(), "fedavg", rounds=3, settings=QUICK, listener=TimeBudget(0.0))
    playerfl.run(task(), "fedavg", rounds=1, settings=QUICK, listener=TimeBudget(600.0))


@pytest.mark.parametrize("make", [lambda: Patience(0), lambda: TimeBudget(-1.0), lambda: TimeBudget(math.nan)])
def test_a_limit_that_makes_no_sense_is_refused(make: Callable[[], object]) -> None:
    with pytest.raises(ConfigError, match="must be at least"):
        make()


def test_patience_ends_a_run_that_no_longer_improves() -> None:
    settings = {**QUICK, "training.learning_rate": 0.0}
    ended = playerfl.run(task(), "fedavg", rounds=9, settings=settings, listener=Patience(2))
    assert max(row[1] for row in ended.score_rows) < 9
    assert any("no lower validation loss for 2 rounds" in note for note in ended.data["notes"])
