"""What a verdict rests on: tasks that were learnt, each method once, one global model, the runs' splits."""

from __future__ import annotations

import csv
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from made_up_runs import Counts, by_site, constant, made_up, plausible, report_of, sentences
from playerfl.errors import ConfigError
from playerfl.report.compute.collected import Collected, Gap
from playerfl.report.compute.comparison import compare, without_nan
from playerfl.report.compute.learnt import LEARNT_MARGIN
from playerfl.report.compute.report import Report, build_report
from playerfl.report.plots.report import report_figures
from playerfl.report.view.answers import answers
from playerfl.report.view.facts import records
from playerfl.report.view.rank_section import left_out
from playerfl.report.write.documents import as_latex, as_markdown, as_page
from playerfl.report.write.files import Place, write_report
from playerfl.runs.result import RunResult
from playerfl.studies.archive import read_archive

NAMES = ("local", "fedavg", "ditto", "player_fl")
HALVES: list[tuple[Counts, Counts]] = [({"0": 6, "1": 4}, {"0": 5, "1": 5})] * 3
"""Accuracy 0.5, F1 1/3 at every site."""
HEART = Path(__file__).parents[2] / "results" / "2026.1" / "heart"


def runs(*names: str, seeds: int = 3, **options: Any) -> list[RunResult]:
    return [made_up(name, seed, **options) for name in names or NAMES for seed in range(seeds)]


def scored(task: str, best: float, **options: Any) -> list[RunResult]:
    """Three methods, the best of which has this accuracy, and an F1 that is smaller by 1/6."""
    return [
        made_up(
            name,
            task=task,
            score=constant(loss=1.0, accuracy=best - step / 100, f1=best - 1 / 6 - step / 100),
            **options,
        )
        for step, name in enumerate(("ditto", "local", "fedavg"))
    ]


# The majority class.


def test_the_majority_class_is_weighted_over_sites_as_methods_are() -> None:
    classes: list[tuple[Counts, Counts]] = [
        ({"0": 30, "1": 10}, {"0": 3, "1": 1}),
        ({"1": 7, "2": 3}, {"1": 1, "2": 1}),
        ({"0": 5, "2": 5}, {"0": 1, "2": 3}),
    ]
    report = report_of(*runs(classes=classes))
    hits = ((3, 4, 2), (1, 2, 2), (1, 4, 2))
    accuracy = [hit / n for hit, n, _ in hits]
    f1 = [2 * hit / (n + hit) / k for hit, n, k in hits]
    for metric, by_hand in (("accuracy", accuracy), ("f1", f1)):
        table = report.table(metric)
        assert table is not None
        assert table.majority["digits"].value == pytest.approx(np.average(by_hand, weights=(40, 10, 10)))
        assert math.isnan(table.majority["digits"].low)
        uniform = report_of(*runs(classes=classes), client_average="uniform").table(metric)
        assert uniform is not None and uniform.majority["digits"].value == pytest.approx(np.mean(by_hand))
    fairness = report.table("fairness_f1")
    assert fairness is not None and fairness.majority["digits"].value == pytest.approx(np.var(f1))


def test_the_majority_class_is_no_method() -> None:
    report = report_of(*runs(classes=HALVES))
    assert len(report.grid.algorithms) == 4
    assert all("Majority class" not in (*table.algorithms, *table.ranked) for table in report.tables)
    assert all("Majority class" not in ranking.rank_of for of in report.rankings.values() for ranking in of)
    assert all(table.algorithm != "Majority class" for table in report.sites)
    with_counts, without = (
        records(report_of(*runs(**options))) for options in ({"classes": HALVES}, {"examples": [10] * 3})
    )
    assert [row for row in with_counts["cells"] if not row["baseline"]] == without["cells"]
    assert with_counts["ranks"] == without["ranks"]


def test_own_splits_give_the_majority_class_an_interval() -> None:
    shares = (0.5, 0.6, 0.7, 0.8, 0.5, 0.6, 0.7)
    made = []
    for seed, share in enumerate(shares):
        hit = round(10 * share)
        classes: list[tuple[Counts, Counts]] = [({"0": 6, "1": 4}, {"0": hit, "1": 10 - hit})] * 3
        made += [made_up(name, seed, classes=classes, partition=f"split {seed}") for name in NAMES]
    table = report_of(*made).table("accuracy")
    assert table is not None
    cell = table.majority["digits"]
    assert (cell.value, cell.runs) == (pytest.approx(0.6), 7)
    assert cell.per_run == pytest.approx(shares)
    assert cell.low < cell.value < cell.high


def test_every_format_has_the_majority_class_below_the_methods(tmp_path: Path) -> None:
    report = report_of(*runs(classes=HALVES))
    page, markdown, latex = (write(report, "x") for write in (as_page, as_markdown, as_latex))
    for text in (page, markdown, latex):
        assert text.count("Majority class (baseline)") == 9
    assert "| Majority class (baseline) | 50.0 | – | 3 | – |" in markdown
    assert '<tbody class="reference">\n<tr><th scope="row">Majority class (baseline)</th>' in page
    write_report(report, Place("csv", tmp_path), "x")
    with (tmp_path / "cells.csv").open(newline="", encoding="utf-8") as file:
        rows = [row for row in csv.DictReader(file) if row["baseline"] == "True"]
    assert {row["table"]: row["value"] for row in rows}["accuracy"] == "0.5"
    assert {(row["algorithm"], row["ranked"], row["best"]) for row in rows} == {("Majority class", "False", "False")}
    _, axes = report_figures(report)["scores_accuracy"]
    assert axes[0].lines[-1].get_xdata() == [50.0, 50.0]


def test_old_runs_without_class_counts_say_why_there_is_no_baseline() -> None:
    report = report_of(*runs())
    assert "Majority class" not in as_markdown(report, "x")
    (note,) = [note for note in report.notes if "majority class is not shown on digits" in note]
    assert "do not record how many examples of each class a site has" in note
    numeric = report_of(*runs(score=constant(loss=0.5)))
    assert not [note for note in numeric.notes if "majority" in note]


# Tasks that were learnt.


@pytest.mark.parametrize(
    ("accuracy", "f1", "learnt"),
    [
        (0.5 + LEARNT_MARGIN, 1 / 3 + LEARNT_MARGIN, True),
        (0.5 + LEARNT_MARGIN - 0.001, 0.9, False),
        (0.9, 1 / 3 + LEARNT_MARGIN - 0.001, False),
        (math.nan, math.nan, False),
    ],
    ids=["ahead in both", "accuracy behind", "F1 behind", "diverged"],
)
def test_one_method_must_be_ahead_of_the_majority_class_in_both_metrics(
    accuracy: float, f1: float, learnt: bool
) -> None:
    score = constant(loss=1.0, accuracy=accuracy, f1=f1)
    report = report_of(made_up("local", classes=HALVES, score=score), made_up("fedavg", classes=HALVES, score=score))
    assert report.not_learnt == (() if learnt else ("digits",))


def judged(metric: str, value: float, baseline: float | None, **declared: Any) -> Report:
    """A report on runs with one metric besides the loss, and a baseline for it."""
    made = []
    for name in ("local", "fedavg"):
        run = made_up(name, examples=[10] * 3, score=constant(**{"loss": 1.0, metric: value}))
        run.data["metrics"] = {
            metric: {"direction": "higher", "unit": "", "title": "", "averaging": "", "bundled": True, **declared}
        }
        for record in run.data["sites"].values():
            if baseline is not None:
                record["baseline"] = {metric: baseline}
        made.append(run)
    return report_of(*made)


@pytest.mark.parametrize(
    ("metric", "ahead", "behind", "baseline", "declared"),
    [
        ("mae", 9.5, 9.51, 10.0, {"direction": "lower", "unit": "target", "title": "Mean absolute error"}),
        ("r2", 0.05, 0.049, 0.0, {"title": "R²"}),
        ("auroc", 0.55, 0.549, 0.5, {"title": "AUROC"}),
        ("brier", 0.19, 0.191, 0.2, {"direction": "lower", "title": "Brier score"}),
        ("mine", 0.35, 0.349, 0.3, {"unit": "share", "bundled": False}),
        ("cost", 95.0, 95.1, 100.0, {"direction": "lower", "bundled": False}),
    ],
)
def test_other_metrics_judge_where_there_is_neither_accuracy_nor_f1(
    metric: str, ahead: float, behind: float, baseline: float, declared: dict[str, Any]
) -> None:
    assert judged(metric, ahead, baseline, **declared).not_learnt == ()
    report = judged(metric, behind, baseline, **declared)
    assert report.not_learnt == ("digits",)
    (said,) = [s for answer in answers(report) for s in answer.sentences if "Not learnt" in s]
    assert ("5 % below the" if declared.get("direction") else "ahead of the") in said
    assert "accuracy" not in said


@pytest.mark.parametrize(
    ("metric", "baseline", "declared"),
    [("mine", 0.3, {"bundled": False}), ("auroc", None, {}), ("ece", 0.1, {"direction": "lower", "unit": "share"})],
    ids=["no scale", "no baseline", "calibration"],
)
def test_a_task_that_nothing_judges_says_so(metric: str, baseline: float | None, declared: dict[str, Any]) -> None:
    report = judged(metric, 0.9, baseline, **declared)
    assert (report.not_learnt, report.not_judged) == ((), ("digits",))
    said = sentences(report)
    assert "Whether digits was learnt is not judged: there is no baseline" in said


def test_two_methods_cannot_share_the_margin() -> None:
    made = [
        made_up("local", classes=HALVES, score=constant(loss=1.0, accuracy=0.9, f1=0.3)),
        made_up("fedavg", classes=HALVES, score=constant(loss=1.0, accuracy=0.5, f1=0.9)),
    ]
    assert report_of(*made).not_learnt == ("digits",)


def test_tasks_that_were_not_learnt_are_shown_and_not_ranked() -> None:
    made = [*scored("a", 0.8, classes=HALVES), *scored("b", 0.7, classes=HALVES), *scored("c", 0.52, classes=HALVES)]
    report = report_of(*made)
    assert report.not_learnt == ("c",)
    for metric in ("f1", "accuracy", "loss"):
        over_tasks = report.rankings[metric][0]
        assert (over_tasks.over, over_tasks.blocks, over_tasks.not_learnt) == ("tasks", ("a", "b"), ("c",))
    assert "Ranks leave out tasks that were not learnt: c." in left_out(report.rankings["f1"][0])
    said = sentences(report)
    best = "Ditto has the best mean rank by macro-F1: 1.0 (3 methods). On a, Ditto has"
    assert said.startswith(f"Over 2 tasks that were learnt, {best}")
    assert "Not learnt: c. No method is 5 points of accuracy and of macro-F1 ahead of the majority class on it" in said
    assert "On c, Ditto" not in said
    assert "Of 6 sites on 2 tasks" in said
    assert "| method | a | b | c (not learnt) | mean rank |" in as_markdown(report, "x")
    assert {row["not_learnt"] for row in records(report)["ranks"] if row["over"] == "tasks"} == {"c"}


@pytest.mark.parametrize("learnt", [0, 1])
def test_where_at_most_one_task_has_learnt_no_method_leads_over_tasks(learnt: int) -> None:
    made = [*scored("a", 0.8 if learnt else 0.5, classes=HALVES), *scored("b", 0.5, classes=HALVES)]
    report = report_of(*made)
    assert "Over " not in sentences(report)
    for write in (as_page, as_markdown, as_latex):
        assert "(not learnt)" in write(report, "x")
    assert [ranking.over for ranking in report.rankings["f1"]][:1] == (["tasks"] if learnt else ["a"])


# The methods shown.


def test_only_the_papers_methods_are_ranked_and_tested() -> None:
    names = ("local", "fedavg", "player_fl", "player_fl_random", "player_fl_plus_1", "fedper", "fedrep")
    report = report_of(*runs(*names), methods="paper")
    assert report.grid.algorithms == ["Local", "FedAvg", "PLayer-FL", "PLayer-FL-Random"]
    alone = report_of(*runs(*names[:4]))
    assert records(report) == records(alone)
    assert report.notes[0] == (
        "on request, only 4 of 7 methods are shown, ranked and tested; 9 finished runs of PLayer-FL+1, FedPer, FedRep "
        "are left out"
    )


def test_methods_are_named_as_in_files_or_as_in_reports() -> None:
    gaps = [Gap("digits", name, 9, "not started") for name in ("ditto", "fedavg")]
    for wanted in (["fedavg", "player_fl"], ["FedAvg", "PLayer-FL"]):
        report = build_report(Collected(runs(), gaps), methods=wanted)
        assert report.grid.algorithms == ["FedAvg", "PLayer-FL"]
        assert [gap.algorithm for gap in report.missing] == ["fedavg"]


@pytest.mark.parametrize(
    ("methods", "said"),
    [
        (["fedavgg"], "unknown method 'fedavgg'; did you mean 'fedavg'\\? allowed: ditto, fedavg, local, player_fl"),
        ([], "name at least one method; there are local, fedavg, ditto, player_fl"),
    ],
)
def test_an_unknown_method_is_refused_in_a_sentence(methods: list[str], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        report_of(*runs(), methods=methods)
    with pytest.raises(ConfigError, match="none of the paper's methods is here; there are fedper"):
        report_of(made_up("fedper"), methods="paper")


# Identical methods.


def twins(task: str, order: tuple[str, ...], *, same: bool, seeds: int = 4) -> list[RunResult]:
    """Methods by falling score; with `same`, FedPer and PLayer-FL+1 have the same one."""
    scores = {name: 0.9 - place / 10 for place, name in enumerate(order)}
    if same:
        scores["fedper"] = scores["player_fl_plus_1"]
    return [
        made_up(name, seed, task=task, score=constant(loss=1 - score, f1=score + seed / 1000))
        for name, score in scores.items()
        for seed in range(seeds)
    ]


ORDER = ("player_fl_plus_1", "fedper", "local", "ditto")


def test_identical_methods_take_one_place_and_one_of_them_is_tested() -> None:
    report = report_of(*twins("a", ORDER, same=True))
    (ranking,) = report.rankings["f1"]
    assert ranking.rank_of == {"Local": 2, "Ditto": 3, "PLayer-FL+1": 1, "FedPer": 1}
    assert ranking.same_as == {"FedPer": "PLayer-FL+1"}
    (alone,) = report_of(*[run for run in twins("a", ORDER, same=True) if run.algorithm != "fedper"]).rankings["f1"]
    assert ranking.friedman is not None and alone.friedman is not None
    assert (ranking.friedman.treatments, ranking.friedman.chi2) == (3, alone.friedman.chi2)
    assert ranking.critical_difference == alone.critical_difference
    assert ranking.labels == ["Local", "Ditto", "PLayer-FL+1 = FedPer"]
    assert "Identical methods share one place: FedPer with PLayer-FL+1." in left_out(ranking)
    (note,) = [note for note in report.notes if "identical numbers" in note]
    assert note.startswith(
        "PLayer-FL+1 and FedPer give identical numbers on a, so they count as one method under 2 names"
    )
    shared = {
        row["algorithm"]: (row["mean_rank"], row["same_as"]) for row in records(report)["ranks"] if row["table"] == "f1"
    }
    assert (shared["PLayer-FL+1"], shared["FedPer"]) == ((1.0, ""), (1.0, "PLayer-FL+1"))


def test_methods_that_are_identical_on_some_tasks_share_a_place_there_only() -> None:
    """On a they are one method in first place; on b FedPer is third of four.

    Ranks less the block's mean are (0.25, 1.25, -0.75, -0.75) and (-0.5, 1.5, -1.5, 0.5): χ² = 3 · 12.75 / 7.75.
    """
    other = ("player_fl_plus_1", "local", "fedper", "ditto")
    report = report_of(*twins("a", ORDER, same=True), *twins("b", other, same=False))
    ranking = report.rankings["f1"][0]
    by_hand = {"Local": (2 + 2) / 2, "Ditto": (3 + 4) / 2, "PLayer-FL+1": (1 + 1) / 2, "FedPer": (1 + 3) / 2}
    assert (ranking.over, ranking.same_as, ranking.rank_of) == ("tasks", {}, by_hand)
    assert ranking.friedman is not None and ranking.friedman.chi2 == pytest.approx(3 * 12.75 / 7.75)


# One global model.


def fedavg_with_two_best_rounds(seed: int = 0, **changes: Any) -> RunResult:
    """Round 1 is best for north (10 examples), round 2 for south (30): over both, round 2 is."""
    losses = {(0, 1): 0.1, (0, 2): 0.3, (1, 1): 0.9, (1, 2): 0.2}
    f1 = {(0, 1): 0.8, (0, 2): 0.4, (1, 1): 0.1, (1, 2): 0.6}
    return made_up(
        "fedavg",
        seed,
        sites=("north", "south"),
        examples=(10, 30),
        score=lambda site, round_: {"loss": losses[site, round_], "f1": f1[site, round_]},
        **{"selection": "client_best", **changes},
    )


@pytest.mark.parametrize("selection", ["client_best", "round_best", "last"])
def test_incentive_compares_with_one_global_model(selection: str) -> None:
    """FedAvg's sites report 0.8 and 0.6, but its best common model has 0.4 and 0.6: Ditto beats it at both."""
    shape: dict[str, Any] = {"sites": ("north", "south"), "examples": (10, 30), "selection": selection}
    made = [
        fedavg_with_two_best_rounds(selection=selection),
        made_up("local", score=by_site("f1", (0.5, 0.5)), **shape),
        made_up("ditto", score=by_site("f1", (0.7, 0.7)), **shape),
    ]
    report = report_of(*made)
    incentive, scores = report.table("incentive_f1"), report.table("f1")
    assert incentive is not None and scores is not None
    assert incentive.cells["Ditto", "digits"].value == 100.0
    (summary,) = [summary for summary in compare(made) if summary.algorithm == "ditto"]
    assert summary.incentive is not None and summary.incentive["f1"] == 100.0
    assert summary.gains["fedavg"]["f1"]["north"] == pytest.approx(-0.1 if selection == "client_best" else 0.3)
    reported = (0.8, 0.6) if selection == "client_best" else (0.4, 0.6)
    assert scores.cells["FedAvg", "digits"].value == pytest.approx(np.average(reported, weights=(10, 30)))
    noted = [note for note in report.notes if "one global model" in note]
    assert len(noted) == (selection == "client_best")
    assert all("the sites report different rounds in 1 of 1 runs on digits" in note for note in noted)


def test_another_method_as_plain_averaging_keeps_what_its_sites_report() -> None:
    shape: dict[str, Any] = {"sites": ("north", "south"), "examples": (10, 30), "selection": "client_best"}
    made = [
        made_up("local", score=by_site("f1", (0.5, 0.5)), **shape),
        made_up("ditto", score=by_site("f1", (0.7, 0.7)), **shape),
        fedavg_with_two_best_rounds(),
    ]
    report = report_of(*made, baseline_global="ditto")
    assert not [note for note in report.notes if "one global model" in note]


@pytest.mark.slow
def test_on_heart_fedavg_has_one_global_model_in_every_run() -> None:
    """Independent: the round with the lowest weighted validation loss, from the recorded rows."""
    fedavg = [run for run in read_archive(HEART).results if run.algorithm == "fedavg"]
    assert sum(run.reports_one_round for run in fedavg) == 0
    for run in fedavg[:10]:
        scores = run.scores[run.scores.stage == "round"].pivot_table(
            index="round", columns=["split", "metric", "site"], values="value"
        )
        weights = np.array([run.num_examples[site] for site in scores["validation", "loss"].columns])
        best = (scores["validation", "loss"] * weights).sum(axis=1).idxmin()
        for metric in ("f1", "accuracy", "loss"):
            expected = scores["test", metric].loc[best].to_dict()
            assert {site: found[metric] for site, found in run.one_round_scores.items()} == expected


# What intervals and tests account for.


@pytest.mark.parametrize(
    ("splits", "said", "of"),
    [
        (
            ("x", "x", "x"),
            "all runs share one split of the data: intervals and tests account for seeds only",
            "seeds only",
        ),
        (
            ("x", "y", "z"),
            "each run has its own split of the data: intervals and tests account for new patients and seeds",
            "new patients and seeds",
        ),
        (("x", "x", "z"), "some runs share a split of the data and some do not", "the few splits that the runs share"),
        ((None, None, None), "the runs do not record their split of the data", "nothing else that is recorded"),
    ],
    ids=["fixed", "per run", "mixed", "unknown"],
)
def test_the_recorded_splits_decide_what_intervals_account_for(
    splits: tuple[str | None, ...], said: str, of: str
) -> None:
    """The setting says per run throughout; only the partition hashes count."""
    made = [
        made_up(name, seed, partition=split, data={"split": "per_run"})
        for name in NAMES
        for seed, split in enumerate(splits)
    ]
    report = report_of(*made)
    summary = sentences(report)
    assert f"On digits, {said}" in summary
    assert "this is about one dataset only, and accounts for" in summary and of in summary
    assert ("seed noise" in as_markdown(report, "x")) == (len(set(splits)) == 1 and splits[0] is not None)
    assert said in as_page(report, "x") and said in as_latex(report, "x")


def test_tasks_with_different_splits_are_told_apart() -> None:
    own = [made_up(name, seed, task="own", partition=str(seed)) for name in NAMES for seed in range(3)]
    said = sentences(report_of(*runs(task="fixed"), *own))
    assert "On fixed, all runs share one split" in said
    assert "On own, each run has its own split" in said
    assert "On every task, all runs share one split" in sentences(report_of(*runs(task="a"), *runs(task="b")))


def test_sites_that_are_drawn_anew_are_noted() -> None:
    """A new split of the same site moves examples between its parts; a new partition changes their sum."""
    moved: list[tuple[Counts, Counts]] = [({"0": 7, "1": 4}, {"0": 4, "1": 5})] * 3
    larger: list[tuple[Counts, Counts]] = [({"0": 7, "1": 4}, {"0": 5, "1": 5})] * 3
    for second, noted in ((moved, False), (larger, True)):
        made = [made_up("local", 0, classes=HALVES), made_up("local", 1, classes=second, partition="other")]
        assert any("drawn anew in every run" in note for note in report_of(*made).notes) == noted


# Diverged runs.


def test_a_diverged_method_is_called_so_and_last_in_every_format() -> None:
    nothing = constant(loss=math.nan, f1=math.nan, accuracy=math.nan)
    made = [*runs("local", "fedavg", classes=HALVES), *runs("ditto", score=nothing, classes=HALVES)]
    report = report_of(*made)
    for metric in ("f1", "accuracy", "loss"):
        (ranking,) = report.rankings[metric]
        assert ranking.rank_of["Ditto"] == 3.0
    for write in (as_page, as_markdown, as_latex):
        text = write(report, "x")
        assert text.count("diverged") >= 6
        assert (
            "inf" not in text.partition("Tables")[2].partition("Tests of the ranks")[0].replace("infinite", "").lower()
        )
        assert "Ditto on digits: a loss became NaN in 3 of 3 runs" in text
    cells = [
        row for row in json.loads(json.dumps(without_nan(records(report))))["cells"] if row["algorithm"] == "Ditto"
    ]
    assert {row["diverged_runs"] for row in cells if row["table"] in ("f1", "accuracy", "loss", "fairness_f1")} == {3}
    _, axes = report_figures(report)["scores_f1"]
    assert [text.get_text() for text in axes[0].texts] == ["diverged"]


def test_an_interval_that_reaches_a_diverged_run_says_so() -> None:
    made = [made_up("fedavg", seed, score=constant(loss=0.5, f1=0.5)) for seed in (1, 2)]
    made.append(made_up("fedavg", 0, score=constant(loss=math.nan, f1=math.nan)))
    text = as_markdown(report_of(*made, *runs("local", score=plausible("local", 0, 2))), "x")
    assert "\\[diverged, 50.0\\]" in text and "\\[0.500, diverged\\]" in text
