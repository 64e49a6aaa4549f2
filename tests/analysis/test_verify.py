"""The small sweep behind `playerfl probe --verify`."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from playerfl.analysis.verify import Verification, cuts_to_verify, t_quantile, verify_cut
from playerfl.probe.measure import probe_sites
from playerfl.runs.experiment import find_task


def test_only_cuts_with_evidence_and_the_two_ends_are_trained() -> None:
    recommendation = probe_sites("synthetic").recommend()
    runs: list[int] = []

    def watch(total: int) -> object:
        runs.append(total)
        return lambda: None

    found = verify_cut(find_task("synthetic"), recommendation, rounds=1, seeds=(0, 1), watch=watch)  # type: ignore[arg-type]
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


@pytest.mark.parametrize(("freedom", "expected"), [(1, 12.706), (2, 4.303), (3, 3.182), (4, 2.776), (30, 2.042)])
def test_quantiles_are_those_of_the_tables(freedom: int, expected: float) -> None:
    assert t_quantile(0.95, freedom) == pytest.approx(expected, abs=5e-4)
