"""The what-if: the steps that a page looks up give the cut that `choose_cut` computes."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial
from itertools import product
from typing import Any

import numpy as np
import pytest

from made_up_runs import SITES, made_up
from playerfl.errors import LayerError
from playerfl.layers.cut import choose_cut
from playerfl.layers.sensitivity import combine_sites
from playerfl.report.compute.collected import Collected
from playerfl.report.compute.report import build_report
from playerfl.report.compute.what_if import REDUCTIONS, CombinedSites, Steps, alone, combined
from playerfl.report.view.answers import answers
from playerfl.report.write.payload import payload

Scores = dict[str, dict[str, float]]
RULES = ("layer_ratio", "cumulative_ratio", "max_jump")


def looked_up(steps: Steps | None, rule: str, threshold: float, layers: int, none: str) -> int | None:
    """What the page's script does."""
    if steps is None:
        return None
    if rule == "max_jump":
        cut = steps.max_jump
    else:
        cut = next((cut for ratio, cut in getattr(steps, rule) if ratio > threshold), None)
    return {"all": layers, "all_but_last": layers - 1, "error": None}[none] if cut is None else cut


def chosen(scores: Scores, **options: Any) -> int | None:
    try:
        return choose_cut(scores, **options).index
    except LayerError:
        return None


def random_scores(draw: np.random.Generator, layers: int, sites: int) -> Scores:
    """Scores over many orders of magnitude, some of them 0, some not finite."""
    scores = {}
    for site in range(sites):
        values = 10.0 ** draw.uniform(-8, 3, layers)
        values[draw.uniform(size=layers) < 0.15] = 0.0
        if draw.uniform() < 0.1:
            values[0] = draw.choice([math.nan, math.inf])
        scores[f"Åsite-{site}" if site % 2 else f"z{site}"] = {f"l{i}": float(v) for i, v in enumerate(values)}
    return scores


@pytest.mark.parametrize("layers", [1, 2, 3, 5, 9])
@pytest.mark.parametrize("sites", [1, 2, 4])
def test_the_steps_give_the_cut_of_choose_cut(layers: int, sites: int) -> None:
    draw = np.random.default_rng([layers, sites])
    for _ in range(6):
        scores = random_scores(draw, layers, sites)
        examples = {site: int(draw.integers(1, 500)) for site in scores}
        together = combined(scores, examples)
        for ((normalise, name), way), rule in product(together.items(), RULES):
            threshold = float(draw.choice([1.0, 2.0, 3.5, 1e3, 1e12]))
            none = str(draw.choice(["all", "all_but_last", "error"]))
            looked = partial(looked_up, rule=rule, threshold=threshold, layers=layers, none=none)
            reduce, weight = REDUCTIONS[name]
            ways = {"normalise": normalise, "reduce": reduce, "client_weight": weight, "num_examples": examples}
            computed = partial(chosen, rule=rule, threshold=threshold, on_no_transition=none, **ways)
            if isinstance(way, str):
                assert computed(scores) is None
                continue
            assert looked(way.steps) == computed(scores)
            others = [{k: v for k, v in scores.items() if k != site} for site in scores] if sites > 1 else []
            assert [looked(steps) for steps in way.without] == [computed(part) for part in others]
            assert [looked(steps) for steps in alone(scores)] == [computed({k: v}) for k, v in scores.items()]


def test_importance_and_ratios_are_those_of_choose_cut() -> None:
    scores = {"a": {"x": 1.0, "y": 2.0, "z": 10.0}, "b": {"x": 3.0, "y": 0.1, "z": 9e3}}
    ways: dict[str, Any] = {"num_examples": {"a": 1, "b": 9}, "client_weight": "samples", "normalise": "first_layer"}
    shown = combined(scores, ways["num_examples"])["first_layer", "samples"]
    assert isinstance(shown, CombinedSites)
    python = combine_sites(scores, **ways)
    assert (list(shown.importance), list(shown.warnings)) == (list(python.importance.values()), python.warnings)
    for rule, ratios in shown.ratios.items():
        assert ratios == choose_cut(scores, rule=rule, **ways).ratios  # type: ignore[arg-type]


def test_scores_that_cannot_be_combined_say_why() -> None:
    (reason,) = set(combined({"a": {"x": math.nan, "y": 1.0}}, {"a": 3}).values())
    assert "no site has usable layer scores" in str(reason)


def test_a_job_whose_server_knows_only_combined_scores_shows_its_layers() -> None:
    run = made_up(scores_of_layers=dict.fromkeys(SITES, (1.0, 2.0, 90.0)))
    job = replace(run, layers={**run.layers, "profiles": {}})
    report = build_report(Collected([job]))
    assert [one.sentences for one in answers(report) if one.question == "Which layers are shared?"] == [
        ("On digits, PLayer-FL shares conv1 and conv2 (25.0 % of the parameters) and keeps fc private.",)
    ]
    shown = payload(report)["whatIf"]["digits"]["runs"][0]
    whole = payload(build_report(Collected([run])))["whatIf"]["digits"]["runs"][0]
    assert shown["sites"] == whole["sites"] == 3
    assert shown["combined"]["none mean"] == {**whole["combined"]["none mean"], "without": []}
    assert (shown["alone"], shown["profiles"]) == ([], [])
    assert "only as they were combined" in shown["combined"]["first_layer mean"]


@pytest.mark.parametrize(
    "importance",
    [{}, {"conv1": math.nan, "conv2": 1.0, "fc": 1.0}, {"conv1": 1.0}, {"other": 1.0, "conv2": 1.0, "fc": 9.0}],
)
def test_scores_that_say_nothing_are_not_drawn(importance: dict[str, float]) -> None:
    run = made_up(scores_of_layers=dict.fromkeys(SITES, (1.0, 2.0, 90.0)))
    decision = {**run.layers["decision"], "importance": importance}
    job = replace(run, layers={**run.layers, "profiles": {}, "decision": decision})
    assert build_report(Collected([job])).layer_scores == []
