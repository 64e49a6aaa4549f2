"""From runs to tables: which runs are compared, and what a cell holds."""

from __future__ import annotations

import math
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from federations import federate, quick_for, task
from made_up_runs import by_site, constant, made_up, plausible, report_of, sentences
from playerfl.algorithms import ALGORITHMS
from playerfl.algorithms.shared_layers.player_fl import PLayerFL
from playerfl.errors import ConfigError
from playerfl.report.compute.collected import Collected, Gap
from playerfl.report.compute.comparison import compare
from playerfl.report.compute.cost import never_leaves
from playerfl.report.compute.curves import Curve
from playerfl.report.compute.grid import arrange
from playerfl.report.compute.missing_runs import seed_rows
from playerfl.report.compute.ranking import complete_part
from playerfl.report.compute.report import Report, build_report
from playerfl.report.compute.tables import ScoreCell
from playerfl.report.plots.report import report_figures
from playerfl.report.view.answers import answers
from playerfl.report.view.facts import records
from playerfl.report.view.parts import TableView
from playerfl.report.view.rank_section import left_out
from playerfl.report.view.sections import lead, view
from playerfl.report.write.documents import as_latex, as_markdown, as_page
from playerfl.runs.result import RunResult
from playerfl.studies.collecting import collect

NAMES = ("local", "fedavg", "ditto", "player_fl")


def cells_of(report: Report, table: str) -> dict[str, ScoreCell]:
    """By algorithm, for reports on one task."""
    of_table = report.table(table)
    return {algorithm: cell for (algorithm, _), cell in of_table.cells.items()} if of_table else {}


def ordered(seeds: int) -> list[RunResult]:
    """Local beats FedAvg, and FedAvg beats Ditto, with every seed."""
    losses = {"local": 0.1, "fedavg": 0.2, "ditto": 0.3}
    return [
        made_up(name, seed, score=constant(loss=loss, f1=1 - loss))
        for seed in range(seeds)
        for name, loss in losses.items()
    ]


def runs(names: tuple[str, ...] = NAMES, seeds: int = 3, **options: Any) -> list[RunResult]:
    return [made_up(name, seed, **options) for name in names for seed in range(seeds)]


# Names and places.


def test_tasks_and_algorithms_have_the_papers_order_and_names() -> None:
    made = [made_up("player_fl", task="zebra"), made_up("fedper", task="heart", paper="Heart")]
    made += [made_up("local", task="emnist", paper="EMNIST"), made_up("fedavg", task="ants")]
    grid = arrange(made)
    assert grid.tasks == ["emnist", "heart", "ants", "zebra"]
    assert grid.algorithms == ["Local", "FedAvg", "PLayer-FL", "FedPer"]


def test_runs_that_differ_only_in_seed_device_and_threads_are_one_cell() -> None:
    grid = arrange([made_up("fedavg", 0, device="cpu", threads=1), made_up("fedavg", 1, device="cuda", threads=4)])
    assert grid.algorithms == ["FedAvg"]
    assert sorted(grid.results("digits", "FedAvg")) == [0, 1]


def test_variants_are_named_by_the_settings_that_differ() -> None:
    rates = [made_up("fedavg", training={"learning_rate": rate, "batch_size": 8}) for rate in (0.1, 0.01)]
    assert arrange(rates).algorithms == ["FedAvg (learning_rate=0.01)", "FedAvg (learning_rate=0.1)"]
    skews = [made_up("fedavg", data={"alpha": alpha, "sites": 3}) for alpha in (0.1, 0.5)]
    assert arrange(skews).tasks == ["digits (alpha=0.1)", "digits (alpha=0.5)"]


def test_a_different_rate_on_each_task_makes_no_variant() -> None:
    made = [made_up("fedavg", task=task, training={"learning_rate": rate}) for task, rate in (("a", 0.1), ("b", 0.2))]
    assert arrange(made).algorithms == ["FedAvg"]


def test_a_folder_is_named_by_its_last_part() -> None:
    assert arrange([made_up(task="/home/someone/hospitals")]).tasks == ["hospitals"]
    two = [made_up(task=f"/home/someone/{place}/hospitals") for place in ("old", "new")]
    assert arrange(two).tasks == ["hospitals (task=new/hospitals)", "hospitals (task=old/hospitals)"]
    one = [made_up(task=task) for task in ("./hospitals", "/home/someone/hospitals")]
    assert arrange(one).tasks == ["hospitals (task=hospitals)", "hospitals (task=someone/hospitals)"]


def test_a_duplicate_run_counts_once_and_is_noted() -> None:
    grid = arrange([made_up("fedavg"), made_up("fedavg")])
    assert len(grid.runs) == 1
    assert "more than once" in grid.notes[0]


def test_runs_on_different_data_are_noted() -> None:
    other = made_up("local")
    object.__setattr__(other, "data", {**other.data, "partition_hash": "other"})
    (note,) = arrange([made_up("fedavg"), other]).notes
    assert "do not use the same data" in note


# Cells.


def test_a_score_is_the_median_over_runs_of_the_weighted_average_over_sites() -> None:
    made = [
        made_up("fedavg", seed, score=by_site("f1", values))
        for seed, values in enumerate([(0.1, 0.2, 0.3), (0.4,) * 3, (0.9,) * 3])
    ]
    cell = cells_of(report_of(*made), "f1")["FedAvg"]
    assert cell.per_run == pytest.approx(((0.1 * 10 + 0.2 * 20 + 0.3 * 30) / 60, 0.4, 0.9))
    assert (cell.value, cell.runs) == (pytest.approx(0.4), 3)
    assert (cell.low, cell.high) == pytest.approx((min(cell.per_run), 0.9))
    uniform = cells_of(report_of(*made, client_average="uniform"), "f1")["FedAvg"]
    assert uniform.per_run[0] == pytest.approx(0.2)


def test_one_run_gives_the_numbers_of_a_comparison() -> None:
    made = [made_up(name) for name in NAMES]
    report = report_of(*made)
    for summary in compare(made):
        label = report.grid.algorithms[NAMES.index(summary.algorithm)]
        for metric, value in summary.average.items():
            assert cells_of(report, metric)[label].value == pytest.approx(value)
            assert cells_of(report, f"fairness_{metric}")[label].value == pytest.approx(summary.fairness[metric])
            if summary.incentive:
                assert cells_of(report, f"incentive_{metric}")[label].value == summary.incentive[metric]


def test_fairness_is_computed_from_site_medians_or_per_run() -> None:
    """Sites' medians are 0, 0.5 and 1: variance 1/6. Single runs: 2/9, 1/18 and 1/6."""
    values = [(0.0, 0.0, 1.0), (0.0, 0.5, 0.5), (0.0, 0.5, 1.0)]
    made = [made_up("fedavg", seed, score=by_site("f1", scores)) for seed, scores in enumerate(values)]
    for per_run in (False, True):
        cell = cells_of(report_of(*made, per_run=per_run), "fairness_f1")["FedAvg"]
        assert cell.value == pytest.approx(1 / 6)
        assert cell.per_run == pytest.approx((2 / 9, 1 / 18, 1 / 6))


def test_incentive_counts_sites_better_than_both_baselines_on_common_seeds() -> None:
    values = {"local": (0.5, 0.5, 0.5), "fedavg": (0.4, 0.6, 0.5), "ditto": (0.6, 0.55, 0.5)}
    made = [made_up(name, seed, score=by_site("f1", scores)) for name, scores in values.items() for seed in range(2)]
    made.append(made_up("ditto", 7, score=by_site("f1", (0.0, 0.0, 0.0))))
    ((name, cell),) = cells_of(report_of(*made), "incentive_f1").items()
    assert name == "Ditto"
    assert (cell.value, cell.seeds) == (pytest.approx(100 / 3), (0, 1))


def marks(values: dict[str, tuple[float, ...]]) -> dict[str, str]:
    made = [made_up(n, s, score=constant(loss=1 - v, f1=v)) for n, f1 in values.items() for s, v in enumerate(f1)]
    cells = cells_of(report_of(*made), "f1")
    return {name: "best" if cell.best else "tie" if cell.tie else "" for name, cell in cells.items()}


def test_a_difference_from_the_best_within_seed_noise_is_a_tie() -> None:
    values = {"local": (0.50, 0.60, 0.70), "fedavg": (0.55, 0.56, 0.57), "ditto": (0.1, 0.1, 0.1)}
    assert marks(values) == {"Local": "best", "FedAvg": "tie", "Ditto": ""}


def test_ties_are_paired_over_seeds() -> None:
    """A constant gap of 0.01 is not a tie, even if it is well within the interval of the best."""
    seeds = (0.3, 0.5, 0.7, 0.4, 0.6, 0.55)
    assert marks({"local": seeds, "fedavg": tuple(x - 0.01 for x in seeds)}) == {"Local": "best", "FedAvg": ""}


def test_the_lowest_loss_is_best_and_equal_ones_are_all_best() -> None:
    made = [
        made_up(name, score=constant(loss=loss, f1=0.5))
        for name, loss in (("local", 0.3), ("fedavg", 0.2), ("ditto", 0.2))
    ]
    assert [name for name, cell in cells_of(report_of(*made), "loss").items() if cell.best] == ["FedAvg", "Ditto"]


def test_fairness_shows_baselines_without_ranking_them() -> None:
    table = report_of(*runs()).table("fairness_f1")
    assert table is not None
    assert table.algorithms == ("Local", "FedAvg", "Ditto", "PLayer-FL")
    assert table.ranked == ("Ditto", "PLayer-FL")
    assert not table.cells["Local", "digits"].best


def test_a_task_without_classes_has_tables_of_the_loss_only() -> None:
    made = [made_up(name, score=constant(loss=0.5)) for name in NAMES]
    assert [table.name for table in report_of(*made).tables] == ["loss", "fairness_loss", "incentive_loss"]


def test_the_nine_tables_begin_with_the_chosen_metric() -> None:
    names = [table.name for table in report_of(*runs(), metric="accuracy").tables]
    assert len(names) == 9
    assert names[:3] == ["accuracy", "fairness_accuracy", "incentive_accuracy"]


# Runs that diverged.


def diverging(seed: int, algorithm: str = "fedavg") -> RunResult:
    return made_up(algorithm, seed, score=constant(loss=math.nan, f1=0.1, accuracy=0.1))


def test_a_method_that_diverged_ranks_last_and_is_named() -> None:
    report = report_of(*runs(("local", "player_fl")), *(diverging(seed) for seed in range(3)))
    assert cells_of(report, "loss")["FedAvg"].value == math.inf
    (ranking,) = report.rankings["loss"]
    assert dict(zip(ranking.algorithms, ranking.mean_ranks, strict=True))["FedAvg"] == 3.0
    assert any("became NaN in 3 of 3 runs" in note for note in report.notes)


def test_one_run_of_three_that_diverged_moves_the_interval_not_the_median() -> None:
    fine = [made_up("fedavg", seed, score=constant(loss=0.5, f1=0.5, accuracy=0.5)) for seed in (1, 2)]
    cell = cells_of(report_of(diverging(0), *fine), "loss")["FedAvg"]
    assert (cell.value, cell.high) == (0.5, math.inf)


def test_where_both_diverged_neither_gains() -> None:
    table = report_of(diverging(0), diverging(0, "local")).site_table("digits", "FedAvg", "loss")
    assert table is not None and all(row.to_local and row.to_local.value == 0.0 for row in table.rows)


# Ranking.


def test_ranks_are_over_tasks_and_over_the_runs_of_each() -> None:
    report = report_of(*runs(task="a"), *runs(task="b"), *runs(task="c"))
    assert [(r.over, len(r.blocks)) for r in report.rankings["f1"]] == [("tasks", 3), ("a", 3), ("b", 3), ("c", 3)]
    first = report.rankings["f1"][0]
    assert first.friedman is not None and first.friedman.treatments == 4
    assert first.mean_ranks.sum() == pytest.approx(10)


def test_a_missing_cell_leaves_out_a_block_not_a_method() -> None:
    made = [*runs(task="a"), *runs(task="b"), *runs(("local", "fedavg", "player_fl"), task="c")]
    report = report_of(*made, made_up("ditto", 5, task="a"))
    tasks, seeds = report.rankings["f1"][:2]
    assert (tasks.algorithms, tasks.blocks_left_out) == (("Local", "FedAvg", "Ditto", "PLayer-FL"), ("c",))
    assert (seeds.over, seeds.left_out, seeds.blocks_left_out) == ("a", (), ("seed 5",))
    assert left_out(tasks) == ["Ranks leave out 1 of 3 tasks in which a ranked method has no result: c."]
    assert left_out(seeds) == ["Ranks leave out 1 of 4 runs in which a ranked method has no result: seeds 5."]


@pytest.mark.parametrize(
    ("gaps", "keep", "kept"),
    [
        ([(2, 1), (2, 2)], [], ([0, 1], [0, 1, 2])),
        ([(0, 1), (1, 1)], [], ([0, 1, 2], [0, 2])),
        ([(0, 1), (1, 1)], [1], ([2], [0, 1, 2])),
        ([(0, 0), (1, 1), (2, 2)], [0], ([1, 2], [0])),
        ([(0, 0), (1, 0), (2, 0)], [0], ([], [0, 1, 2])),
    ],
    ids=["a block first", "an emptier method", "never the subject", "until two blocks remain", "nothing to rank"],
)
def test_incomplete_blocks_and_methods_are_left_out(
    gaps: list[tuple[int, int]], keep: list[int], kept: tuple[list[int], list[int]]
) -> None:
    values = np.ones((3, 3))
    values[tuple(zip(*gaps, strict=True))] = np.nan
    assert complete_part(values, keep) == kept


def test_a_test_that_cannot_be_computed_says_so() -> None:
    report = report_of(*ordered(seeds=2))
    (ranking,) = report.rankings["f1"]
    assert ranking.friedman is not None and math.isnan(ranking.friedman.f_p)
    assert "All 2 blocks give the same order" in ranking.remark
    assert "Friedman p = 0.14, Iman-Davenport not computable); this is about one dataset only" in sentences(report)


def test_methods_with_identical_results_are_noted() -> None:
    made = [made_up(n, s, score=plausible("same", s, 2)) for n in ("fedper", "player_fl_plus_1") for s in range(3)]
    (note,) = [note for note in report_of(*made, *runs()).notes if "identical numbers" in note]
    assert note.startswith("PLayer-FL+1 and FedPer give identical numbers on digits")


def test_one_run_is_ranked_but_not_tested() -> None:
    (ranking,) = report_of(*runs(seeds=1)).rankings["f1"]
    assert ranking.friedman is None
    assert "these ranks may be due to chance" in ranking.remark


def test_effects_are_positive_where_the_row_is_better() -> None:
    for metric in ("f1", "loss"):
        (ranking,) = report_of(*ordered(seeds=3)).rankings[metric]
        assert ranking.effect is not None and ranking.effect[0, 1] == 1.0 == -ranking.effect[1, 0]


# Sites.


def test_the_worst_off_site_comes_first_with_its_paired_difference() -> None:
    """Over three seeds, ditto minus local is -0.1, 0.0, 0.3 at north and 0.2 always at south; west always loses 0.3."""
    made = []
    for seed, north in enumerate((-0.1, 0.0, 0.3)):
        made.append(made_up("local", seed, score=by_site("f1", (0.5, 0.5, 0.5))))
        made.append(made_up("ditto", seed, score=by_site("f1", (0.5 + north, 0.7, 0.2))))
    table = report_of(*made).site_table("digits", "Ditto", "f1")
    assert table is not None
    assert [row.site for row in table.rows] == ["west", "north", "south"]
    west, north_row, south = (row.to_local for row in table.rows)
    assert west is not None and north_row is not None and south is not None
    assert (west.value, west.low, west.high) == pytest.approx((-0.3, -0.3, -0.3))
    assert (north_row.value, north_row.low, north_row.high) == pytest.approx((0.0, -0.1, 0.3))
    assert [row.harmed for row in table.rows] == [True, False, False]


@pytest.mark.parametrize(
    ("seeds", "verdicts"),
    [(6, ("unclear", "unclear", "unclear")), (7, ("loses", "unclear", "gains"))],
)
def test_a_verdict_is_corrected_for_the_number_of_sites(seeds: int, verdicts: tuple[str, ...]) -> None:
    """Six differences of one sign have p = 1/32, which is below 5 %, but not for one of three sites; 1/64 is."""
    made = []
    for seed in range(seeds):
        noise = (-1) ** seed * (seed + 1) / 100
        made.append(made_up("local", seed, score=by_site("f1", (0.5, 0.5, 0.5))))
        made.append(made_up("ditto", seed, score=by_site("f1", (0.3 + noise, 0.5 + noise, 0.7 + noise))))
    table = report_of(*made).site_table("digits", "Ditto", "f1")
    assert table is not None
    assert tuple(row.to_local.verdict for row in table.rows if row.to_local) == verdicts
    assert table.rows[0].to_local is not None
    assert table.rows[0].to_local.p == pytest.approx(3 * 2.0 ** (1 - seeds))


# Choices.


def test_a_baseline_can_be_named_by_either_name() -> None:
    for name in ("ditto", "Ditto"):
        report = report_of(*runs(), baseline_global=name)
        assert report.choices.baseline_global == "Ditto"
        assert list(cells_of(report, "incentive_f1")) == ["FedAvg", "PLayer-FL"]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"baseline_local": "locall"}, "did you mean 'local'"),
        ({"metric": "auc"}, "unknown metric 'auc'"),
        ({"baseline_local": "fedavg"}, "must be different"),
    ],
)
def test_bad_choices_are_refused_in_a_sentence(options: dict[str, str], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        report_of(*runs(), **options)


def test_a_baseline_that_never_ran_is_noted() -> None:
    report = report_of(*runs(("fedavg", "player_fl")))
    assert report.table("incentive_f1") is None
    assert any("no runs of training alone (local)" in note for note in report.notes)


def test_a_note_names_the_variant_used_as_a_baseline() -> None:
    made = runs(("local", "player_fl")) + [
        made_up("fedavg", seed, training={"learning_rate": rate}) for rate in (0.1, 0.2) for seed in range(2)
    ]
    made.append(made_up("fedavg", 2, training={"learning_rate": 0.2}))
    report = report_of(*made)
    assert report.choices.baseline_global == "FedAvg (learning_rate=0.2)"
    assert any(
        "is used as the baseline for plain averaging, not FedAvg (learning_rate=0.1)" in note for note in report.notes
    )
    with pytest.raises(ConfigError, match="ran with several settings here; name one of"):
        report_of(*made, baseline_global="fedavg")
    named = report_of(*made, baseline_global="FedAvg (learning_rate=0.1)")
    assert not any("is used as" in note for note in named.notes)


def test_a_report_without_finished_runs_lists_the_missing_ones() -> None:
    gaps = [Gap("heart", "fedavg", seed, "waits for its learning rate") for seed in range(3)]
    report = build_report(Collected((), [*gaps, Gap("heart", "fedavg", 1001, "not run yet", tuning=True)]))
    assert "No run has finished yet" in lead(report)
    assert [(row.algorithm, row.drawn) for row in seed_rows(report)] == [("FedAvg", "···")]
    for text in (as_page(report, "x"), as_markdown(report, "x"), as_latex(report, "x")):
        assert "waits for its learning rate" in text
        assert "0–2" in text or "0--2" in text
    assert report_figures(report) == {}


def test_missing_runs_show_in_the_grid_of_methods_and_seeds() -> None:
    made = [made_up("local", seed) for seed in (1, 2, 3)] + [made_up("fedavg", 1)]
    gaps = [Gap("digits", "fedavg", 2, "not run yet"), Gap("digits", "ditto", 3, "not run yet")]
    report = build_report(Collected(made, gaps, [Gap("digits", "fedavg", 3, "out of memory")]))
    assert {row.algorithm: row.drawn for row in seed_rows(report)} == {"Local": "■■■", "FedAvg": "■·✕", "Ditto": "––·"}


def test_runs_that_chose_learning_rates_are_counted_separately() -> None:
    said = lead(build_report(Collected([made_up()], tuning_runs=400)))
    assert said.startswith(
        "1 finished run: 1 method on 1 task (digits). 400 more runs chose each method’s learning rate"
    )


# Words.


def test_the_summary_names_the_best_method_the_sites_that_gain_and_the_shared_layers() -> None:
    profile = {site: [1.0, 0.5, 40.0] for site in ("north", "south", "west")}
    made = [made_up("local", s, score=by_site("f1", (0.5, 0.5, 0.5))) for s in range(8)]
    made += [made_up("player_fl", s, score=by_site("f1", (0.6, 0.7, 0.2)), scores_of_layers=profile) for s in range(8)]
    said = {answer.question: " ".join(answer.sentences) for answer in answers(report_of(*made))}
    assert (
        "PLayer-FL gives 2 of 3 sites a better macro-F1 than training alone; "
        "west is worse off (beyond seed noise)" in said["Which sites gain and which lose?"]
    )
    assert (
        "shares conv1 and conv2 (25.0 % of the parameters) and keeps fc private; 8 of 8 runs cut there"
        in said["Which layers are shared?"]
    )
    assert "Local has the best macro-F1: 50.0 %" in said["Which method does best?"]


@pytest.mark.parametrize(
    ("made", "sentence"),
    [
        ([made_up()], "Each method ran once, so any difference may be due to chance"),
        (runs(("local", "ditto"), seeds=1), "but with a single run per method this may be due to chance"),
        (
            [
                made_up(name, task=task, score=constant(loss=1 - score, f1=score))
                for task, by_name in (("a", {"local": 0.1, "ditto": 0.2}), ("b", {"local": 0.2, "ditto": 0.1}))
                for name, score in by_name.items()
            ],
            "Over 2 tasks, Local and Ditto tie for the best mean rank by macro-F1: 1.5 (2 methods).",
        ),
        (
            [made_up(scores_of_layers={"north": [1.0, 0.5, 40.0]}, layers={"a": 10**5, "b": 10**5, "head": 10})],
            "shares a and b (> 99.9 % of the parameters) and keeps head private",
        ),
        (
            [made_up(scores_of_layers={"north": [1.0, 0.5, 40.0]}, options={"private_pull": 0.1})],
            "keeps fc private, but sites send the private layers too, because private_pull is above 0",
        ),
    ],
    ids=[
        "one run",
        "no winner of single runs",
        "a tie is called a tie",
        "almost all is not all",
        "a private layer that is sent",
    ],
)
def test_the_summary_does_not_claim_too_much(made: list[RunResult], sentence: str) -> None:
    assert sentence in sentences(report_of(*made))


def test_missing_runs_are_in_the_summary() -> None:
    collected = Collected(
        [made_up()], [Gap("digits", "ditto", 0, "not started")], [Gap("digits", "fedlp", 1, "out of memory")]
    )
    assert "Not finished: 1 run; failed: 1 run" in sentences(build_report(collected))


# Cost.


@pytest.mark.parametrize(
    "algorithm",
    [
        *quick_for(sorted(ALGORITHMS), "fedavg", "ditto", "fedbabu", "player_fl"),
        PLayerFL(rule="fixed", fixed_cut=1, private_pull=0.1),
    ],
)
def test_the_share_that_never_leaves_is_what_the_messages_show(algorithm: str | PLayerFL) -> None:
    """The largest message up holds the parameters that do leave, in float32; FedLP and FedLAMA send some at a time.
    SCAFFOLD also sends a control for each parameter, FedSelect its mask."""
    result = federate(algorithm, rounds=4)
    share = never_leaves(result)
    sizes = [layer["parameters"] for layer in result.layers["layers"]]
    largest = max(int(row[4]) for row in result.traffic_rows)
    assert share is not None
    if algorithm in ("scaffold", "fedselect"):
        assert share == 0
        return
    assert largest / 4 <= (1 - share) * sum(sizes) + 8
    if algorithm not in ("fedlp", "fedlama"):
        assert largest / 4 == pytest.approx((1 - share) * sum(sizes), abs=8)


@pytest.mark.parametrize("algorithm", ["fedavg", "fedper", "fedsa_lora", "ffa_lora"])
def test_of_adapters_the_share_that_never_leaves_is_of_what_trains(algorithm: str) -> None:
    result = federate(algorithm, task("low-rank adapters"), rounds=1)
    share = never_leaves(result)
    assert share is not None
    trained = sum(layer["parameters"] for layer in result.layers["layers"])
    assert result.bytes_up_per_round / 4 == pytest.approx((1 - share) * trained)
    (cost,) = report_of(result).costs
    assert cost.full_fine_tuning == 3 * result.full_fine_tuning_bytes  # type: ignore[operator]
    assert cost.up_per_round < cost.full_fine_tuning


def test_costs_are_bytes_per_round_and_in_total() -> None:
    (cost,) = report_of(made_up("fedavg", rounds=2)).costs
    assert (cost.down, cost.up, cost.down_per_round, cost.up_per_round) == (48_000, 48_000, 24_000, 24_000)
    assert (cost.never_leaves, cost.seconds) == (0.0, 2.5)


# Curves.


def loss_curve(*results: RunResult) -> Curve:
    return next(c for c in report_of(*results).curves if (c.metric, c.split) == ("loss", "test"))


def test_curves_hold_the_median_the_quartiles_and_every_site() -> None:
    made = [
        made_up("fedavg", s, rounds=3, score=lambda site, r, s=s: {"loss": s + r + site, "f1": 0.5}) for s in range(5)
    ]  # type: ignore[misc]
    curve = loss_curve(*made)
    shift = (0 * 10 + 1 * 20 + 2 * 30) / 60
    assert curve.rounds == (1, 2, 3)
    assert curve.middle == pytest.approx([2 + r + shift for r in (1, 2, 3)])
    assert (curve.low[0], curve.high[0]) == pytest.approx((2 + shift, 4 + shift))
    assert curve.sites[2] == pytest.approx([2 + r + 2 for r in (1, 2, 3)])


def test_a_tuned_model_ends_a_curve_and_a_diverged_round_is_a_gap() -> None:
    score = lambda site, r: {"loss": math.nan if r == 2 else 0.5, "f1": 0.5}  # noqa: E731
    curve = loss_curve(made_up("fedbabu", rounds=3, score=score, finish=constant(loss=0.1, f1=0.9)))
    assert curve.tuned == pytest.approx(0.1)
    assert np.isfinite(curve.middle).tolist() == [True, False, True]


def test_curves_count_diverged_runs_as_the_worst() -> None:
    """Losses 1, 2 and NaN: the median is 2, not 1.5."""
    made = [made_up("fedavg", s, score=constant(loss=v, f1=0.5)) for s, v in enumerate((1.0, 2.0, math.nan))]
    curve = loss_curve(*made)
    assert (curve.middle[-1], curve.high[-1], curve.diverged) == (2.0, math.inf, 1)
    assert curve.sites[0, -1] == 2.0


# Everything as tables.


def test_records_hold_what_the_report_shows() -> None:
    made = records(report_of(*runs()))
    assert {row["table"] for row in made["cells"]} == {
        f"{kind}{metric}" for kind in ("", "fairness_", "incentive_") for metric in ("f1", "accuracy", "loss")
    }
    assert len(made["sites"]) == 4 * 3 * 3
    assert all(row["runs"] == 3 for row in made["cells"])


@pytest.mark.slow
def test_sixteen_hundred_runs_are_reported_in_seconds() -> None:
    names = [name for name in ALGORITHMS if name != "local"][:15]
    made = [
        made_up(name, seed, task="heart", rounds=50, score=plausible(name, seed, 50))
        for name in ("local", *names)
        for seed in range(100)
    ]
    start = time.process_time()
    text = as_page(report_of(*made), "large")
    assert time.process_time() - start < 30
    assert len(text.encode()) < 2_000_000


@pytest.mark.slow
def test_seven_tasks_and_the_paper_fit_on_one_page() -> None:
    archive = collect(Path(__file__).parents[2] / "results" / "2026.1")
    assert len(as_page(build_report(archive, paper=True), "2026.1").encode()) < 2_000_000


def test_a_single_run_has_no_columns_for_several() -> None:
    report = report_of(*(made_up(name) for name in ("local", "fedavg", "player_fl")))
    tables = next(section for section in view(report, "x").sections if section.anchor == "tables").blocks
    for table in tables:
        assert isinstance(table, TableView)
        assert [head.title for head in table.heads] == ["method", "digits"]
