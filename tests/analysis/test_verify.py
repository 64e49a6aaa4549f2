"""The small sweep behind `playerfl probe --verify`."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from playerfl.analysis import verify_cost
from playerfl.analysis.verify import Verification, cuts_to_verify, t_quantile, verify_cut
from playerfl.analysis.verify_cost import verification_seconds
from playerfl.cli.tables.layers import print_recommendation
from playerfl.layers.recommend import recommend
from playerfl.layers.sensitivity import Profile
from playerfl.probe.measure import probe_sites
from playerfl.runs.experiment import Experiment
from playerfl.tasks.load import load_task


def test_only_cuts_with_evidence_and_the_two_ends_are_trained() -> None:
    recommendation = probe_sites("synthetic").recommend()
    runs: list[int] = []

    def watch(total: int) -> object:
        runs.append(total)
        return lambda: None

    found = verify_cut(load_task("synthetic"), recommendation, rounds=1, seeds=(0, 1), watch=watch)  # type: ignore[arg-type]
    cuts = cuts_to_verify(recommendation)
    assert runs == [2 * len(cuts)]
    assert list(found.means) == cuts
    assert {0, recommendation.cut.index, 4} <= set(cuts)
    assert found.means[found.best] == max(found.means.values())
    assert found.difference >= 0
    assert json.loads(json.dumps(found.to_json()))["conclusion"] == str(found)


def test_the_conclusion_is_in_words() -> None:
    same = Verification(2, 2, "f1", {0: 0.1, 2: 0.2}, 0.0, (0.0, 0.0), 3, 5, 1.0, ())
    assert "is the best of those tried (on validation f1, 5 rounds, 3 seeds)" in str(same)
    chance = replace(same, best=3, difference=0.02, interval=(-0.1, 0.14))
    assert "cannot be distinguished from the best" in str(chance)
    assert not chance.told_apart
    better = replace(chance, interval=(0.01, 0.03))
    assert "prefer the cut after layer 3" in str(better)
    assert "one seed cannot show" in str(replace(chance, interval=None, seeds=1))
    diverged = replace(same, best=0, means={0: 0.1, 2: float("nan")}, difference=float("nan"))
    assert "has no score: its training diverged" in str(diverged)


def test_the_runs_that_are_offered_are_those_that_were_estimated(capsys: pytest.CaptureFixture[str]) -> None:
    one = Profile(("a", "b", "c"), ((1.0, 1.0, 40.0),), (8,), 8)
    recommendation = recommend({"north": one, "south": one})
    print_recommendation(recommendation, 60.0, verify_seeds=5)
    assert f"{5 * len(cuts_to_verify(recommendation))} runs, about 1 min" in capsys.readouterr().out


@pytest.mark.parametrize(("freedom", "expected"), [(1, 12.706), (2, 4.303), (3, 3.182), (4, 2.776), (30, 2.042)])
def test_quantiles_are_those_of_the_tables(freedom: int, expected: float) -> None:
    assert t_quantile(0.95, freedom) == pytest.approx(expected, abs=5e-4)


class TimedRun:
    """Stands for a run: two seconds, and three more for each round."""

    now = 0.0

    def __init__(self, experiment: Experiment, setup: object) -> None:
        self._seconds = 2.0 + 3.0 * experiment.rounds

    def rounds(self) -> float:
        return self._seconds


@pytest.mark.parametrize("rounds", [1, 2, 4, 50])
def test_the_estimate_for_a_small_task_comes_from_short_runs(monkeypatch: pytest.MonkeyPatch, rounds: int) -> None:
    def drive(seconds: float) -> None:
        TimedRun.now += seconds

    recommendation = probe_sites("synthetic").recommend()
    monkeypatch.setattr(verify_cost, "Run", TimedRun)
    monkeypatch.setattr(verify_cost, "drive", drive)
    monkeypatch.setattr(verify_cost.time, "perf_counter", lambda: TimedRun.now)
    seconds = verification_seconds(load_task("synthetic"), recommendation, 1e-9, rounds=rounds, seeds=2)
    assert seconds == pytest.approx(2 * len(cuts_to_verify(recommendation)) * (2 + 3 * rounds))


def test_the_estimate_for_a_large_task_counts_training_and_evaluation(monkeypatch: pytest.MonkeyPatch) -> None:
    recommendation = probe_sites("synthetic").recommend()
    monkeypatch.setattr(verify_cost, "_evaluating", lambda setup: 7.0)
    per_example = 1.0
    one, two = (
        verification_seconds(load_task("synthetic"), recommendation, per_example, rounds=10, seeds=seeds)
        for seeds in (1, 2)
    )
    rows = one / (10 * len(cuts_to_verify(recommendation))) - 7.0
    assert rows == pytest.approx(round(rows), abs=0.2)  # one second per training row, and a little for preparing
    assert rows > 100
    assert two == pytest.approx(2 * one, rel=0.01)
