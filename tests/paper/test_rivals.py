"""PLayer-FL and its rivals: what a duel measures, and what it may conclude."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest

from made_up_runs import made_up
from playerfl.paper.rivals import TASKS, Duel, duels
from playerfl.report.compute.collected import Collected
from playerfl.report.compute.report import Report, build_report
from playerfl.report.view.facts import records
from playerfl.report.write.documents import as_markdown

CLASSES = [({"0": 6, "1": 4}, {"0": 6, "1": 4})] * 3
"""The majority class has 60 % accuracy and 37.5 % macro-F1."""


def report(scores: Mapping[str, Sequence[float]], task: str = "heart", dataset: str | None = "Heart") -> Report:
    return build_report(Collected(runs(scores, task, dataset)), paper=True)


def runs(scores: Mapping[str, Sequence[float]], task: str = "heart", dataset: str | None = "Heart") -> list[object]:
    return [
        made_up(
            name,
            seed,
            task=task,
            paper=dataset,
            classes=CLASSES,
            score=lambda site, round_, f1=value: {"loss": 1 - f1, "f1": f1, "accuracy": f1},
        )
        for name, values in scores.items()
        for seed, value in enumerate(values, start=1)
    ]


def duel(report: Report, rival: str, table: str = "f1", over: str = "heart") -> Duel:
    (found,) = [d for d in duels(report) if (d.rival, d.table, d.over) == (rival, table, over)]
    return found


def test_a_duel_is_paired_over_runs_and_positive_is_better_also_for_the_loss() -> None:
    made = report({"local": [0.7, 0.8, 0.9], "player_fl": [0.72, 0.81, 0.93], "fedavg": [0.73, 0.8, 0.91]})
    against = duel(made, "Local")
    assert against.difference == pytest.approx(0.02)
    assert (against.low, against.high) == pytest.approx((0.01, 0.03)), "the range of three runs"
    assert (against.ahead, against.behind, against.blocks) == (3, 0, 3)
    assert against.verdict == "ahead in all 3, too few for a test"
    # One standard deviation is 0.01, and three runs need 3.26 of them for a power of 80 %.
    assert against.detectable == pytest.approx(0.0326, abs=1e-4)
    assert duel(made, "Local", "loss").difference == pytest.approx(0.02)
    assert duel(made, "FedAvg").verdict == "no difference shown"


def test_the_correction_is_over_the_rivals() -> None:
    base = [0.7 + 0.001 * seed for seed in range(8)]
    made = report(
        {
            "player_fl": base,
            "local": [x - 0.02 - 0.001 * i for i, x in enumerate(base)],
            "fedavg": [x + 0.02 + 0.001 * i for i, x in enumerate(base)],
            "fedper": base,
            "ditto": [x - 0.1 for x in base],
        }
    )
    assert {d.rival for d in duels(made)} == {"Local", "FedAvg", "FedPer"}, "Ditto is no rival"
    # Eight differences of one sign: 2 · 0.5⁸, times three rivals.
    assert duel(made, "Local").p == pytest.approx(3 * 2**-7)
    assert (duel(made, "Local").verdict, duel(made, "FedAvg").verdict) == ("better", "worse")
    assert duel(made, "FedPer").verdict == "the same"


def test_nothing_is_concluded_from_a_task_that_was_not_learnt() -> None:
    made = report({"player_fl": [0.62] * 8, "local": [0.3] * 8})
    assert made.not_learnt == ("heart",)
    assert duel(made, "Local").verdict == "not judged, because the task was not learnt"


def test_tasks_that_were_learnt_are_blocks() -> None:
    results = [
        *runs({"player_fl": [0.9, 0.8], "local": [0.8, 0.7]}),
        *runs({"player_fl": [0.75], "local": [0.7]}, "digits", None),
        *runs({"player_fl": [0.6], "local": [0.5]}, "tweets", None),
    ]
    made = build_report(Collected(results), paper=True)  # type: ignore[arg-type]
    over = duel(made, "Local", over=TASKS)
    assert (over.blocks, over.ahead) == (2, 2), "tweets was not learnt"
    assert over.difference == pytest.approx((0.1 + 0.05) / 2)


def test_the_report_shows_them_with_the_paper_only() -> None:
    made = report({"player_fl": [0.9, 0.8], "local": [0.8, 0.7], "fedavg": [0.7, 0.7]})
    assert [row["verdict"] for row in records(made)["paper_rivals"] if row["table"] == "f1"]
    assert "could have shown" in as_markdown(made, "x")
    assert "## PLayer-FL and its rivals" in as_markdown(made, "x")
