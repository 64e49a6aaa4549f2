"""Fairness, incentive and gain in numbers small enough to check by hand; runs that differ are refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from playerfl.errors import ConfigError
from playerfl.report.compute.comparison import AlgorithmSummary, as_json, compare, fairness, gain, incentive
from playerfl.runs.directory import Row
from playerfl.runs.result import RunResult

scores = st.floats(0, 1)
SIZES = {"a": 30, "b": 10}


def run(algorithm: str, sizes: dict[str, int] = SIZES, /, losses: Any = (), f1: Any = (), **changes: Any) -> RunResult:
    """A run of one round in which each site got the given test scores."""
    tests = {"loss": losses or [0.5] * len(sizes), "f1": f1 or [0.5] * len(sizes)}
    rows: list[Row] = [("round", 1, site, "validation", "loss", 1.0) for site in sizes]
    rows += [
        ("round", 1, site, "test", metric, value)
        for metric, values in tests.items()
        for site, value in zip(sizes, values, strict=True)
    ]
    settings = {"task": "digits", "seed": 0, "rounds": 1, "data": {}, "eval_point": "post_agg", "selection": "last"}
    return RunResult(
        experiment={**settings, "algorithm": {"name": algorithm}, **changes},
        environment={},
        score_rows=rows,
        traffic_rows=[(1, site, "fit", 100, 7) for site in sizes],
        layers={},
        data={"sites": {site: {"train": {"examples": size}} for site, size in sizes.items()}},
        weights={site: {} for site in sizes},
        build_model=nn.Identity,
        timing={"wall_seconds": 2.5},
    )


def compared(*runs: RunResult, **options: Any) -> dict[str, AlgorithmSummary]:
    return {summary.algorithm: summary for summary in compare(runs, **options)}


LOCAL = run("local", losses=[0.4, 0.6], f1=[0.6, 0.4])
FEDAVG = run("fedavg", losses=[0.5, 0.3], f1=[0.5, 0.7])
OURS = run("player_fl", losses=[0.3, 0.4], f1=[0.8, 0.7])


# The statistics.


@pytest.mark.parametrize(("values", "variance"), [([0.0, 1.0], 0.25), ([0.7] * 5, 0.0), ([0.1, 0.2, 0.6], 0.14 / 3)])
def test_fairness_is_the_population_variance(values: list[float], variance: float) -> None:
    assert fairness(np.array(values)) == pytest.approx(variance, abs=1e-15)


@given(st.lists(scores, min_size=1, max_size=8), st.floats(-5, 5))
def test_fairness_ignores_a_common_shift(values: list[float], shift: float) -> None:
    assert fairness(np.array(values) + shift) == pytest.approx(fairness(np.array(values)), abs=1e-9)


@pytest.mark.parametrize(("lower_is_better", "expected"), [(False, 0.25), (True, -0.25)])
def test_gain_is_positive_where_the_score_is_better(lower_is_better: bool, expected: float) -> None:
    assert gain(0.75, 0.5, lower_is_better=lower_is_better) == expected


@pytest.mark.parametrize(
    ("metric", "site_b", "rate"),
    [("f1", 0.8, 100.0), ("f1", 0.7, 50.0), ("f1", 0.6, 50.0), ("loss", 0.1, 50.0), ("loss", 0.3, 0.0)],
    ids=["both", "equal to one baseline", "between the baselines", "lower loss", "loss between"],
)
def test_incentive_counts_sites_strictly_better_than_both_baselines(metric: str, site_b: float, rate: float) -> None:
    found = (np.array([0.9, site_b]), np.array([0.5, 0.2]), np.array([0.4, 0.7]))
    assert incentive(*found, lower_is_better=metric == "loss") == rate


@given(st.lists(st.tuples(scores, scores, scores), min_size=1, max_size=6))
def test_incentive_ignores_monotone_transforms_of_the_metric(rows: list[tuple[float, float, float]]) -> None:
    values = np.array(rows).T
    # Ranks are a monotone transform that rounding cannot spoil.
    ranks = np.searchsorted(np.unique(values), values)
    assert incentive(*values, lower_is_better=False) == incentive(*np.exp(ranks), lower_is_better=False)


@given(st.lists(scores, min_size=1), scores)
def test_a_baseline_has_no_incentive_over_itself(values: list[float], other: float) -> None:
    scores, others = np.array(values), np.full(len(values), other)
    assert incentive(scores, others, scores, lower_is_better=False) == 0.0
    assert incentive(scores, scores, others, lower_is_better=False) == 0.0


# The comparison.


@pytest.mark.parametrize(("client_average", "expected"), [("samples", (0.8 * 30 + 0.7 * 10) / 40), ("uniform", 0.75)])
def test_sites_are_weighted_by_examples_or_equally(client_average: str, expected: float) -> None:
    summary = compared(OURS, client_average=client_average)["player_fl"]
    assert summary.average["f1"] == pytest.approx(expected)


def test_a_row_holds_fairness_incentive_gains_and_costs() -> None:
    summary = compared(LOCAL, FEDAVG, OURS)["player_fl"]
    assert summary.fairness == pytest.approx({"loss": 0.0025, "f1": 0.0025})
    assert summary.incentive == {"loss": 50.0, "f1": 50.0}
    assert summary.gains["local"]["f1"] == pytest.approx({"a": 0.2, "b": 0.3})
    assert summary.gains["fedavg"]["loss"] == pytest.approx({"a": 0.2, "b": -0.1})
    assert (summary.bytes_down, summary.bytes_up, summary.seconds) == (200, 14, 2.5)


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0)])
def test_rows_come_in_the_order_of_the_runs_and_do_not_depend_on_it(order: tuple[int, ...]) -> None:
    runs = [LOCAL, FEDAVG, OURS]
    summaries = compare([runs[i] for i in order])
    assert [summary.algorithm for summary in summaries] == [runs[i].algorithm for i in order]
    assert {summary.algorithm: summary for summary in summaries} == compared(*runs)


@pytest.mark.parametrize(
    ("runs", "algorithm", "baseline"),
    [
        ([LOCAL, FEDAVG, OURS], "local", "fedavg"),
        ([LOCAL, FEDAVG, OURS], "fedavg", "local"),
        ([LOCAL, OURS], "player_fl", "local"),
        ([FEDAVG, OURS], "player_fl", "fedavg"),
    ],
)
def test_incentive_needs_two_baselines_other_than_itself(runs: list[RunResult], algorithm: str, baseline: str) -> None:
    summary = compared(*runs)[algorithm]
    assert (summary.incentive, list(summary.gains)) == (None, [baseline])


def test_other_baselines_can_be_named() -> None:
    summaries = compared(LOCAL, FEDAVG, OURS, baseline_local="player_fl", baseline_global="local")
    assert summaries["fedavg"].incentive == {"loss": 50.0, "f1": 0.0}


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("task", "heart"),
        ("seed", 1),
        ("data", {"alpha": 0.1}),
        ("eval_point", "post_local"),
        ("selection", "round_best"),
    ],
)
def test_runs_that_differ_in_task_seed_data_or_evaluation_are_refused(key: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=f"differ in '{key}'"):
        compare([LOCAL, run("fedavg", **{key: value})])


@pytest.mark.parametrize("sizes", [{"a": 30, "c": 10}, {"a": 30}, {"a": 30, "b": 10, "c": 5}])
def test_runs_with_different_sites_are_refused(sizes: dict[str, int]) -> None:
    with pytest.raises(ConfigError, match="site"):
        compare([run("local", sizes), OURS])


@pytest.mark.parametrize(
    ("runs", "options", "message"),
    [
        ([LOCAL, LOCAL], {}, "each algorithm may occur only once in a comparison, not local, local"),
        ([], {}, "no runs"),
        ([OURS], {"client_average": "sample"}, "client_average"),
    ],
)
def test_what_cannot_be_compared_is_refused(runs: list[RunResult], options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        compare(runs, **options)


def test_json_holds_the_settings_and_the_results() -> None:
    (summary,) = compare([OURS])
    written = as_json(OURS, summary)
    assert (written["algorithm"], written["task"], written["seed"]) == ("player_fl", "digits", 0)
    assert written["chosen_rounds"] == {"a": 1, "b": 1}
    assert written["sites"] == {"a": {"loss": 0.3, "f1": 0.8}, "b": {"loss": 0.4, "f1": 0.7}}
    assert (written["incentive"], written["directory"], written["cut"]) == (None, None, None)
