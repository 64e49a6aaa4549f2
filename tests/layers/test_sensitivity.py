"""The metric in numbers that can be checked by hand, and the properties it must have."""

from __future__ import annotations

import math
from collections.abc import Mapping

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from playerfl.errors import LayerError
from playerfl.layers.layer_map import LayerMap
from playerfl.layers.sensitivity import Profile, ScoreRecorder, combine_sites, federation_sensitivity, layer_importance

# x = 1, 2, 3 → h = 2x + 1 = 3, 5, 7 → o = 3h - 1 = 8, 14, 20 against y = 7, 14, 22: residuals r = 1, 0, -2.
# f = mean r².  ∂f/∂w2 = ⅔ Σ r h = -22/3,  ∂f/∂b2 = ⅔ Σ r = -⅔,  ∂f/∂w1 = 3 · ⅔ Σ r x = -10,  ∂f/∂b1 = 3 · ⅔ Σ r = -2.
WEIGHTS = {"0.weight": 2.0, "0.bias": 1.0, "1.weight": 3.0, "1.bias": -1.0}
PENCIL = {"0": ((2 * -10) ** 2 + (1 * -2) ** 2) / 2, "1": ((3 * -22 / 3) ** 2 + (-1 * -2 / 3) ** 2) / 2}
PENCIL_WITHOUT_BIAS = {"0": 400.0, "1": 484.0}

score = st.floats(0, 1e6)
positive = st.floats(1e-6, 1e6)


def pencil_net() -> nn.Sequential:
    net = nn.Sequential(nn.Linear(1, 1), nn.Linear(1, 1)).double()
    with torch.no_grad():
        for name, parameter in net.named_parameters():
            parameter.fill_(WEIGHTS[name])
    return net


def pencil_gradients(net: nn.Module, scale: float = 1.0) -> dict[str, Tensor | None]:
    x, y = torch.tensor([[1.0], [2.0], [3.0]]).double(), torch.tensor([[7.0], [14.0], [22.0]]).double()
    (scale * (net(x) - y).square().mean()).backward()
    return {name: parameter.grad for name, parameter in net.named_parameters()}


def importance_of(net: nn.Module, **options: bool) -> dict[str, float]:
    return layer_importance(net.state_dict(), pencil_gradients(net), LayerMap.of(net), **options)


def one_layer_map(*entries: tuple[str, ...]) -> LayerMap:
    return LayerMap({f"layer {i}": names for i, names in enumerate(entries)}, {})


def test_layer_scores_equal_the_closed_form() -> None:
    assert importance_of(pencil_net()) == pytest.approx(PENCIL, rel=1e-12)


def test_the_parameters_themselves_may_be_given() -> None:
    net = pencil_net()
    gradients = pencil_gradients(net)
    # torch warns about a needless graph only once per process, which may be in another test.
    torch.set_warn_always(True)
    try:
        importance = layer_importance(dict(net.named_parameters()), gradients, LayerMap.of(net))
    finally:
        torch.set_warn_always(False)
    assert importance == pytest.approx(PENCIL, rel=1e-12)


def test_without_biases_only_weights_are_averaged() -> None:
    assert importance_of(pencil_net(), include_bias=False) == pytest.approx(PENCIL_WITHOUT_BIAS, rel=1e-12)


def test_biases_under_other_names_are_left_out_too() -> None:
    attention = nn.Sequential(nn.MultiheadAttention(2, 1))
    weights = {name: torch.ones_like(p) for name, p in attention.named_parameters()}
    gradients = {name: torch.full_like(p, float("bias" in name)) for name, p in attention.named_parameters()}
    assert layer_importance(weights, gradients, LayerMap.of(attention), include_bias=False) == {"0": 0.0}


@pytest.mark.parametrize("include_bias", [True, False])
def test_the_recorder_agrees_with_the_pure_function(include_bias: bool) -> None:
    net = pencil_net()
    recorder = ScoreRecorder(dict(net.named_parameters()), LayerMap.of(net), include_bias=include_bias)
    pencil_gradients(net)
    recorder.record(batch_size=3)
    importance = recorder.profile(3).importance
    assert importance == pytest.approx(PENCIL if include_bias else PENCIL_WITHOUT_BIAS, rel=1e-12)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_the_recorder_computes_in_float64_whatever_the_model_is(dtype: torch.dtype) -> None:
    weights = {"w": torch.tensor([0.011, 0.7], dtype=dtype)}
    gradients = {"w": torch.tensor([3e-4, -1e-5], dtype=dtype)}
    layers = one_layer_map(("w",))
    recorder = ScoreRecorder(weights, layers)
    recorder.record(gradients)
    expected = layer_importance(weights, gradients, layers)
    assert recorder.profile(1).importance == pytest.approx(expected, rel=1e-6, abs=0)


def test_tiny_scores_do_not_underflow() -> None:
    weights, gradients = {"w": torch.tensor([1e-3])}, {"w": torch.tensor([1e-22])}
    layers = one_layer_map(("w",))
    recorder = ScoreRecorder(weights, layers)
    recorder.record(gradients)
    assert recorder.profile(1).importance["layer 0"] == pytest.approx(1e-50, rel=1e-5, abs=0)
    assert layer_importance(weights, gradients, layers)["layer 0"] == pytest.approx(1e-50, rel=1e-5, abs=0)


@given(st.floats(1e-3, 1e3))
def test_scaling_the_loss_by_k_scales_scores_by_k_squared(k: float) -> None:
    net = pencil_net()
    importance = layer_importance(net.state_dict(), pencil_gradients(net, scale=k), LayerMap.of(net))
    assert importance == pytest.approx({layer: k**2 * s for layer, s in PENCIL.items()}, rel=1e-9)
    assert importance["1"] / importance["0"] == pytest.approx(PENCIL["1"] / PENCIL["0"], rel=1e-9)


@given(st.lists(st.tuples(st.floats(-10, 10), st.floats(-10, 10)), min_size=2, max_size=20), st.data())
def test_the_size_weighted_mean_of_two_halves_is_the_score_of_the_whole(
    scalars: list[tuple[float, float]], data: st.DataObject
) -> None:
    at = data.draw(st.integers(1, len(scalars) - 1))
    values = torch.tensor(scalars, dtype=torch.float64)
    weights = {"a": values[:at, 0], "b": values[at:, 0]}
    gradients = {"a": values[:at, 1], "b": values[at:, 1]}
    whole = layer_importance(weights, gradients, one_layer_map(("a", "b")))["layer 0"]
    first, second = layer_importance(weights, gradients, one_layer_map(("a",), ("b",))).values()
    assert (first * at + second * (len(scalars) - at)) / len(scalars) == pytest.approx(whole, rel=1e-12)


def test_scalars_of_all_tensors_of_a_layer_are_pooled() -> None:
    weights = {"large": torch.ones(9), "small": torch.ones(1)}
    gradients = {"large": torch.zeros(9), "small": torch.full((1,), 10.0)}
    assert layer_importance(weights, gradients, one_layer_map(("large", "small"))) == {"layer 0": 10.0}


@pytest.mark.parametrize("gradients", [{"a": torch.tensor([2.0]), "b": None}, {"a": torch.tensor([2.0])}])
def test_a_missing_gradient_adds_nothing_but_counts(gradients: Mapping[str, Tensor | None]) -> None:
    weights = {"a": torch.ones(1), "b": torch.ones(3)}
    layers = one_layer_map(("a", "b"))
    recorder = ScoreRecorder(weights, layers)
    recorder.record(gradients)
    assert layer_importance(weights, gradients, layers) == {"layer 0": 1.0}
    assert recorder.profile(1).importance == {"layer 0": 1.0}


def test_a_batch_without_any_gradient_scores_zero() -> None:
    recorder = ScoreRecorder({"a": torch.ones(2)}, one_layer_map(("a",)))
    recorder.record({})
    assert recorder.profile(1).importance == {"layer 0": 0.0}


def test_an_unused_branch_scores_zero() -> None:
    net = pencil_net()
    net.add_module("unused", nn.Linear(2, 2).double())
    layers = LayerMap.of(net)
    # The branch is not part of the forward pass, so autograd gives it no gradient.
    gradients = pencil_gradients(net[:2])
    assert layer_importance(net.state_dict(), gradients, layers)["unused"] == 0.0


def test_frozen_scalars_do_not_count_and_a_frozen_layer_scores_zero() -> None:
    net = pencil_net()
    net[0].requires_grad_(False)
    net[1].bias.requires_grad_(False)
    assert importance_of(net) == pytest.approx({"0": 0.0, "1": 484.0}, rel=1e-12)


def test_buffers_do_not_count() -> None:
    net = pencil_net()
    net[1].register_buffer("statistics", torch.ones(100).double())
    assert importance_of(net) == pytest.approx(PENCIL, rel=1e-12)


def test_nothing_recorded_is_refused() -> None:
    with pytest.raises(LayerError, match="nothing was measured"):
        ScoreRecorder({"a": torch.ones(1)}, one_layer_map(("a",))).profile(1)


@given(st.lists(score, min_size=1, max_size=8))
def test_federation_sensitivity_never_falls(scores: list[float]) -> None:
    sums = list(federation_sensitivity({str(i): s for i, s in enumerate(scores)}).values())
    assert sums == sorted(sums)
    assert sums[0] == scores[0]
    assert sums[-1] == pytest.approx(math.fsum(scores))


@pytest.mark.parametrize(("weight_batches", "expected"), [(False, 3.0), (True, 2.0)])
def test_batches_count_the_same_or_by_their_size(weight_batches: bool, expected: float) -> None:
    profile = Profile(("x",), ((1.0,), (5.0,)), (9, 3), 12, weight_batches)
    assert profile.importance == {"x": expected}


SITES = {"a": {"x": 1.0, "y": 3.0}, "b": {"x": 3.0, "y": 3.0}, "c": {"x": 2.0, "y": 12.0}}


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, {"x": 2.0, "y": 6.0}),
        ({"normalise": "first_layer"}, {"x": 1.0, "y": (3 + 1 + 6) / 3}),
        ({"normalise": "last"}, {"x": (1 / 4 + 1 / 2 + 1 / 7) / 3, "y": (3 / 4 + 1 / 2 + 6 / 7) / 3}),
        ({"reduce": "median"}, {"x": 2.0, "y": 4.0}),
        ({"client_weight": "samples", "num_examples": {"a": 1, "b": 2, "c": 5}}, {"x": 17 / 8, "y": 69 / 8}),
    ],
    ids=["mean", "first layer", "last", "median of the sums", "by samples"],
)
def test_sites_are_combined_as_asked(options: dict[str, object], expected: dict[str, float]) -> None:
    assert combine_sites(SITES, **options).importance == pytest.approx(expected, rel=1e-12)  # type: ignore[arg-type]


def test_the_first_layer_norm_uses_the_first_layer_that_scores() -> None:
    combined = combine_sites({"a": {"x": 0.0, "y": 2.0, "z": 6.0}}, normalise="first_layer")
    assert combined.importance == {"x": 0.0, "y": 1.0, "z": 3.0}


@given(st.permutations("abcde"), st.sampled_from(["none", "first_layer", "last"]))
def test_the_order_of_sites_does_not_matter_by_a_bit(order: list[str], normalise: str) -> None:
    sites = {**SITES, "d": {"x": math.nan, "y": 1.0}, "e": {"x": 0.0, "y": 0.0}}
    combined = combine_sites({site: sites[site] for site in order}, normalise=normalise)  # type: ignore[arg-type]
    assert combined == combine_sites(sites, normalise=normalise)  # type: ignore[arg-type]


@given(st.dictionaries(st.text("abc", min_size=1, max_size=2), positive, min_size=1), positive)
def test_normalised_sites_forget_their_scale(scales: dict[str, float], jump: float) -> None:
    sites = {site: {"x": k, "y": k * jump} for site, k in scales.items()}
    combined = combine_sites(sites, normalise="first_layer").importance
    assert combined == pytest.approx({"x": 1.0, "y": jump}, rel=1e-9)


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), 0.0])
def test_a_site_without_usable_scores_is_left_out_with_a_warning(bad: float) -> None:
    combined = combine_sites({"bad": {"x": bad, "y": bad}, "good": {"x": 1.0, "y": 2.0}})
    assert combined.importance == {"x": 1.0, "y": 2.0}
    assert combined.warnings == ["bad is left out: its scores are not finite or all zero"]


@pytest.mark.parametrize("sites", [{"a": {"x": float("nan")}}, {"a": {"x": 0.0}, "b": {"x": float("inf")}}])
def test_no_usable_site_is_an_error_with_a_remedy(sites: dict[str, dict[str, float]]) -> None:
    with pytest.raises(LayerError, match=r"no site has usable .* try a smaller learning rate"):
        combine_sites(sites)


def test_layers_of_sites_are_matched_by_name() -> None:
    assert combine_sites({"a": {"x": 1.0, "y": 9.0}, "b": {"y": 9.0, "x": 1.0}}).importance == {"x": 1.0, "y": 9.0}


@pytest.mark.parametrize("other", [{"x": 1.0}, {"x": 1.0, "y": 1.0, "z": 1.0}], ids=["fewer", "more"])
def test_sites_with_other_layers_are_refused(other: dict[str, float]) -> None:
    with pytest.raises(LayerError):
        combine_sites({"a": {"x": 1.0, "y": 9.0}, "b": other})


@pytest.mark.parametrize(("large", "warned"), [(4.1, True), (3.9, False)])
def test_a_site_that_supplies_more_than_four_fifths_is_named(large: float, warned: bool) -> None:
    combined = combine_sites({"big": {"x": large / 2, "y": large / 2}, "small": {"x": 0.5, "y": 0.5}})
    sentence = "big alone supplies 80 % of the summed sensitivity and decides the cut"
    assert combined.warnings == ([sentence] if warned else [])


@pytest.mark.parametrize(
    "options",
    [{"client_weight": "samples", "num_examples": {"loud": 1, "quiet": 99, "still": 99}}, {"reduce": "median"}],
)
def test_a_site_with_large_scores_that_does_not_decide_is_not_named(options: dict[str, object]) -> None:
    sites = {"loud": {"x": 9.0}, "quiet": {"x": 1.0}, "still": {"x": 1.0}}
    assert combine_sites(sites, **options).warnings == []  # type: ignore[arg-type]


def test_a_single_site_does_not_dominate() -> None:
    assert combine_sites({"a": {"x": 1.0}}).warnings == []


@pytest.mark.parametrize(
    "options",
    [
        {"client_weight": "sample"},
        {"normalise": "first"},
        {"reduce": "sum"},
        {"client_weight": "samples"},
        {"client_weight": "samples", "num_examples": {"a": 1, "b": 1, "c": 1}, "reduce": "median"},
    ],
)
def test_unknown_or_contradicting_options_are_refused(options: dict[str, object]) -> None:
    with pytest.raises(LayerError, match="|".join(options)):
        combine_sites(SITES, **options)  # type: ignore[arg-type]
