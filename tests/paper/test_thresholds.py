"""The threshold study on cases small enough to solve by hand."""

from __future__ import annotations

import csv
import json
import math
from dataclasses import replace
from pathlib import Path

import pytest

from playerfl.cli.research.thresholds import thresholds
from playerfl.errors import PlayerflError
from playerfl.layers.cut import choose_cut
from playerfl.paper.threshold_figure import draw_thresholds
from playerfl.paper.thresholds import (
    Case,
    CaseTable,
    Choice,
    StudyTask,
    ThresholdStudy,
    case_of,
    choose,
    common_interval,
    leave_one_out,
    measure_missing,
    share,
)


def case(task: str, printed: int, scores: tuple[float, ...], seed: int = 0) -> Case:
    named = {f"layer{i}": s for i, s in enumerate(scores, start=1)}
    return case_of(task, "running", "default", seed, printed, {"site": named})


# Layer ratios 2, 5; cumulative ratios 3, 13/3. And 1, 8; 2, 5.
CASES = [case("a", 2, (1.0, 2.0, 10.0)), case("b", 2, (1.0, 1.0, 8.0))]


def test_intervals_of_cases_and_their_intersection() -> None:
    assert [c.interval("layer_ratio") for c in CASES] == [(2.0, 5.0), (1.0, 8.0)]
    assert common_interval(CASES, "layer_ratio") == (2.0, 5.0)
    assert common_interval(CASES, "cumulative_ratio") == pytest.approx((3.0, 13 / 3))
    assert case("c", 1, (1.0, 0.5, 9.0)).interval("cumulative_ratio") == (1.0, 1.5)
    assert case("c", 2, (1.0, 9.0, 1.0)).interval("layer_ratio") is None
    assert case("c", 3, (1.0, 2.0, 1.0)).interval("layer_ratio") == (2.0, math.inf)
    assert common_interval([*CASES, case("c", 2, (1.0, 9.0, 1.0))], "layer_ratio") is None


@pytest.mark.parametrize("threshold", [1.0, 1.9, 2.0, 3.5, 4.9, 5.0, 9.0])
def test_a_hit_is_where_the_rule_cuts(threshold: float) -> None:
    for a_case, scores in zip(CASES, ((1.0, 2.0, 10.0), (1.0, 1.0, 8.0)), strict=True):
        by_layer = {"site": dict(zip("xyz", scores, strict=True))}
        cut = choose_cut(by_layer, rule="layer_ratio", threshold=threshold).index
        assert a_case.hit(Choice("layer_ratio", threshold)) == (cut == a_case.printed)


def test_the_choice_is_the_middle_of_the_widest_of_the_best_intervals() -> None:
    chosen = choose(CASES)
    assert (chosen.rule, chosen.low, chosen.high, chosen.share) == ("layer_ratio", 2.0, 5.0, 1.0)
    assert chosen.threshold == pytest.approx(math.sqrt(10))


def test_every_task_counts_the_same() -> None:
    many = [case("a", 2, (1.0, 2.0, 10.0), seed) for seed in range(9)]
    assert share([*many, case("b", 1, (1.0, 1.0, 8.0))], Choice("layer_ratio", 3.0)) == 0.5


def test_the_largest_jump_is_taken_only_where_it_is_better() -> None:
    # No threshold is right in all of them, but the largest jump is.
    apart = [case("a", 1, (1.0, 2.0, 1.0)), case("b", 2, (1.0, 3.0, 30.0)), case("c", 2, (1.0, 90.0, 9000.0))]
    assert choose(apart).rule == "max_jump"
    assert choose(CASES).rule == "layer_ratio"


def test_the_task_left_out_is_judged_by_the_others() -> None:
    chosen, hits = leave_one_out([*CASES, case("odd", 1, (1.0, 1.5, 9.0))])["odd"]
    assert (chosen.threshold, hits) == (pytest.approx(math.sqrt(10)), 0.0)


def test_cases_in_the_table_are_not_measured_again(tmp_path: Path) -> None:
    study = ThresholdStudy([StudyTask("heart-like", 2, {})], ["running"], ["default"], [0, 1])
    table = CaseTable(tmp_path / "o" / "cases.csv")
    table.add([replace(case("heart-like", 2, (1.0, 2.0, 10.0), seed), settings="{}") for seed in (0, 1)])
    table.add([replace(case("heart-like", 2, (1.0, 1.0, 9.0)), settings='{"rounds": 3}')])
    ticks: list[tuple[int, int, str]] = []
    cases = measure_missing(study, table, lambda *tick: ticks.append(tick))
    assert ticks == [(0, 0, "")]  # known cases would make the time left look short
    assert [c.seed for c in cases] == [0, 1]
    assert cases[0].interval("layer_ratio") == (2.0, 5.0)


def test_the_figure_has_a_bar_per_task_and_the_choice() -> None:
    _, axes = draw_thresholds(CASES, choose(CASES))
    assert [text.get_text() for text in axes[0].get_yticklabels()] == ["a", "b"]
    assert any(line.get_linestyle() == "--" for line in axes[1].lines)


def test_rows_are_plain_numbers(tmp_path: Path) -> None:
    table = CaseTable(tmp_path / "cases.csv")
    table.add(CASES)
    with table.path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert rows[0]["layer_ratio"] == "2 5"
    assert [(c.task, c.printed, c.max_jump) for c in table.read()] == [("a", 2, 2), ("b", 2, 2)]


@pytest.mark.slow
def test_the_command_writes_the_common_interval_and_draws_it(tmp_path: Path) -> None:
    file = tmp_path / "study.toml"
    file.write_text('tasks = ["heart"]\nmodes = ["running"]\ninits = ["default"]\nseeds = 2\n')
    measured = [replace(case("heart", 2, (1.0, 2.0, 10.0, 1.0), seed), settings="{}") for seed in (0, 1)]
    CaseTable(tmp_path / "o" / "cases.csv").add(measured)
    thresholds(file, tmp_path / "o", as_json=False, quiet=True)
    (summary,) = json.loads((tmp_path / "o" / "thresholds.json").read_text())["by_setting"]
    assert summary["common"]["layer_ratio"] == [2.0, 5.0]
    assert summary["default"] == {"rule": "layer_ratio", "threshold": 3.5, "share": 1.0}
    assert summary["tasks"][0]["default_hits"] == 2
    assert (tmp_path / "o" / "thresholds-running-default.png").stat().st_size > 1000


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("seeds = 3", "tasks is missing"),
        ('tasks = "heart"', "tasks = 'heart' must be a list"),
        ("tasks = [3]", "3 in tasks must be a name"),
        ('tasks = ["digits"]', "the paper prints no cut for 'digits'"),
        ('tasks = ["heart"]\nseeds = "many"', "seeds = 'many' must be a number"),
        ('tasks = ["heart"]\nmodes = "running"', "modes = 'running' must be a list"),
        ('tasks = ["heart"]\ncolor = 1', "unknown key 'color'"),
        ('tasks = ["heart"]\nseeds = 1000000000000', "seeds = 1000000000000 is too many"),
    ],
)
def test_bad_files_get_one_sentence(tmp_path: Path, text: str, sentence: str) -> None:
    (tmp_path / "study.toml").write_text(text)
    with pytest.raises(PlayerflError, match=sentence):
        thresholds(tmp_path / "study.toml", tmp_path / "o", quiet=True)


@pytest.mark.parametrize("row", ["heart,{}", "heart,,running,default,0,-1,2,2.5 17,1.5 26"])
def test_a_damaged_row_is_refused(row: str, tmp_path: Path) -> None:
    table = CaseTable(tmp_path / "cases.csv")
    table.add([case("a", 2, (1.0, 2.0, 10.0))])
    table.path.write_text(f"{table.path.read_text()}{row}\n")
    with pytest.raises(PlayerflError, match="is not a table of measured cases"):
        table.read()
