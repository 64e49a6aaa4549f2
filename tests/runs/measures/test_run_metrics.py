"""Metrics of a run: chosen by settings, of one's own, in the target's units, and what is kept of single test rows."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import playerfl
from made_up_runs import report_of, sentences
from own_data import csv, table
from playerfl.data.examples import SiteData
from playerfl.data.sites import PartGroups, Sites
from playerfl.errors import ConfigError, PlayerflError, RunDirectoryError, sentence_of
from playerfl.learning.losses import squared_error
from playerfl.report.compute.comparison import as_json, baseline_average, compare
from playerfl.report.write.documents import as_markdown
from playerfl.runs.directory import OUTCOMES
from playerfl.runs.measures.declared import declared_as
from playerfl.runs.measures.outcomes import SiteOutcomes
from playerfl.runs.measures.row_intervals import resampled_scores, row_interval, row_score
from playerfl.runs.result import RunResult
from playerfl.studies.plan import Study
from playerfl.tasks.task import Task, own_task

SCORES = ["auroc", "auprc", "sensitivity_at_specificity_0.8", "brier", "ece", "balanced_accuracy"]


def rows(seed: int, classes: int = 2, count: int = 60) -> tuple[Tensor, Tensor]:
    random = torch.Generator().manual_seed(seed)
    x = torch.randn(count, 4, generator=random)
    return x, (x[:, 0] + 0.5 * torch.randn(count, generator=random)).argsort().argsort() * classes // count


def linear(outputs: int = 2) -> nn.Module:
    return nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, outputs))


def task(**options: Any) -> Task:
    return own_task(linear, {"north": rows(1), "south": rows(2)}, **options)


def run(own: Task, algorithm: str = "fedavg", **settings: Any) -> RunResult:
    out = settings.pop("out", None)
    return playerfl.run(own, algorithm, rounds=2, settings={"training.batch_size": 8, **settings}, out=out)


def error_rate(predicted: Tensor, targets: Tensor) -> float:
    return float((predicted != targets).double().mean())


# Choosing metrics.


@pytest.mark.parametrize("trainer", ["loop", "stacked"])
def test_metrics_of_probabilities_are_chosen_by_settings(trainer: str) -> None:
    usual, chosen = (run(task(), trainer=trainer, **more) for more in ({}, {"metrics": SCORES}))
    assert list(usual.site_scores["north"]) == ["loss", "f1", "accuracy"]
    assert list(chosen.site_scores["north"]) == ["loss", *SCORES]
    assert all(math.isfinite(value) for value in chosen.site_scores["north"].values())
    # What else is measured changes nothing about training.
    assert [row for row in usual.score_rows if row[4] == "loss"] == [r for r in chosen.score_rows if r[4] == "loss"]
    assert chosen.experiment["metrics"] == SCORES
    assert "metrics" not in usual.experiment


def test_both_trainers_give_the_same_scores() -> None:
    looped, stacked = (run(task(), trainer=name, metrics=SCORES) for name in ("loop", "stacked"))
    assert (looped.data["trainer"], stacked.data["trainer"]) == ("loop", "stacked")
    for one, other in zip(looped.score_rows, stacked.score_rows, strict=True):
        assert one[:5] == other[:5]
        assert one[5] == pytest.approx(other[5], abs=1e-4)


def test_names_may_be_given_as_one_text_and_wrong_ones_are_refused_before_training() -> None:
    assert list(run(task(), metrics="auroc, f1").site_scores["north"]) == ["loss", "auroc", "f1"]
    with pytest.raises(ConfigError, match="did you mean 'brier'"):
        run(task(), metrics=["briar"])
    with pytest.raises(ConfigError, match="'rmse' is for regression"):
        run(task(), metrics=["rmse"])


def test_the_positive_class_is_chosen_by_number_or_name(tmp_path: Path) -> None:
    second, first = (run(task(), metrics=["auprc"], positive_class=number) for number in (1, 0))
    assert second.site_scores["north"]["auprc"] != first.site_scores["north"]["auprc"]
    assert (second.positive_class, first.positive_class) == (1, 0)
    folder = str(csv(tmp_path, north=table(seed=1), south=table(seed=2)))
    named = playerfl.run(folder, "local", rounds=1, settings={"metrics": ["auprc"], "positive_class": "ill"})
    assert (named.positive_class, named.data["class_names"]) == (0, ["ill", "well"])
    with pytest.raises(ConfigError, match="unknown positive_class 'sick'"):
        playerfl.run(folder, "local", rounds=1, settings={"positive_class": "sick"})


# Metrics of one's own.


@pytest.fixture(scope="module")
def own_metrics() -> list[RunResult]:
    @playerfl.metric("lower", title="Error rate", unit="share")
    def declared(predicted: Tensor, targets: Tensor) -> float:
        return error_rate(predicted, targets)

    @playerfl.metric("higher", needs="scores")
    def confidence(scores: Tensor, targets: Tensor) -> Tensor:
        assert scores.shape == (len(targets), 2)
        return scores.amax(1).mean()

    own = task(metrics={"error_rate": declared, "confidence": confidence})
    return [run(own, name) for name in ("local", "fedavg")]


def test_the_best_error_rate_is_the_lowest(own_metrics: list[RunResult]) -> None:
    averages = {s.algorithm: s.average["error_rate"] for s in compare(own_metrics)}
    worse = max(averages.values()) + 0.1
    # One run made worse, so that there is a best.
    changed = [(*row[:5], worse) if row[4] == "error_rate" else row for row in own_metrics[1].score_rows]
    results = [own_metrics[0], replace(own_metrics[1], score_rows=changed)]
    report = report_of(*results)
    assert "Local has the lowest error rate" in sentences(report)
    cells = report.tables[0].cells
    assert [cell.best for cell in cells.values()] == [True, False]
    assert compare(results)[1].gains["local"]["error_rate"]["north"] < 0
    assert "Error rate in %, lower is better" in as_markdown(report, "x")


def test_declarations_are_stored_with_the_run(own_metrics: list[RunResult]) -> None:
    stored = own_metrics[0].data["metrics"]
    assert list(stored) == ["error_rate", "confidence"]
    assert stored["error_rate"] == {
        "direction": "lower", "unit": "share", "title": "Error rate", "averaging": "", "bundled": False,
    }  # fmt: skip
    assert report_of(*own_metrics).metric == "error_rate"
    assert as_json(own_metrics[0], compare(own_metrics)[0])["metrics"]["error_rate"]["direction"] == "lower"


def test_runs_without_stored_declarations_are_read_as_before() -> None:
    old = run(task(metrics={"f1": lambda p, t: 0.5, "mine": error_rate}))
    data = {key: value for key, value in old.data.items() if key != "metrics"}
    report = report_of(replace(old, data=data))  # type: ignore[arg-type]
    assert report.grid.metrics == ["f1", "mine", "loss"]
    assert [report.grid.declared[name].direction for name in report.grid.metrics] == ["higher", "higher", "lower"]


@pytest.mark.parametrize("trainer", ["loop", "stacked"])
@pytest.mark.parametrize(
    ("function", "sentence"),
    [
        (lambda scores, targets: float(scores[:, 1].mean()), "metric 'own' failed: IndexError: "),
        (
            lambda predicted, targets: predicted,
            "metric 'own' returned Tensor of shape (10,); it must return one number",
        ),
        (lambda predicted, targets: None, "metric 'own' returned NoneType; it must return one number"),
    ],
    ids=["fails", "one number per row", "nothing"],
)
def test_a_metric_that_fails_is_one_sentence_with_site_and_round(function: Any, sentence: str, trainer: str) -> None:
    with pytest.raises(PlayerflError) as caught:
        run(task(metrics={"own": function}), trainer=trainer)
    words = sentence_of(caught.value)
    assert words.startswith("site 'north' failed while evaluating the model of round 1 of fedavg: ")
    assert sentence in words
    assert "\n" not in words


def test_a_metric_that_returns_nan_has_no_value_but_nothing_diverged() -> None:
    own = task(metrics={"own": lambda predicted, targets: math.nan, "error_rate": error_rate})
    result = run(own)
    reason = f"the metric returned NaN in round {result.chosen_rounds['north']}"
    assert result.undefined("own") == {"north": reason, "south": reason}
    report = report_of(result)
    assert report.table("own") is None
    assert report.table("error_rate") is not None
    assert "diverged" not in as_markdown(report, "x")
    assert math.isnan(compare([result])[0].average["own"])


# A class that a site lacks.


def test_a_site_with_one_class_in_its_test_rows_has_no_auroc_and_is_left_out() -> None:
    x, y = rows(3)
    parts = {"train": (x[:40], y[:40]), "validation": (x[40:50], y[40:50]), "test": (x[:9], torch.ones(9).long())}
    own = own_task(linear, {"north": rows(1), "west": parts})
    results = [run(own, name, metrics=["auroc", "accuracy"]) for name in ("local", "fedavg")]
    assert math.isnan(results[0].site_scores["west"]["auroc"])
    assert results[0].undefined("auroc") == {"west": "all 9 test rows are of class 1"}
    assert results[0].undefined("accuracy") == {}
    summary = compare(results)[0]
    assert summary.average["auroc"] == summary.sites["north"]["auroc"]
    assert baseline_average(results[0])["auroc"] == 0.5
    report = report_of(*results)
    cell = report.tables[0].cells["Local", "own"]
    assert cell.value == summary.average["auroc"]
    shown = as_markdown(report, "x")
    assert "west has no AUROC (all 9 test rows are of class 1) and is left out of averages." in shown
    assert "| west | – all 9 test rows are of class 1 |" in shown
    assert "diverged" not in shown
    assert [curve.diverged for curve in report.curves] == [0] * len(report.curves)


# Numbers in their own units.


@pytest.fixture(scope="module")
def pressures(tmp_path_factory: pytest.TempPathFactory) -> list[RunResult]:
    folder = tmp_path_factory.mktemp("pressures")
    for site, seed in (("north", 1), ("south", 2)):
        frame = table(seed=seed)
        csv(folder, **{site: frame.assign(outcome=1000 + 30 * frame["age"])})
    return [playerfl.run(str(folder), name, rounds=3, learning_rate=0.01) for name in ("local", "fedavg")]


def test_errors_of_a_number_are_in_the_units_of_its_column(pressures: list[RunResult], tmp_path: Path) -> None:
    result = pressures[0]
    assert list(result.site_scores["north"]) == ["loss", "mae", "rmse", "r2"]
    for site, outcomes in result.outcomes.items():
        # The column's values are around 2800.
        assert 1500 < float(outcomes.targets.min()) < float(outcomes.targets.max()) < 4500
        errors = outcomes.outputs - outcomes.targets
        assert result.site_scores[site]["mae"] == pytest.approx(float(errors.abs().mean()), rel=1e-5)
        assert result.site_scores[site]["rmse"] == pytest.approx(float(errors.square().mean().sqrt()), rel=1e-5)
    report = report_of(*pressures)
    shown = as_markdown(report, "x")
    assert "Mean absolute error in units of the target, lower is better" in shown
    assert "| Training mean (baseline) |" in shown


def test_the_training_mean_is_the_baseline_of_numbers(pressures: list[RunResult]) -> None:
    baseline = baseline_average(pressures[0])
    assert set(baseline) == {"mae", "rmse", "r2", "loss"}
    # About three quarters of the spread of 30 · 12.
    assert 150 < baseline["mae"] < baseline["rmse"] < 600
    assert baseline["r2"] < 0.05


def test_numbers_of_a_task_of_ones_own() -> None:
    sites = {"north": (rows(1)[0], rows(1)[0][:, 0] * 5), "south": (rows(2)[0], rows(2)[0][:, 0] * 5)}
    own = own_task(lambda: linear(1), sites, loss=squared_error, metrics={})
    assert list(run(own).site_scores["north"]) == ["loss"]
    assert list(run(own, metrics=["mae"]).site_scores["north"]) == ["loss", "mae"]
    two = own_task(linear, sites, loss=lambda output, y: (output[:, 0] - y).square(), metrics={})
    with pytest.raises(ConfigError, match="needs one output and one target per row"):
        run(two, metrics=["mae"])


# Single test rows.


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> RunResult:
    return run(task(), "player_fl", metrics=["f1", *SCORES], out=tmp_path_factory.mktemp("kept") / "run")


def test_a_run_directory_keeps_the_outcomes_of_the_reported_round(kept: RunResult) -> None:
    assert kept.path is not None
    read = playerfl.load_result(kept.path, task=task())
    assert set(read.outcomes) == {"north", "south"}
    for site, outcomes in read.outcomes.items():
        assert len(outcomes.targets) == read.test_rows[site]
        for name, value in read.site_scores[site].items():
            assert row_score(outcomes, name) == pytest.approx(value, abs=1e-5), name


def test_outcomes_can_be_left_out_and_damaged_ones_are_refused(kept: RunResult, tmp_path: Path) -> None:
    without = run(task(), out=tmp_path / "run", outcomes="never")
    assert not without.outcomes
    assert not (tmp_path / "run" / OUTCOMES).exists()
    assert math.isnan(report_of(without).tables[0].cells["FedAvg", "own"].rows[0])
    assert kept.path is not None
    (tmp_path / "run" / OUTCOMES).write_bytes((kept.path / OUTCOMES).read_bytes()[:-3])
    with pytest.raises(RunDirectoryError, match=OUTCOMES):
        playerfl.load_result(tmp_path / "run", task=task())


def test_inconsistent_outcomes_are_refused() -> None:
    with pytest.raises(ValueError, match="none of the classes"):
        SiteOutcomes(torch.zeros(2, 2), torch.tensor([0, 5])).checked()
    with pytest.raises(ValueError, match="one output and one target per row"):
        SiteOutcomes(torch.zeros(2, 2), torch.tensor([0])).checked()


def test_the_report_has_intervals_over_rows_beside_each_score(kept: RunResult) -> None:
    report = report_of(kept, run(task(), "local", metrics=["f1", *SCORES]))
    for shown in report.tables:
        if shown.kind == "score" and shown.metric != "ece":
            cell = shown.cells["PLayer-FL", "own"]
            assert cell.rows[0] <= cell.value <= cell.rows[1], shown.metric
            assert math.isnan(cell.low)
    sites = report.site_table("own", "PLayer-FL", "auroc")
    assert sites is not None
    for row in sites.rows:
        assert row.test_rows == 12
        assert row.rows[0] <= row.score <= row.rows[1]
        assert row.to_local is not None
        assert row.to_local.rows[0] <= row.to_local.value <= row.to_local.rows[1]


def test_rows_of_one_group_are_drawn_together() -> None:
    outputs, targets = torch.tensor([[0.0, 1.0]] * 30), torch.tensor([0] * 10 + [1] * 20)
    alone = resampled_scores(SiteOutcomes(outputs, targets), "accuracy", "north")
    together = SiteOutcomes(outputs, targets, groups=torch.arange(30) // 5)
    grouped = resampled_scores(together, "accuracy", "north")
    assert alone is not None
    assert grouped is not None
    assert np.mean(alone) == pytest.approx(2 / 3, abs=0.01)
    widths = [high - low for low, high in (row_interval(alone), row_interval(grouped))]
    assert widths[1] > 1.8 * widths[0]


def test_a_tasks_groups_reach_the_outcomes() -> None:
    own = task()
    loaded: Any = own.load_sites

    def load(options: Any) -> dict[str, SiteData]:
        # Only the groups of the test part matter here.
        return Sites(loaded(options), groups={"north": PartGroups(*[np.arange(12) // 3] * 3)})

    result = run(Task("own", "", load, own.build_model))
    assert result.outcomes["north"].groups is not None
    assert result.outcomes["north"].groups.tolist() == [0, 0, 0, 1, 1, 1, 2, 2, 2, 3, 3, 3]
    assert result.outcomes["south"].groups is None


def test_names_say_the_direction_of_old_results() -> None:
    assert [declared_as(name).direction for name in ("loss", "brier", "f1_true", "anything")] == [
        "lower", "lower", "higher", "higher",
    ]  # fmt: skip


def test_a_study_cannot_tune_by_a_metric_that_its_runs_do_not_record() -> None:
    study: dict[str, Any] = {
        "name": "x", "tasks": ["synthetic"], "algorithms": ["local"], "learning_rates": [0.1, 0.01],
        "tuning_metric": "f1", "settings": {"metrics": ["auroc"]},
    }  # fmt: skip
    with pytest.raises(ConfigError, match="add 'f1' to metrics"):
        Study.resolve(study)
    study["settings"]["metrics"] = ["auroc", "f1"]
    assert Study.resolve(study).tuning_metric == "f1"
