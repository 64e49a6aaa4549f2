"""From layer scores to a cut: the rules, the edge cases and the invariants of the specification."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from playerfl.errors import LayerError
from playerfl.layers.cut import Cut, CutRule, choose_cut, cut_ratios, transition_point

RATIO_RULES: list[CutRule] = ["layer_ratio", "cumulative_ratio"]
RULES: list[CutRule] = [*RATIO_RULES, "max_jump"]

scores = st.lists(st.just(0.0) | st.floats(1e-6, 1e6), min_size=1, max_size=8).filter(any)
thresholds = st.floats(1, 1e4)
rules = st.sampled_from(RULES)


def named(*values: float) -> dict[str, float]:
    return {f"layer{i}": value for i, value in enumerate(values, start=1)}


def cut_of(*values: float, rule: CutRule = "layer_ratio", threshold: float | None = None) -> int:
    return transition_point(named(*values), rule, threshold).index


PROFILE = (1.0, 0.1, 0.1, 50.0, 10.0)


@pytest.mark.parametrize(
    ("rule", "thresholds", "cut"),
    [
        ("cumulative_ratio", (1.1, 1.2, 1.6, 3.5, 10.0, 41.99), 3),
        ("cumulative_ratio", (1.0, 1.09), 1),
        ("cumulative_ratio", (42.7, 43.0), 5),
        ("layer_ratio", (1.0, 3.5, 499.0), 3),
    ],
)
def test_every_threshold_in_a_range_gives_the_same_cut(rule: CutRule, thresholds: tuple[float, ...], cut: int) -> None:
    assert {cut_of(*PROFILE, rule=rule, threshold=threshold) for threshold in thresholds} == {cut}


def test_the_ratios_are_those_of_the_specification() -> None:
    assert cut_ratios(named(*PROFILE), "cumulative_ratio") == pytest.approx((1.1, 1.09, 42.7, 1.2), abs=0.05)
    assert cut_ratios(named(*PROFILE), "layer_ratio") == pytest.approx((0.1, 1.0, 500.0, 0.2))


@pytest.mark.parametrize(("rule", "threshold"), [("layer_ratio", 3.5), ("cumulative_ratio", 1.6), ("max_jump", None)])
def test_default_thresholds(rule: CutRule, threshold: float | None) -> None:
    assert transition_point(named(*PROFILE), rule).threshold == threshold
    assert transition_point(named(*PROFILE)).rule == "layer_ratio"


@pytest.mark.parametrize(
    ("values", "cut"),
    [((1, 2, 8, 16), 2), ((1, 3, 9), 1), ((5, 4, 3), 1), ((3, 2, 2), 2), ((0, 1, 2, 8), 3), ((4, 0, 8, 9), 2)],
    ids=["largest", "first of equals", "largest fall", "flat is a jump among falls", "leading zero", "zero between"],
)
def test_max_jump_takes_the_largest_ratio(values: tuple[float, ...], cut: int) -> None:
    assert cut_of(*values, rule="max_jump") == cut


def test_cut_names_the_federated_and_the_personal_layers() -> None:
    cut = transition_point(named(*PROFILE))
    assert cut.federated == ("layer1", "layer2", "layer3")
    assert cut.personal == ("layer4", "layer5")


@pytest.mark.parametrize("fixed", [0, 1, 5])
def test_a_fixed_cut_is_taken_as_given(fixed: int) -> None:
    cut = transition_point(named(*PROFILE), "fixed", fixed=fixed)
    assert (cut.index, len(cut.federated)) == (fixed, fixed)


@pytest.mark.parametrize("fixed", [None, -1, 6])
def test_a_fixed_cut_outside_the_model_is_refused(fixed: int | None) -> None:
    with pytest.raises(LayerError, match=f"between 0 and 5, not {fixed}"):
        transition_point(named(*PROFILE), "fixed", fixed=fixed)


# The table of edge cases.


@pytest.mark.parametrize(("policy", "cut"), [("all", 3), ("all_but_last", 2)])
@pytest.mark.parametrize("rule", RATIO_RULES)
def test_without_a_transition_the_policy_decides_and_says_so(rule: CutRule, policy: str, cut: int) -> None:
    chosen = transition_point(named(1, 0.1, 0.1), rule, on_no_transition=policy)  # type: ignore[arg-type]
    assert chosen.index == cut
    assert any("no clear transition" in warning for warning in chosen.warnings)


@pytest.mark.parametrize("rule", RATIO_RULES)
def test_without_a_transition_everything_is_federated_or_an_error_names_the_remedy(rule: CutRule) -> None:
    assert cut_of(1, 0.1, 0.1, rule=rule) == 3
    with pytest.raises(LayerError, match=r"no clear transition: .* lower the threshold or set on_no_transition"):
        transition_point(named(1, 0.1, 0.1), rule, on_no_transition="error")


@pytest.mark.parametrize(
    ("rule", "values", "cut"),
    [
        ("cumulative_ratio", (0, 0, 1, 1, 9), 3),
        ("cumulative_ratio", (0, 0, 5), 3),
        ("layer_ratio", (0, 0, 1, 1, 9), 4),
        ("layer_ratio", (0, 0, 5), 3),
        ("max_jump", (0, 0, 5), 3),
    ],
)
def test_leading_zeros_are_not_a_jump(rule: CutRule, values: tuple[float, ...], cut: int) -> None:
    assert cut_of(*values, rule=rule) == cut


@pytest.mark.parametrize(("values", "cut"), [((2, 0, 6.9), 3), ((2, 0, 7.1), 2), ((2, 0, 0, 7.1), 3)])
def test_after_a_zero_the_comparison_is_with_the_last_layer_that_scored(values: tuple[float, ...], cut: int) -> None:
    assert cut_of(*values, threshold=3.5) == cut


@pytest.mark.parametrize("rule", ["layer_ratio", "max_jump"])
def test_the_reason_names_the_layer_that_was_compared_with(rule: CutRule) -> None:
    reason = transition_point(named(2, 0, 40), rule).reason
    assert "layer2" not in reason
    assert "20" in reason


@pytest.mark.parametrize(("rule", "values"), [("layer_ratio", (1, 3.5)), ("cumulative_ratio", (1, 2.5))])
def test_equality_with_the_threshold_is_not_a_transition(rule: CutRule, values: tuple[float, ...]) -> None:
    assert cut_of(*values, rule=rule, threshold=3.5) == 2
    assert cut_of(*values, rule=rule, threshold=math.nextafter(3.5, 0)) == 1


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("value", [0.0, 1.0])
def test_a_single_layer_is_federated_without_a_warning(rule: CutRule, value: float) -> None:
    cut = transition_point(named(value), rule)
    assert (cut.index, cut.warnings) == (1, ())


@pytest.mark.parametrize(
    ("rule", "threshold"), [("cumulative_ratio", 0.99), ("layer_ratio", -0.1), ("layer_ratio", math.nan)]
)
def test_an_invalid_threshold_is_refused(rule: CutRule, threshold: float) -> None:
    with pytest.raises(LayerError, match=f"threshold {threshold} is not allowed for {rule}"):
        transition_point(named(1, 2), rule, threshold)


def test_a_threshold_below_one_is_allowed_for_the_layer_rule() -> None:
    assert cut_of(4, 1, 0.9, threshold=0.5) == 2


@given(scores, rules, thresholds)
def test_a_cut_is_within_bounds(values: list[float], rule: CutRule, threshold: float) -> None:
    assert 1 <= cut_of(*values, rule=rule, threshold=threshold) <= len(values)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -1.0])
def test_invalid_scores_are_refused(bad: float) -> None:
    with pytest.raises(LayerError, match="finite and non-negative"):
        transition_point(named(1, bad))


def test_no_layers_are_refused() -> None:
    with pytest.raises(LayerError, match="no layers"):
        transition_point({})


@pytest.mark.parametrize("options", [{"rule": "layer_ration"}, {"on_no_transition": "every"}])
def test_unknown_options_are_refused_with_what_is_allowed(options: dict[str, str]) -> None:
    with pytest.raises(LayerError, match=r"unknown .* allowed: "):
        transition_point(named(1, 2), **options)  # type: ignore[arg-type]


# Invariants.


@given(scores, st.sampled_from(RATIO_RULES), thresholds, thresholds)
def test_a_larger_threshold_never_federates_fewer_layers(
    values: list[float], rule: CutRule, one: float, other: float
) -> None:
    low, high = sorted((one, other))
    assert cut_of(*values, rule=rule, threshold=low) <= cut_of(*values, rule=rule, threshold=high)


@given(scores, rules, thresholds, st.integers(-60, 60))
def test_the_scale_of_all_scores_does_not_matter(
    values: list[float], rule: CutRule, threshold: float, power: int
) -> None:
    # Powers of two, so that no ratio is rounded across the threshold.
    scaled = [value * 2.0**power for value in values]
    assert cut_of(*scaled, rule=rule, threshold=threshold) == cut_of(*values, rule=rule, threshold=threshold)


@given(scores, thresholds)
def test_the_printed_rule_is_the_first_rise_of_the_running_sum(values: list[float], threshold: float) -> None:
    sums = [math.fsum(values[: i + 1]) for i in range(len(values))]
    jumps = [p for p, (here, after) in enumerate(pairwise(sums), 1) if here > 0 and after / here > threshold * 1.001]
    cut = cut_of(*values, rule="cumulative_ratio", threshold=threshold)
    assert cut <= min(jumps, default=len(values))
    assert cut == len(values) or sums[cut] / sums[cut - 1] > threshold * 0.999


# Warnings.


@pytest.mark.parametrize(("ratio", "close"), [(3.1, False), (3.2, True), (3.8, True), (3.9, False)])
def test_a_decisive_ratio_within_a_tenth_of_the_threshold_is_a_close_call(ratio: float, close: bool) -> None:
    warnings = transition_point(named(1, ratio, 1000), threshold=3.5).warnings
    assert any(w.startswith("close call at layer2") for w in warnings) is close


def test_a_boundary_after_the_cut_is_not_a_close_call() -> None:
    assert transition_point(named(1, 10, 35)).warnings == ()


def test_an_infinite_threshold_shares_everything_and_is_not_a_close_call() -> None:
    cut = transition_point(named(*PROFILE), threshold=math.inf)
    assert cut.index == 5
    assert not any("close call" in warning for warning in cut.warnings)


# From sites to one cut.

CLOSE, FAR = named(1, 10, 10, 10), named(1, 1, 1, 10)


def scaled(importance: dict[str, float], by: float) -> dict[str, float]:
    return {layer: value * by for layer, value in importance.items()}


def test_one_site_with_huge_gradients_decides_unless_sites_are_normalised() -> None:
    sites = {"loud": scaled(CLOSE, 1e6), **{f"quiet {i}": FAR for i in range(9)}}
    assert choose_cut(sites).index == 1
    assert choose_cut(sites, normalise="first_layer").index == 3


@pytest.mark.parametrize("normalise", ["none", "first_layer"])
def test_a_cut_that_depends_on_the_normalisation_is_warned_about(normalise: str) -> None:
    sites = {"loud": scaled(CLOSE, 1e6), **{f"quiet {i}": FAR for i in range(9)}}
    warnings = choose_cut(sites, normalise=normalise).warnings  # type: ignore[arg-type]
    other = {"none": "first_layer", "first_layer": "none"}[normalise]
    assert any(f"with normalise='{other}' the cut would be" in warning for warning in warnings)


def test_sites_that_agree_raise_no_warning() -> None:
    assert choose_cut({"a": FAR, "b": scaled(FAR, 2)}).warnings == ()


def test_the_second_opinion_never_raises() -> None:
    sites = {"loud": scaled(named(1, 10), 1e6), **{f"quiet {i}": named(1, 1) for i in range(9)}}
    assert choose_cut(sites, on_no_transition="error").index == 1


def test_a_site_that_is_left_out_is_warned_about_in_the_cut() -> None:
    cut = choose_cut({"dead": scaled(FAR, 0), "good": FAR})
    assert cut.index == 3
    assert any(warning.startswith("dead is left out") for warning in cut.warnings)


@given(st.integers(-40, 40), rules, st.sampled_from(["none", "first_layer", "last"]))
def test_the_scale_of_all_sites_changes_nothing(power: int, rule: CutRule, normalise: str) -> None:
    sites = {"a": CLOSE, "b": FAR, "c": named(3, 1, 4, 1)}
    loud = {site: scaled(importance, 2.0**power) for site, importance in sites.items()}
    options = {"rule": rule, "normalise": normalise}
    assert choose_cut(loud, **options).index == choose_cut(sites, **options).index  # type: ignore[arg-type]


def test_samples_can_weigh_the_sites() -> None:
    sites, sizes = {"a": CLOSE, "b": named(1, 1, 1, 1)}, {"a": 1, "b": 99}
    assert choose_cut(sites, num_examples=sizes).index == 1
    assert choose_cut(sites, num_examples=sizes, client_weight="samples").index == 4


def test_the_median_ignores_one_outlier() -> None:
    sites = {"loud": scaled(CLOSE, 1e6), "b": FAR, "c": FAR}
    assert choose_cut(sites, reduce="median").index == 3


def test_a_cut_as_json_is_complete() -> None:
    written = transition_point(named(1, 9)).to_json()
    assert written["federated"] == ["layer1"]
    assert written["federation_sensitivity"] == {"layer1": 1.0, "layer2": 10.0}
    assert set(written) >= set(Cut.__dataclass_fields__) - {"layers"}
