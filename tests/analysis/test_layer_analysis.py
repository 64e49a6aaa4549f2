"""The four quantities at three moments, from training to figures."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import Any

import pytest
import torch

import playerfl
from federations import QUICK, assert_same, federate, sites, task
from playerfl.analysis.figures import FIGURES, correlation_figure, overview_figure, quantity_figure
from playerfl.analysis.layer_analysis import AnalysisOptions, LayerAnalysis, LayerFinding, analyze_layers
from playerfl.analysis.moments import FEDERATED, FIRST_EPOCH, INDEPENDENT, MOMENTS
from playerfl.errors import ConfigError
from playerfl.report.compute.comparison import without_nan

SETTINGS: dict[str, Any] = {"training.batch_size": 8, "training.learning_rate": 0.01}


@pytest.fixture(scope="module")
def analysis() -> LayerAnalysis:
    return analyze_layers(task(), rounds=2, seeds=[0, 1], settings=SETTINGS, options=AnalysisOptions(rows=16))


@pytest.mark.slow
def test_every_quantity_is_known_at_every_moment_site_and_layer(analysis: LayerAnalysis) -> None:
    assert analysis.layers == ("0", "2", "4", "6")
    for moment in MOMENTS:
        for quantity in ("gradient_variance", "hessian", "score", "sensitivity"):
            curves = analysis.curves(quantity, moment)
            assert curves.keys() == {(seed, f"site-{i}") for seed in (0, 1) for i in range(3)}
            assert all(math.isfinite(value) for curve in curves.values() for value in curve)
        for curve in analysis.curves("cka", moment).values():
            assert all(0 <= value <= 1 + 1e-9 for value in curve[:-1])
            assert math.isnan(curve[-1])  # logits are left out


@pytest.mark.slow
def test_sensitivity_begins_at_100_percent_and_never_falls(analysis: LayerAnalysis) -> None:
    for moment in MOMENTS:
        for curve in analysis.curves("sensitivity", moment).values():
            assert curve[0] == pytest.approx(100)
            assert curve == sorted(curve)


def test_the_score_after_the_first_epoch_is_what_post_epoch_measures(analysis: LayerAnalysis) -> None:
    settings = {**SETTINGS, "algorithm.sensitivity_mode": "post_epoch"}
    measured = playerfl.probe_sites(task(), settings=settings).profiles[0]
    for (seed, site), curve in analysis.curves("score", FIRST_EPOCH).items():
        if seed == 0:
            assert curve == pytest.approx(list(measured[site].importance.values()), rel=1e-4)


@pytest.mark.slow
def test_moments_are_the_models_of_those_runs(analysis: LayerAnalysis) -> None:
    alone = federate("local", rounds=2)
    again = analyze_layers(
        task(), rounds=2, settings=SETTINGS, federated=alone.weights, options=AnalysisOptions(rows=16)
    )
    independent, given = again.curves("score", INDEPENDENT), again.curves("score", FEDERATED)
    assert independent == given
    assert independent == {key: v for key, v in analysis.curves("score", INDEPENDENT).items() if key[0] == 0}
    assert_same(alone, federate("local", rounds=2))


def test_json_has_no_nan_and_says_the_correlations(analysis: LayerAnalysis) -> None:
    content = json.loads(json.dumps(without_nan(analysis.to_json()), allow_nan=False))
    rho = content["correlations"][FIRST_EPOCH]["sensitivity"]["gradient_variance"]
    assert -1 <= rho["low"] <= rho["value"] <= rho["high"] <= 1
    assert rho["curves"] == 6


def test_sensitivity_correlates_as_depth_does() -> None:
    known = {"score": (3.0, 1.0, 2.0), "sensitivity": (3.0, 4.0, 6.0), "hessian": (1.0, 5.0, 9.0)}
    findings = [
        LayerFinding(0, moment, "a", layer, quantity, value)
        for moment in MOMENTS
        for quantity, values in known.items()
        for layer, value in zip("xyz", values, strict=True)
    ]
    correlations = LayerAnalysis("t", ("x", "y", "z"), findings).correlations()[FIRST_EPOCH]
    assert correlations["sensitivity"]["hessian"] is not None
    assert correlations["sensitivity"]["hessian"].value == 1.0
    assert correlations["score"]["hessian"] is not None
    assert correlations["score"]["hessian"].value == -0.5
    assert correlations["score"]["cka"] is None


def test_a_single_site_has_every_quantity_but_similarity() -> None:
    alone = analyze_layers(task(count=1), rounds=1, settings=SETTINGS, options=AnalysisOptions(rows=8))
    assert alone.curves("cka", FIRST_EPOCH) == {}
    assert any("only one site" in note for note in alone.notes)
    quantity_figure(alone, "cka")


def test_algorithm_settings_are_refused() -> None:
    with pytest.raises(ConfigError, match="leave algorithm settings out"):
        analyze_layers(task(), settings={"algorithm.name": "fedavg"})
    with pytest.raises(ConfigError, match="rounds of one epoch"):
        analyze_layers(task(), settings={**QUICK, "training.local_epochs": 2})


def test_convolutional_models_are_analysed_too() -> None:
    measured = analyze_layers(
        task("convolutional"), rounds=1, settings=SETTINGS, options=AnalysisOptions(rows=8, probes=2)
    )
    errors = measured.errors("hessian", FIRST_EPOCH)
    assert list(errors) == ["1", "3"]


@pytest.mark.parametrize("quantity", FIGURES)
def test_each_quantity_is_drawn_at_three_moments(analysis: LayerAnalysis, quantity: str) -> None:
    _, axes = quantity_figure(analysis, quantity)
    assert [one.get_title() for one in axes] == list(MOMENTS)
    assert axes[0].get_yscale() == ("linear" if quantity == "cka" else "log")
    labels = [text.get_text() for text in axes[-1].get_legend().get_texts()]
    assert labels == ["site-0", "site-1", "site-2", "mean of sites"]


@pytest.mark.slow
def test_negative_traces_are_drawn_open(analysis: LayerAnalysis) -> None:
    turned = [replace(f, value=-f.value) if f.quantity == "hessian" else f for f in analysis.findings]
    _, axes = quantity_figure(replace(analysis, findings=turned), "hessian")
    hollow = [line for line in axes[0].get_lines() if line.get_markerfacecolor() == "white" and len(line.get_xdata())]
    assert hollow


def test_an_interval_of_zero_width_can_be_drawn() -> None:
    """Six equal ρ have a mean that differs from them by a rounding error."""
    curves = {"score": (1.0, 2.0, 3.0, 4.0), "sensitivity": (1.0, 2.0, 3.0, 4.0), "cka": (1.0, 3.0, 2.0, 4.0)}
    curves |= {"hessian": (2.0, 1.0, 4.0, 3.0), "gradient_variance": (4.0, 1.0, 3.0, 2.0)}
    findings = [
        LayerFinding(0, moment, f"site-{i}", layer, quantity, value)
        for moment in MOMENTS
        for i in range(6)
        for quantity, values in curves.items()
        for layer, value in zip("wxyz", values, strict=True)
    ]
    measured = LayerAnalysis("t", tuple("wxyz"), findings)
    rho = measured.correlations()[FIRST_EPOCH]["score"]["gradient_variance"]
    assert rho is not None
    assert rho.low == pytest.approx(rho.value) == pytest.approx(-0.4)
    correlation_figure(measured)


@pytest.mark.slow
def test_overview_and_correlations_have_an_axis_per_quantity_and_moment(analysis: LayerAnalysis) -> None:
    """Saving them takes seconds; `playerfl analyze` does it in its own test."""
    _, rows = overview_figure(analysis)
    assert (len(rows), len(rows[0])) == (4, 3)
    _, axes = correlation_figure(analysis)
    assert len(axes) == 3


def test_regression_has_an_analysis_too() -> None:
    from playerfl.learning.losses import squared_error
    from playerfl.tasks.task import own_task

    numbers = {name: (x, x.sum(1)) for name, (x, _) in sites(2).items()}
    model = lambda: torch.nn.Sequential(torch.nn.Linear(6, 4), torch.nn.Tanh(), torch.nn.Linear(4, 1))  # noqa: E731
    measured = analyze_layers(own_task(model, numbers, loss=squared_error, metrics={}), rounds=1, settings=SETTINGS)
    assert len(measured.curves("hessian", FEDERATED)) == 2
