"""The evidence for a cut, from stored scores alone."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from playerfl.errors import LayerError
from playerfl.layers.cut import CutRule, transition_point
from playerfl.layers.recommend import recommend
from playerfl.layers.sensitivity import Profile

LAYERS = ("a", "b", "c", "d")
CLEAR = ((1.0, 0.5, 40.0, 60.0), (1.1, 0.6, 44.0, 50.0), (0.9, 0.4, 42.0, 70.0))


def site(*rows: tuple[float, ...], sizes: tuple[int, ...] | None = None, weigh: bool = False) -> Profile:
    return Profile(LAYERS[: len(rows[0])], rows, sizes or (8,) * len(rows), 8 * len(rows), weigh)


def scaled(profile: Profile, factor: float) -> Profile:
    return site(*(tuple(factor * value for value in row) for row in profile.batches))


def test_a_jump_at_every_site_is_clear() -> None:
    recommendation = recommend({"north": site(*CLEAR), "south": scaled(site(*CLEAR), 2.0)})
    assert recommendation.cut.federated == ("a", "b")
    assert recommendation.verdict == "clear"
    assert recommendation.doubts == ()
    assert recommendation.agreement == 1.0
    assert recommendation.without_site == recommendation.site_alone == {"north": 2, "south": 2}
    assert recommendation.dominating is None
    assert recommendation.rules == {"layer_ratio": 2, "cumulative_ratio": 2, "max_jump": 2}


@given(
    st.lists(st.just(0.0) | st.floats(1e-6, 100.0), min_size=2, max_size=6).filter(any),
    st.sampled_from(["layer_ratio", "cumulative_ratio"]),
    st.floats(1.0, 50.0),
    st.floats(1.0, 50.0),
)
def test_the_staircase_of_thresholds_is_what_the_rule_gives(
    values: list[float], rule: CutRule, used: float, asked: float
) -> None:
    """No scanning: every threshold's cut can be read off the steps of any other threshold's recommendation."""
    names = [str(i) for i in range(len(values))]
    profile = Profile(tuple(names), (tuple(values),), (8,), 8)
    recommendation = recommend(profile, rule=rule, threshold=used, resamples=0)
    (step,) = [step for step in recommendation.thresholds if step.low <= asked < step.high]
    assert step.cut == transition_point(dict(zip(names, values, strict=True)), rule, asked).index
    low, high = recommendation.interval or (math.nan, math.nan)
    assert low <= used < high


def test_the_interval_ends_at_the_ratios() -> None:
    recommendation = recommend(site((1.0, 2.0, 40.0, 10.0)))
    assert recommendation.interval == (2.0, 20.0)
    assert [(step.low, step.high, step.cut) for step in recommendation.thresholds] == [
        (0.0, 2.0, 1), (2.0, 20.0, 2), (20.0, math.inf, 4),
    ]  # fmt: skip


def test_the_next_best_cut_needs_the_least_change() -> None:
    near_below = recommend(site((1.0, 3.0, 60.0, 10.0)))
    assert near_below.next_best is not None
    assert near_below.next_best.cut == 1
    assert "below 3" in near_below.next_best.reason
    near_above = recommend(site((1.0, 0.1, 0.5, 10.0)))
    assert near_above.next_best is not None
    assert near_above.next_best.cut == 3
    by_jump = recommend(site((1.0, 0.1, 0.5, 10.0)), rule="max_jump")
    assert (by_jump.cut.index, by_jump.next_best and by_jump.next_best.cut) == (3, 2)
    assert by_jump.interval is None


@pytest.mark.parametrize("rule", ["layer_ratio", "cumulative_ratio", "max_jump"])
def test_a_flat_profile_is_no_clear_transition(rule: CutRule) -> None:
    threshold = 10.0 if rule != "max_jump" else None
    recommendation = recommend({"x": site(*[(1.0, 1.1, 0.9, 1.2)] * 3)}, rule=rule, threshold=threshold)
    assert recommendation.verdict == "no clear transition"


def test_batches_that_disagree_raise_a_doubt() -> None:
    noisy = site((1.0, 0.1, 30.0, 30.0), (1.0, 9.0, 30.0, 60.0), (1.0, 0.1, 30.0, 30.0), (1.0, 5.0, 30.0, 60.0))
    recommendation = recommend({"x": noisy}, threshold=3.5)
    assert recommendation.bootstrap.keys() == {1, 2}
    assert sum(recommendation.bootstrap.values()) == pytest.approx(1.0)
    assert recommendation.verdict == "doubtful"
    assert any("of resampled batches give this cut" in doubt for doubt in recommendation.doubts)


@pytest.mark.slow
def test_the_bootstrap_is_the_same_every_time_and_measures_chance() -> None:
    noisy = site(*[(1.0, 0.1 if i % 2 else 7.0, 30.0, 60.0) for i in range(8)])
    first, again, other = (recommend(noisy, seed=seed).bootstrap for seed in (0, 0, 1))
    assert first == again
    assert first != other
    # The mean of b is above 3.5 where more than half of the eight batches drawn are loud: 1 - P(Bin(8, ½) ≤ 3) …
    loud_needed = next(k for k in range(9) if (k * 7.0 + (8 - k) * 0.1) / 8 > 3.5)
    expected = sum(math.comb(8, k) for k in range(loud_needed, 9)) / 2**8
    assert recommend(noisy, resamples=4000).bootstrap[1] == pytest.approx(expected, abs=0.03)


def test_batches_are_resampled_with_their_weights() -> None:
    weighed = site((1.0, 0.1, 30.0, 60.0), (1.0, 9.0, 30.0, 60.0), sizes=(1000, 1), weigh=True)
    assert recommend(weighed).bootstrap[2] == pytest.approx(0.75, abs=0.05)


def test_one_measurement_cannot_be_resampled() -> None:
    recommendation = recommend({"x": site((1.0, 0.1, 30.0, 60.0))})
    assert recommendation.bootstrap == {}
    assert recommendation.agreement is None
    assert recommendation.verdict == "doubtful"
    assert recommendation.doubts == ("it rests on a single measurement, so nothing shows how much of it is chance",)


def test_a_site_that_supplies_nearly_everything_is_named() -> None:
    recommendation = recommend({"loud": scaled(site(*CLEAR), 100.0), "quiet": site(*CLEAR)})
    assert recommendation.dominating == "loud"
    assert recommendation.verdict == "doubtful"
    assert any("loud alone supplies 99%" in doubt for doubt in recommendation.doubts)


@pytest.mark.parametrize("remedy", [{"normalise": "first_layer"}, {"normalise": "last"}, {"reduce": "median"}], ids=str)
def test_normalising_stops_a_site_with_large_scores_from_dominating(remedy: dict[str, Any]) -> None:
    recommendation = recommend({"loud": scaled(site(*CLEAR), 100.0), "quiet": site(*CLEAR)}, **remedy)
    assert recommendation.shares == pytest.approx({"loud": 0.5, "quiet": 0.5})
    assert (recommendation.dominating, recommendation.verdict) == (None, "clear")


def test_a_site_without_which_the_cut_moves_is_named() -> None:
    early = site(*[(1.0, 30.0, 30.0, 30.0)] * 3)
    late = site(*[(1.0, 1.0, 1.0, 9.0)] * 3)
    recommendation = recommend({"early": early, "late": late, "other": late})
    assert recommendation.cut.index == 1
    assert recommendation.without_site["early"] == 3
    assert recommendation.dominating == "early"
    assert any("without early the cut would be after layer 3" in doubt for doubt in recommendation.doubts)
    assert recommendation.site_alone == {"early": 1, "late": 3, "other": 3}


def test_seeds_are_compared_and_pooled() -> None:
    first, second = {"x": site(*CLEAR)}, {"x": site(*[(1.0, 40.0, 40.0, 40.0)] * 3)}
    recommendation = recommend([first, second])
    assert recommendation.by_seed == (2, 1)
    assert any("seeds disagree: they cut after layers 2, 1" in doubt for doubt in recommendation.doubts)
    assert recommendation.importance["x"]["b"] == pytest.approx((0.5 + 0.6 + 0.4 + 120.0) / 6)


def test_normalisations_that_disagree_raise_a_doubt() -> None:
    loud, quiet = site(*[(1e3, 1e3, 1e3, 9e4)] * 2), site(*[(1.0, 50.0, 50.0, 50.0)] * 2)
    recommendation = recommend({"loud": loud, "quiet": quiet})
    assert recommendation.normalisations["none"] == 3
    assert recommendation.normalisations["first_layer"] == 1
    assert any("relative to its first layer the cut would be after layer 1" in doubt for doubt in recommendation.doubts)


def test_a_close_call_is_a_doubt() -> None:
    recommendation = recommend({"x": site(*[(1.0, 1.0, 3.6, 9.0)] * 3)})
    assert any("within 10 % of the threshold 3.5" in doubt for doubt in recommendation.doubts)


def test_rules_that_cut_elsewhere_are_a_doubt_and_alternatives() -> None:
    recommendation = recommend({"x": site(*[(1.0, 1.0, 10.0, 1000.0)] * 3)})
    assert recommendation.verdict == "doubtful"
    assert recommendation.doubts == (
        "the rules disagree: cumulative_ratio cuts after layer 1, max_jump cuts after layer 3",
    )
    assert recommendation.alternatives == (1, 3)
    assert "other cuts with evidence: after layer 1, 3" in str(recommendation)


def test_a_jump_within_its_spread_over_sites_and_seeds_is_a_doubt() -> None:
    even = {"north": site(*CLEAR), "south": site(*CLEAR)}
    assert recommend(even).jumps == pytest.approx((84.0, 84.0))
    uneven = {"north": site(*CLEAR), "south": site((1.0, 0.5, 0.001, 60.0), (1.0, 0.5, 0.001, 60.0))}
    recommendation = recommend(uneven)
    assert recommendation.cut.index == 2
    assert any("within its spread over sites and seeds: from 0.002-fold to 84-fold" in d for d in recommendation.doubts)
    assert recommendation.verdict == "doubtful"


def test_json_is_complete_and_valid() -> None:
    net = nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 1))
    profile = Profile(("0", "1"), ((1.0, 9.0),), (8,), 8)
    content = json.loads(json.dumps(recommend({"x": profile.to_json()}, net).to_json(), allow_nan=False))
    assert content["cut"]["federated"] == ["0"]
    assert content["threshold_interval"] == [0.0, 9.0]
    assert content["meaning"]["bytes_per_round"] == 36
    assert content["export"]["flower_state_dict_keys"] == ["0.weight", "0.bias"]
    assert recommend(profile, threshold=100.0).to_json()["threshold_interval"] == [9.0, None]


def test_layers_are_matched_to_the_model_by_name() -> None:
    net = nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 1))
    backwards = Profile(("1", "0"), ((1.0, 9.0),), (8,), 8)
    recommendation = recommend(backwards, net)
    assert recommendation.summary is not None
    assert recommendation.summary.federated_keys == ("1.weight", "1.bias")
    with pytest.raises(LayerError, match="give the model that was measured"):
        recommend(Profile(("x", "y"), ((1.0, 9.0),), (8,), 8), net)


def test_a_site_without_usable_scores_is_left_out_of_the_evidence() -> None:
    recommendation = recommend({"ok": site(*CLEAR), "nan": site((math.nan, 1.0, 1.0, 1.0)), "also": site(*CLEAR)})
    assert recommendation.without_site.keys() == {"ok", "also"}
    assert recommendation.verdict == "doubtful"
    assert "nan is left out: its scores are not finite or all zero" in recommendation.doubts


@pytest.mark.parametrize(
    ("profiles", "sentence"),
    [
        ({}, "there are no layer scores"),
        ([], "there are no layer scores"),
        ({"x": {"batches": [[1.0]]}}, "x: these are not a site's layer scores"),
        ({"x": 3}, "x: a Profile is needed"),
        (
            {"x": {"layers": ["a"], "batches": [[1.0, 2.0]], "batch_sizes": [1], "num_examples": 1}},
            "one number per layer",
        ),
        ({"x": site((1.0, 2.0)), "y": site((1.0, 2.0, 3.0))}, "y and x score different layers"),
        ([{"x": site((1.0, 2.0))}, {"y": site((1.0, 2.0))}], "every seed needs the same sites"),
    ],
    ids=["no sites", "no seeds", "half a profile", "a number", "ragged", "other layers", "other sites"],
)
def test_anything_but_a_profile_is_refused(profiles: object, sentence: str) -> None:
    with pytest.raises(LayerError, match=sentence):
        recommend(profiles)  # type: ignore[arg-type]


@pytest.mark.parametrize("rule", ["layer_ratio", "cumulative_ratio", "max_jump"])
def test_two_jumps_of_the_same_size_are_not_clear(rule: CutRule) -> None:
    """The rules agreed, but which of two equal jumps is the larger was chance."""
    equal = site((1.0, 10.0, 100.0, 120.0), (1.1, 11.5, 110.0, 130.0))
    recommendation = recommend({"north": equal, "south": scaled(equal, 2.0)}, rule=rule)
    assert set(recommendation.rules.values()) == {1}
    assert recommendation.verdict == "doubtful"
    assert recommendation.doubts == ("the jump at c, 9.77-fold, is within 10 % of the largest",)
    assert recommendation.alternatives == (2,)


def test_a_layer_that_trains_without_a_gradient_is_a_doubt() -> None:
    """Not so a frozen layer, which cannot have one."""
    net = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2), nn.Linear(2, 1))
    dead = Profile(("0", "1", "2"), ((0.0, 1.0, 40.0), (0.0, 1.1, 42.0)), (8, 8), 16)
    recommendation = recommend({"north": dead, "south": dead}, net)
    assert recommendation.verdict == "doubtful"
    assert recommendation.doubts == ("0 had no gradient, so the score does not say where it belongs",)
    net[0].requires_grad_(False)
    assert recommend({"north": dead, "south": dead}, net).verdict == "clear"


def test_a_fixed_rule_is_refused() -> None:
    with pytest.raises(LayerError, match="needs no evidence"):
        recommend(site(*CLEAR), rule="fixed")
    with pytest.raises(LayerError, match="resamples must be at least 0"):
        recommend(site(*CLEAR), resamples=-1)


def test_a_single_layer_has_no_transition() -> None:
    recommendation = recommend(Profile(("only",), ((1.0,),), (8,), 8))
    assert (recommendation.cut.index, recommendation.verdict) == (1, "no clear transition")


@pytest.mark.parametrize("threshold", ["3", True, [3.5]], ids=["text", "truth value", "list"])
def test_a_threshold_must_be_a_number(threshold: object) -> None:
    with pytest.raises(LayerError, match=r"threshold must be a number such as 3\.5, not "):
        recommend(site(*CLEAR), threshold=threshold)  # type: ignore[arg-type]


def test_batches_without_a_score_count_only_where_they_are_drawn_with_others() -> None:
    """LoRA's B starts at zero, so that the first batch scores nothing; a resample may consist of it alone."""
    none = (0.0, 0.0, 0.0, 0.0)
    recommendation = recommend({"north": site(none, CLEAR[0])}, resamples=200)
    assert recommendation.cut.index == 2
    assert recommendation.bootstrap == {2: 1.0}
    seeds = [{"north": site(none, none)}, {"north": site(*CLEAR)}]
    assert recommend(seeds, resamples=50).by_seed == (2,)


@pytest.mark.parametrize(
    ("rows", "reason"),
    [
        (((0.0, 0.0),), "all of them are zero.*measure more than one batch"),
        (((math.nan, 1.0),), "not finite.*smaller learning rate"),
    ],
)
def test_scores_of_no_use_are_refused_with_the_reason(rows: tuple[tuple[float, ...], ...], reason: str) -> None:
    with pytest.raises(LayerError, match=reason):
        recommend({"north": site(*rows)})


def test_without_a_jump_to_compare_max_jump_is_not_clear() -> None:
    recommendation = recommend(site(*[(0.0, 0.0, 40.0)] * 2), rule="max_jump")
    assert (recommendation.verdict, recommendation.cut.index) == ("no clear transition", 3)


def test_two_equal_jumps_are_alternatives() -> None:
    recommendation = recommend(
        {"x": site(*[(1.0, 10.0, 99.0)] * 2), "y": site(*[(1.0, 10.0, 99.0)] * 2)}, rule="max_jump"
    )
    assert recommendation.verdict == "doubtful"
    assert recommendation.alternatives == (2,)
    assert "9.9-fold, is within 10 % of the largest" in recommendation.doubts[0]


def test_a_close_call_names_the_other_cut() -> None:
    recommendation = recommend(site(*[(1.0, 3.6, 3.6, 3.6)] * 2))
    assert recommendation.verdict == "doubtful"
    assert 4 in recommendation.alternatives


def test_a_site_without_a_score_after_the_cut_is_spread_and_one_left_out_is_not() -> None:
    dead, good = site(*[(1.0, 0.5, 0.0)] * 2), site(*[(1.0, 0.5, 40.0)] * 2)
    jumps = recommend({"dead": dead, "north": good, "south": good})
    assert any("within its spread over sites and seeds: from 0-fold to 80-fold" in doubt for doubt in jumps.doubts)
    assert 3 in jumps.alternatives
    lost = recommend({"lost": site((math.nan, 1.0, 1.0)), "north": good, "south": good})
    assert lost.jumps == (80.0, 80.0)


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_scores_that_are_not_finite_are_null_in_json(value: float) -> None:
    content = recommend({"a": site((value, 1.0, 9.0)), "b": site(*[(1.0, 0.5, 40.0)] * 2)}).to_json()
    assert json.loads(json.dumps(content, allow_nan=False))["sites"]["a"]["a"] is None


@pytest.mark.parametrize("sites", [1, 2])
def test_scores_too_large_to_add_are_one_sentence(sites: int) -> None:
    huge = site((1e308, 1e308, 1.7e308)) if sites == 1 else site((1.0, 1.0, 1.7e308))
    with pytest.raises(LayerError, match="finite"):
        recommend({str(i): huge for i in range(sites)})
