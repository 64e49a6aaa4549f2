"""What a reader sees first: the answer with its uncertainty, and the titles of the pictures."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from made_up_runs import SITES, by_site, constant, made_up, report_of, sentences
from playerfl.report.compute.report import Report
from playerfl.report.compute.statistics import friedman
from playerfl.report.view.answers import best_on, verdict
from playerfl.report.view.first_screen import answer, methods_finding, other_answers, sites_finding
from playerfl.report.view.sections import lead, view
from playerfl.report.write.documents import as_latex, as_markdown, as_page
from playerfl.report.write.payload import payload
from playerfl.runs.result import RunResult


def runs(values: dict[str, Sequence[float]], seeds: int = 1, **options: Any) -> list[RunResult]:
    """Each site's F1 by method; every seed adds a thousandth."""
    return [
        made_up(name, seed, score=by_site("f1", [value + seed / 1000 for value in of_sites]), **options)
        for name, of_sites in values.items()
        for seed in range(seeds)
    ]


AHEAD = {"local": (0.5, 0.5, 0.5), "fedavg": (0.6, 0.6, 0.4), "player_fl": (0.8, 0.8, 0.4)}


def findings(report: Report, method: str = "PLayer-FL", task: str = "digits") -> tuple[str, str]:
    table, sites = report.table("f1"), report.site_table(task, method, "f1")
    assert table is not None
    assert sites is not None
    return methods_finding(report, table, task), sites_finding(report, sites)


@pytest.mark.parametrize(
    ("seeds", "said", "methods", "sites"),
    [
        (
            1,
            "On digits, PLayer-FL has the highest macro-F1 (60.0 %), but with a single run per method this may be due "
            "to chance.",
            "PLayer-FL scores best, in one run of each method",
            "PLayer-FL: 2 of 3 sites better off than alone, west worse off; all of this may be chance",
        ),
        (
            3,
            "On digits, PLayer-FL has the best macro-F1: 60.1 % (range of 3 runs: 60.0 to 60.2); 3 runs are a first "
            "look, not a result.",
            "PLayer-FL scores best by the median of 3 runs",
            "PLayer-FL: 2 of 3 sites better off than alone, west worse off; all of this may be chance",
        ),
        (
            9,
            "On digits, PLayer-FL has the best macro-F1: 60.4 % (95 % interval: 60.2 to 60.7).",
            "PLayer-FL scores best, beyond seed noise",
            "PLayer-FL: 2 of 3 sites better off than alone (clearly), west worse off (clearly)",
        ),
    ],
)
def test_more_runs_make_the_answer_more_certain(seeds: int, said: str, methods: str, sites: str) -> None:
    report = report_of(*runs(AHEAD, seeds))
    assert answer(report) == said
    assert findings(report) == (methods, sites)


def test_rivals_within_noise_are_named_or_counted() -> None:
    names = ("local", "fedavg", "ditto", "fedprox", "fedper", "fedrep", "fedbabu")
    noisy = [
        made_up(name, seed, score=by_site("f1", [0.5 + ((7 * seed + 3 * place) % 5) / 50] * 3))
        for place, name in enumerate(names)
        for seed in range(6)
    ]
    report = report_of(*noisy)
    table = report.table("f1")
    assert table is not None
    assert sum(cell.tie for cell in table.cells.values()) > 3
    assert "others are within seed noise" in methods_finding(report, table, "digits")
    assert "other methods is within seed noise" in answer(report)


def test_a_single_method_has_no_rivals_and_its_sites_show_their_scores() -> None:
    report = report_of(*runs({"player_fl": (0.8, 0.7, 0.4)}))
    assert answer(report) == "On digits, only PLayer-FL has been run, once: macro-F1 56.7 %."
    assert findings(report)[1] == "PLayer-FL: west has the worst macro-F1"
    drawn = payload(report)["siteTables"]["digits"]["PLayer-FL"]["f1"]
    assert not drawn["compared"]
    assert [numbers[1] for numbers in drawn["sites"]] == [0.4, 0.7, 0.8]


def test_gains_and_losses_alone() -> None:
    equal = report_of(*runs({"local": (0.5, 0.5, 0.5), "player_fl": (0.5, 0.5, 0.5)}))
    assert findings(equal)[1] == "PLayer-FL: no site gains or loses against training alone"
    worse = report_of(*runs({"local": (0.5, 0.5, 0.5), "player_fl": (0.4, 0.4, 0.4)}, 8))
    assert findings(worse)[1] == "PLayer-FL: 3 sites worse off than alone (clearly)"


def test_several_tasks_are_answered_together_and_each_picture_names_its_task() -> None:
    report = report_of(*(run for task in ("a", "b", "c") for run in runs(AHEAD, 2, task=task)))
    assert answer(report).startswith(
        "Over 3 tasks, PLayer-FL has the best mean rank by macro-F1: 1.0 (3 methods); as a"
    )
    assert "significantly (p = " in answer(report)
    assert findings(report, task="b")[0].startswith("On b, PLayer-FL scores best")
    assert findings(report, task="b")[1].startswith("PLayer-FL on b: ")
    assert not [
        s for one in other_answers(report) for s in one.sentences if s.startswith("Over 3 tasks, PLayer-FL has")
    ]


def test_no_winner_where_nothing_was_learnt() -> None:
    classes = [({"0": 9, "1": 1}, {"0": 9, "1": 1})] * 3
    poor = [
        made_up(name, score=constant(loss=1.0, accuracy=0.9, f1=0.4 + step / 100), classes=classes)
        for step, name in enumerate(("local", "fedavg", "player_fl"))
    ]
    report = report_of(*poor)
    assert report.not_learnt == ("digits",)
    assert answer(report).startswith("Not learnt: digits.")
    assert findings(report)[0] == "No method is clearly ahead of the majority class"
    tables = [block for section in view(report, "x").sections for block in section.blocks if block.kind == "table"]
    assert not [
        cell for table in tables if table.name.endswith("f1") for row in table.rows for cell in row if cell.bold
    ]  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("other", "title"),
    [
        (0.9, "No method is clearly ahead of the majority class in accuracy"),
        (0.2, "No method is clearly ahead of the majority class"),
    ],
)
def test_a_lead_in_one_metric_does_not_contradict_the_title(other: float, title: str) -> None:
    classes = [({"0": 9, "1": 1}, {"0": 9, "1": 1})] * 3
    score = constant(loss=1.0, accuracy=0.9, f1=other)
    report = report_of(*(made_up(name, score=score, classes=classes) for name in ("local", "player_fl")))
    assert findings(report)[0] == title


@pytest.mark.parametrize("own", [0.3, math.nan])
def test_the_method_of_the_pictures_is_in_the_sentence(own: float) -> None:
    report = report_of(*runs({"local": (0.5, 0.5, 0.5), "fedper": (0.9, 0.9, 0.9), "player_fl": (own, own, own)}, 8))
    end = "diverged" if math.isnan(own) else "has 30.3 %"
    assert answer(report).endswith(f"; PLayer-FL {end}.")


@pytest.mark.slow
def test_the_page_starts_with_a_task_that_was_learnt_and_shows_the_best_method_of_all() -> None:
    classes = [({"0": 9, "1": 1}, {"0": 9, "1": 1})] * 3
    poor = constant(loss=1.0, accuracy=0.9, f1=0.4)
    unlearnt = [made_up(name, task="a", score=poor, classes=classes) for name in AHEAD]
    report = report_of(*unlearnt, *runs(AHEAD, task="b"), *runs(AHEAD, task="c"))
    assert report.not_learnt == ("a",)
    assert "<option>a</option><option selected>b</option>" in as_page(report, "x")
    assert payload(report)["scores"]["f1"]["leaders"] == ["PLayer-FL"]


def test_equal_scores_have_no_winner() -> None:
    report = report_of(*runs(dict.fromkeys(AHEAD, (0.5, 0.5, 0.5)), 8))
    assert findings(report)[0] == "3 methods score the same"
    assert answer(report) == "On digits, all 3 methods have the same macro-F1: 50.4 %."


# Variants that set different things, as in a study of fixed cuts beside the rule.
VARIANTS = (
    {"rule": "fixed", "fixed_cut": 1, "threshold": None},
    {"rule": "fixed", "fixed_cut": 2, "threshold": None},
    {"rule": "layer_ratio", "fixed_cut": None, "threshold": 3.5},
)


def test_of_several_variants_the_one_that_measures_its_cut_is_shown() -> None:
    measured = {site: [1.0, 0.3, 20.0] for site in SITES}
    report = report_of(made_up("local"), *(made_up(options=options, scores_of_layers=measured) for options in VARIANTS))
    # Settings that a variant does not set are not in its name.
    own = "PLayer-FL (rule=layer_ratio, threshold=3.5)"
    assert report.grid.algorithms[1:] == [
        "PLayer-FL (fixed_cut=1, rule=fixed)",
        "PLayer-FL (fixed_cut=2, rule=fixed)",
        own,
    ]
    assert (report.subject, report.layer_scores[0].algorithm) == (own, own)
    assert payload(report)["whatIf"]["digits"]["algorithm"] == own


def test_only_tasks_with_the_metric_are_counted() -> None:
    mae = constant(loss=0.5, mae=2.0)
    runs = [made_up(name, task=task) for name in ("local", "player_fl") for task in ("digits", "heart")]
    other = [made_up(name, task="stay", score=mae) for name in ("local", "player_fl")]
    other.append(made_up(task="without-local"))
    said = sentences(report_of(*runs, *other))
    assert "Of 6 sites on 2 tasks, PLayer-FL leaves 0 better off than training alone and 6 worse off." in said
    assert " on 2 tasks" not in sentences(report_of(*runs[::2], *other))


def test_a_site_without_a_score_is_not_the_same_as_alone() -> None:
    def scores(own: float) -> Any:
        return lambda site, _: {"loss": 0.5, "auroc": math.nan if site == 2 else own}

    report = report_of(made_up("local", score=scores(0.6)), made_up(score=scores(0.7)), metric="auroc")
    assert "gives 2 of 2 sites a better AUROC than training alone." in sentences(report)


def test_many_layers_are_summed_up() -> None:
    layers = {f"block-{number}": 100 for number in range(30)}
    measured = {site: [1.0] * 20 + [20.0] * 10 for site in SITES}
    said = sentences(report_of(made_up(layers=layers, scores_of_layers=measured)))
    assert "shares 20 layers from block-0 to block-19 (66.7 % of the parameters) and keeps 10 layers from " in said


def test_long_names_of_sites_do_not_fill_the_title() -> None:
    sites = ("n" * 80, "south", "west")
    report = report_of(*runs({"local": (0.5, 0.5, 0.5), "player_fl": (0.4, 0.6, 0.6)}, sites=sites))
    assert f", {'n' * 29}… worse off" in findings(report)[1]
    sites = ("n" * 80 + "1", "n" * 80 + "2", "west")
    report = report_of(*runs({"local": (0.5, 0.5, 0.5), "player_fl": (0.4, 0.4, 0.6)}, sites=sites))
    assert ", 2 sites worse off" in findings(report)[1]


def test_losses_say_which_sign_is_better() -> None:
    report = report_of(*runs(AHEAD), metric="loss")
    section = next(section for section in view(report, "x").sections if section.anchor == "sites")
    heads = [head.title for head in section.blocks[0].heads]  # type: ignore[union-attr]
    assert "against Local (+ is better)" in heads


def test_documents_start_with_the_answer() -> None:
    report = report_of(*runs(AHEAD))
    for text in (as_markdown(report, "x"), as_latex(report, "x")):
        assert "PLayer-FL has the highest macro-F1" in text.split("Summary")[0]
        assert text.count("PLayer-FL has the highest macro-F1") == 1


def test_the_pictures_hold_both_intervals_and_the_baseline() -> None:
    report = report_of(*runs(AHEAD, 3, classes=[({"0": 9, "1": 6}, {"0": 4, "1": 4})] * 3))
    drawn = payload(report)["scores"]["f1"]["tasks"]["digits"]
    name, value, low, high, first, last = drawn["methods"][-1]
    assert name == "PLayer-FL"
    assert low <= value <= high
    assert first != first and last != last  # these runs hold no test rows
    assert drawn["majority"] == pytest.approx(1 / 3)
    assert drawn["over"] == "range of 3 runs"


def test_a_single_run_tells_how_sure_its_score_is() -> None:
    report = report_of(*runs({"player_fl": (0.8, 0.7, 0.4)}))
    table = report.table("f1")
    assert table is not None
    cells = {place: replace(cell, rows=(0.3, 0.9)) for place, cell in table.cells.items()}
    said = best_on(report, replace(table, cells=cells), "digits")
    assert (
        said
        == "On digits, only PLayer-FL has been run, once: macro-F1 56.7 % (95 % interval over test rows: 30.0 to 90.0)."
    )


def test_no_best_rank_where_nothing_was_learnt() -> None:
    classes = [({"0": 9, "1": 1}, {"0": 9, "1": 1})] * 3
    poor = [
        made_up(name, seed, score=constant(loss=1.0, accuracy=0.9, f1=0.4 + step / 100), classes=classes)
        for step, name in enumerate(("local", "fedavg", "player_fl"))
        for seed in range(6)
    ]
    titles = [ranking["finding"] for ranking in payload(report_of(*poor))["rankings"]["f1"]]
    assert titles
    assert all(title.startswith("digits was not learnt, so no method is called best; the 3 ") for title in titles)


@pytest.mark.parametrize(
    ("p", "f_p", "said"),
    [
        (0.01, 0.01, "differ significantly"),
        (0.076, 0.035, "differ significantly by only one of two tests"),
        (0.04, 0.06, "differ significantly by only one of two tests"),
        (0.2, 0.2, "do not differ significantly"),
        (0.01, math.nan, "differ significantly"),
        (0.2, math.nan, "do not differ significantly"),
    ],
)
def test_the_verdict_fits_both_p_values(p: float, f_p: float, said: str) -> None:
    test = friedman(np.array([[1.0, 2.0, 3.0], [1.0, 3.0, 2.0], [1.0, 2.0, 3.0]]))
    assert verdict(replace(test, p=p, f_p=f_p)) == said


def test_sites_without_a_comparison_show_scores_and_no_empty_column() -> None:
    report = report_of(*runs({"player_fl": (0.8, 0.7, 0.4)}))
    section = next(section for section in view(report, "x").sections if section.anchor == "sites")
    assert section.title == "Scores by site"
    assert "difference" not in section.lead
    assert [head.title for head in section.blocks[0].heads] == ["site", "Macro-F1, %", "training rows"]  # type: ignore[union-attr]


def test_every_table_of_sites_has_its_own_heads() -> None:
    classes = [({"0": 9, "1": 6}, {"0": 4, "1": 4})] * 3
    known, unknown = runs(AHEAD, task="a", classes=classes), runs(AHEAD, task="b")
    drawn = payload(report_of(*known, *unknown))
    heads = {
        task: drawn["siteHeads"][by_method["Local"]["f1"]["heads"]] for task, by_method in drawn["siteTables"].items()
    }
    assert [len(heads[task]) for task in "ab"] == [
        len(drawn["siteTables"][task]["Local"]["f1"]["rows"][0]) for task in "ab"
    ]
    assert ("majority class", False) in heads["a"]
    assert ("majority class", False) not in heads["b"]


def test_methods_that_were_never_run_on_the_same_task_are_not_ranked() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        report = report_of(made_up("player_fl", task="digits"), made_up("fedavg", task="heart"))
        page = payload(report)
    assert all(rankings == [] for rankings in report.rankings.values())
    assert answer(report).startswith("On digits, only PLayer-FL has been run")
    assert "null" not in str(page["rankings"])


def test_the_only_site_is_not_one_of_one() -> None:
    report = report_of(*runs({"local": (0.5,), "player_fl": (0.6,)}, sites=("north",)))
    assert findings(report)[1] == "PLayer-FL: the only site is better off than alone; all of this may be chance"


@pytest.mark.parametrize("many", [False, True])
def test_the_header_names_tasks_unless_their_names_fill_the_screen(many: bool) -> None:
    names = ["digits", "heart", *(f"tweets (split=per_run, rounds={i}, selection=by_owner)" for i in range(5 * many))]
    said = lead(report_of(*(made_up(task=name) for name in names)))
    assert ("digits, heart" in said) is not many
    assert f"1 method on {len(names)} tasks" in said


def test_each_picture_names_the_baseline_of_its_own_task() -> None:
    classes = [({"0": 9, "1": 6}, {"0": 4, "1": 4})] * 3
    report = report_of(*runs(AHEAD, classes=classes), *runs(AHEAD, task="length of stay"))
    tasks = payload(report)["scores"]["loss"]["tasks"]
    assert [(task["baseline"], task["predicts"]) for task in tasks.values()] == [
        ("Majority class", "most frequent class"),
        ("Training mean", "mean"),
    ]
