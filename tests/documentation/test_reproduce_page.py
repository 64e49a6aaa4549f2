"""The generated parts of docs/reproduce.md and docs/guide.md are what the archives give."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest

import reproduce_page
from documented import ROOT
from made_up_runs import made_up
from playerfl.report.compute.collected import Collected
from playerfl.report.compute.report import build_report
from reproduction import claims, markdown, tasks, thresholds, when_it_helps
from reproduction.archives import DEFAULT, Archives
from reproduction.when_it_helps import Cell


@pytest.mark.slow
@pytest.mark.parametrize("page", reproduce_page.PAGES)
def test_the_tables_on_the_page_are_those_of_the_archives(page: str) -> None:
    assert reproduce_page.stored(page) == (ROOT / page).read_text(), "run  python tools/reproduce_page.py --store"


def test_every_archive_of_the_default_protocol_is_on_the_page() -> None:
    page = (ROOT / "docs" / "reproduce.md").read_text(encoding="utf-8")
    for archive in DEFAULT.glob("*/archive.json"):
        assert f"`playerfl report results/2026.2/{archive.parent.name} --paper`" in page


def test_a_page_without_the_part_is_refused() -> None:
    with pytest.raises(SystemExit, match="no part called tasks"):
        markdown.replaced("# A page", "tasks", "text")


def test_columns_of_numbers_are_aligned_to_the_right() -> None:
    made = markdown.table_of(["method", "gain", "verdict"], [["a", "**+1.5**", "better"], ["b", "−2.0", ""]])
    assert made.splitlines()[1] == "|---|--:|---|"


CLASSES = [({"0": 6, "1": 4}, {"0": 6, "1": 4})] * 3
SCORES = {"local": 0.7, "fedavg": 0.65, "player_fl": 0.75, "player_fl_random": 0.72}


def made_up_archives(tasks: Mapping[str, float]) -> Archives:
    """Two runs of four methods per task, whose scores are those of SCORES times a factor."""
    runs = [
        made_up(
            name,
            seed,
            task=task,
            paper="Heart" if task == "heart" else None,
            classes=CLASSES,
            training={"learning_rate": 0.1, "batch_size": 8},
            score=lambda site, round_, f1=factor * (value + 0.01 * seed): {"loss": 1 - f1, "f1": f1, "accuracy": f1},
        )
        for task, factor in tasks.items()
        for name, value in SCORES.items()
        for seed in (1, 2)
    ]
    report = build_report(Collected(runs), paper=True)
    return Archives(report, {task: ROOT / "results" / task for task in tasks}, dict.fromkeys(tasks, 0), {})


@pytest.fixture
def two_tasks(monkeypatch: pytest.MonkeyPatch) -> Archives:
    every = made_up_archives({"heart": 1.0, "digits": 1.1, "tweets": 0.5})
    nothing = made_up_archives({})
    monkeypatch.setattr(claims, "archives", lambda home: every if home == DEFAULT else nothing)
    return every


def test_only_tasks_that_were_learnt_are_ranked_together(two_tasks: Archives) -> None:
    made = "\n".join(tasks.over_tasks_part(two_tasks))
    assert "| method | Heart | Digits | rank, F1 |" in made
    assert "| PLayer-FL | 76.5 | 84.2 | **1.0** | **1.0** | **1.0** |" in made
    assert tasks.over_tasks_part(made_up_archives({"heart": 1.0, "tweets": 0.5})) == []


def test_a_task_that_is_not_in_the_paper_has_no_columns_for_it(two_tasks: Archives) -> None:
    heart, digits = ("\n".join(tasks.task_part(two_tasks, task)) for task in ("heart", "digits"))
    assert "| Local | 71.5 (71.0 to 72.0) | 3.00 | 42.0 ± 0.8 | 1 |" in heart
    assert "those of the paper" not in digits
    assert "| Local | 78.6 (78.1 to 79.2) | 3.00 |" in digits
    assert "learning rates that were not tuned" in " ".join(heart.split())
    assert "was not learnt**" in "\n".join(tasks.task_part(two_tasks, "tweets"))


def test_a_verdict_names_the_scale_and_what_could_have_been_shown(two_tasks: Archives) -> None:
    line = next(line for line in claims.claims_part().splitlines() if line.startswith("| better than training alone"))
    assert "Heart: +5.0 (+5.0 to +5.0, ahead in 2 of 2; could have shown 0.0)" in line
    assert "ahead in all 2, too few for a test: Heart (2 runs of 2 rounds), Digits (2 runs of 2 rounds)" in line
    assert "not judged, because the task was not learnt: Tweets" in line
    assert "Heart over 864 protocols: ahead in 75 %" in line


METHODS = ("Local", "FedAvg", "FedPer", "cut 1", "cut 2", "cut 4")


def cell(alpha: float, rows: int, gain: float, *, learnt: bool = True, apart: float = 0.1) -> Cell:
    """PLayer-FL is ahead of every rival by about `gain` points; a deeper cut is better."""
    rivals = {name: np.array([70.0, 71.0, 72.0]) for name in METHODS}
    ahead = np.array([gain - apart, gain, gain + apart])
    scores = {**rivals, "PLayer-FL": np.array([70.0, 71.0, 72.0]) + ahead}
    return Cell(alpha, rows, scores, scores, (3, 3, 3), learnt)


@pytest.fixture
def study(monkeypatch: pytest.MonkeyPatch) -> list[Cell]:
    """PLayer-FL helps with strong skew only, and more so at large sites; one cell was not learnt."""
    every = [
        cell(0.1, 200, 2.0),
        cell(0.1, 1000, 4.0),
        cell(0.5, 200, 0.05),
        cell(0.5, 1000, 0.0),
        cell(5.0, 200, -3.0, learnt=False),
        cell(5.0, 1000, -1.0),
    ]
    monkeypatch.setattr(when_it_helps, "cells", lambda: tuple(every))
    return every


def test_helping_takes_all_runs_and_a_task_that_was_learnt(study: list[Cell]) -> None:
    assert when_it_helps.where("helps", "Local") == ["α = 0.1, 200 rows", "α = 0.1, 1,000 rows"]
    assert when_it_helps.where("harms", "Local") == ["α = 5, 1,000 rows"], "not the cell that was not learnt"
    assert when_it_helps.finding("Local") == "PLayer-FL is ahead of Local in 2 of 5 settings, behind in 1"


def test_the_effect_of_skew_leaves_out_what_was_not_learnt(study: list[Cell]) -> None:
    (skew, rows) = when_it_helps.effects("Local").values()
    assert skew[0] == pytest.approx(3.0 - -1.0)
    assert skew[1] > 0, "its interval excludes 0"
    assert rows[0] == pytest.approx((2.0 + 0.05) / 2 - (4.0 + 0.0 - 1.0) / 3)


def test_the_tests_are_over_all_learnt_runs(study: list[Cell]) -> None:
    tested = when_it_helps.tests()
    assert [rival for rival, *_ in tested] == list(METHODS)
    assert {runs for *_, runs in tested} == {15}


@pytest.mark.slow
def test_the_section_says_what_the_cells_show_and_the_figure_is_drawn(study: list[Cell], tmp_path: Path) -> None:
    text = when_it_helps.section()
    assert "PLayer-FL is ahead of Local in 2 of 5 settings, behind in 1" in text
    assert "| α = 5, 200 rows (not learnt) |" in text
    when_it_helps.draw(tmp_path / "figure.png")
    assert (tmp_path / "figure.png").stat().st_size > 10_000


def test_there_is_no_section_before_the_study_was_run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(when_it_helps, "cells", tuple)
    assert when_it_helps.section() == ""
    assert thresholds.thresholds_part(tmp_path) == ""


@pytest.mark.parametrize(("share", "decision"), [(0.9, "stays"), (0.95, "stays"), (0.8, "is to be replaced")])
def test_the_default_threshold_stays_unless_another_gives_more_cuts(share: float, decision: str) -> None:
    chosen = {"rule": "layer_ratio", "threshold": 4.2, "share": 0.9}
    text = thresholds.verdict({"default": {"threshold": 3.5, "share": share}, "chosen": chosen})
    assert f"the default {decision}" in text
