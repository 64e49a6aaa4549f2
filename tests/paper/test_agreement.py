"""Agreement with the paper: the rank correlation of made-up runs with the printed cells."""

from __future__ import annotations

import math

import pytest

from made_up_runs import made_up
from playerfl.paper import facts
from playerfl.paper.agreement import agreements
from playerfl.report.compute.collected import Collected
from playerfl.report.compute.report import build_report
from playerfl.runs.result import RunResult

METHODS = ("local", "fedavg", "fedprox", "ditto", "player_fl")
PRINTED = {
    name: facts.facts()["tables"]["f1"]["rows"][facts.ALGORITHM_NAMES[name]]["Heart"]["value"] / 100 for name in METHODS
}


def run(name: str, seed: int, f1: float, task: str = "heart", dataset: str | None = "Heart") -> RunResult:
    return made_up(
        name, seed, task=task, paper=dataset, score=lambda site, round_: {"loss": 1 - f1, "f1": f1, "accuracy": f1}
    )


def test_the_printed_order_agrees_fully_and_its_reverse_not_at_all() -> None:
    same = [run(name, seed, value + 0.01 * seed) for name, value in PRINTED.items() for seed in (1, 2, 3)]
    found = {one.table: one for one in agreements(build_report(Collected(same), paper=True))}
    assert (found["f1"].methods, found["f1"].runs) == (5, 3)
    for rho in (found["f1"].values, found["f1"].ranks):
        assert (rho.value, rho.low, rho.high) == pytest.approx((1, 1, 1))
    reverse = [run(name, seed, 1 - value) for name, value in PRINTED.items() for seed in (1, 2)]
    (of_f1,) = [one for one in agreements(build_report(Collected(reverse), paper=True)) if one.table == "f1"]
    assert (of_f1.values.value, of_f1.ranks.value) == pytest.approx((-1, -1))


def test_methods_that_the_paper_does_not_have_do_not_count() -> None:
    results = [run(name, 1, value) for name, value in PRINTED.items()]
    results += [run("fedper", 1, 0.9), run("player_fl_plus_1", 1, 0.95)]
    (of_f1,) = [one for one in agreements(build_report(Collected(results), paper=True)) if one.table == "f1"]
    assert (of_f1.methods, of_f1.ranks.value) == (5, pytest.approx(1))
    # Drawing one run again and again says nothing about other runs, but must not fail.
    assert of_f1.values.low == of_f1.values.high == pytest.approx(1)


def test_the_interval_says_how_much_the_runs_disagree() -> None:
    results = [
        run(name, seed, value if seed < 4 else 1 - value) for name, value in PRINTED.items() for seed in range(1, 7)
    ]
    (of_f1,) = [one for one in agreements(build_report(Collected(results), paper=True)) if one.table == "f1"]
    assert of_f1.ranks.low == pytest.approx(-1)
    assert of_f1.ranks.high == pytest.approx(1)


@pytest.mark.parametrize(("dataset", "paper"), [(None, True), ("Heart", False)])
def test_without_printed_cells_there_is_nothing_to_compare(dataset: str | None, paper: bool) -> None:
    results = [run(name, 1, value, dataset=dataset) for name, value in PRINTED.items()]
    assert agreements(build_report(Collected(results), paper=paper)) == []


def test_methods_that_all_score_the_same_have_no_correlation() -> None:
    results = [run(name, seed, 0.5) for name in PRINTED for seed in (1, 2)]
    found = agreements(build_report(Collected(results), paper=True))
    assert found
    assert all(math.isnan(one.values.value) and math.isnan(one.ranks.low) for one in found)
