"""Listeners that stop a run: it ends cleanly, and resumes to the bits of a run that was never stopped."""

from __future__ import annotations

from pathlib import Path

import pytest

import playerfl
from federations import assert_same, task
from playerfl.observers.stopping import Patience, TimeBudget
from playerfl.runs.run import Listener, Progress

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


def test_patience_ends_a_run_that_no_longer_improves() -> None:
    settings = {**QUICK, "training.learning_rate": 0.0}
    ended = playerfl.run(task(), "fedavg", rounds=9, settings=settings, listener=Patience(2))
    assert max(row[1] for row in ended.score_rows) < 9
    assert any("no lower validation loss for 2 rounds" in note for note in ended.data["notes"])
