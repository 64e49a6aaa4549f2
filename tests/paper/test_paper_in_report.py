"""What the paper prints appears in a report only on request, and only for the paper's tasks."""

from __future__ import annotations

import pytest

from made_up_runs import made_up
from playerfl.report.compute.collected import Collected
from playerfl.report.compute.report import Report, build_report
from playerfl.report.view.facts import records
from playerfl.report.write.documents import as_latex, as_markdown, as_page

NAMES = ("local", "fedavg", "player_fl", "fedper")


def report(task: str, dataset: str | None, *, paper: bool) -> Report:
    scores = {site: [1.0, 40.0, 50.0] for site in ("north", "south", "west")}
    made = [
        made_up(name, task=task, paper=dataset, scores_of_layers=scores if name == "player_fl" else None)
        for name in NAMES
    ]
    return build_report(Collected(made), paper=paper)


@pytest.mark.parametrize("write", [as_page, as_markdown, as_latex])
def test_the_paper_is_shown_only_on_request(write: object) -> None:
    without, with_paper, elsewhere = (
        write(report(*task, paper=paper), "x")  # type: ignore[operator]
        for task, paper in ((("heart", "Heart"), False), (("heart", "Heart"), True), (("digits", None), True))
    )
    assert "paper" not in without.replace("a4paper", "").lower()
    assert "own arithmetic" in with_paper
    assert "The paper cuts after layer 2" in with_paper
    assert "None of these tasks is in the PLayer-FL paper" in elsewhere
    assert "recomputed" not in elsewhere


def test_printed_values_are_beside_cells_and_cuts() -> None:
    made = records(report("heart", "Heart", paper=True))
    printed = {row["algorithm"]: row["paper"] for row in made["cells"] if row["table"] == "f1"}
    assert printed == {"Local": "42.0 +/- 0.8", "FedAvg": "40.4 +/- 1.0", "PLayer-FL": "41.9 +/- 1.0", "FedPer": ""}
    assert [row["paper"] for row in made["cuts"]] == [2]
    assert (len(made["paper_tests"]), len(made["paper_ranks"])) == (9, 96)
    plain = records(report("heart", "Heart", paper=False))
    assert not [name for name in plain if name.startswith("paper")]
    assert not [row for table in plain.values() for row in table if "paper" in row]
