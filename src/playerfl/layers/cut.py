"""Where to cut: from layer scores to the layers that are averaged and those that stay private."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from itertools import pairwise
from numbers import Real
from typing import Any, Literal

from typing_extensions import TypedDict

from playerfl.errors import LayerError
from playerfl.layers.layer_map import LayerName, check_choice
from playerfl.layers.sensitivity import (
    ClientWeight,
    Importance,
    Normalise,
    Reduce,
    combine_sites,
    federation_sensitivity,
)

CutRule = Literal["layer_ratio", "cumulative_ratio", "max_jump", "fixed"]
OnNoTransition = Literal["all", "all_but_last", "error"]
Ratios = tuple[float | None, ...]
"""The ratios that a rule compares at p = 1 … L-1; None if there is nothing to compare with."""

DEFAULT_THRESHOLDS = {"layer_ratio": 3.5, "cumulative_ratio": 1.6}
NEAR = 0.10
"""A ratio this close to the threshold is a close call."""


class CutRecord(TypedDict):
    """A cut as it is written to a file."""

    index: int
    federated: list[LayerName]
    personal: list[LayerName]
    rule: str
    threshold: float | None
    ratios: list[float | None]
    reason: str
    warnings: list[str]
    importance: dict[LayerName, float]
    federation_sensitivity: dict[LayerName, float]


@dataclass(frozen=True)
class Cut:
    """The decision: the first `index` layers are shared, the others stay private."""

    index: int
    layers: tuple[LayerName, ...]
    rule: str
    threshold: float | None
    ratios: Ratios
    reason: str
    warnings: tuple[str, ...] = ()
    importance: Mapping[LayerName, float] = field(default_factory=dict)

    @property
    def federated(self) -> tuple[LayerName, ...]:
        return self.layers[: self.index]

    @property
    def personal(self) -> tuple[LayerName, ...]:
        return self.layers[self.index :]

    def to_json(self) -> CutRecord:
        return {
            "index": self.index,
            "federated": list(self.federated),
            "personal": list(self.personal),
            "rule": self.rule,
            "threshold": self.threshold,
            "ratios": list(self.ratios),
            "reason": self.reason,
            "warnings": list(self.warnings),
            "importance": dict(self.importance),
            "federation_sensitivity": federation_sensitivity(self.importance) if self.importance else {},
        }

    @classmethod
    def from_json(cls, decision: Mapping[str, Any]) -> Cut:
        """The cut that `to_json` wrote."""
        return cls(
            index=decision["index"],
            layers=(*decision["federated"], *decision["personal"]),
            rule=decision["rule"],
            threshold=decision["threshold"],
            ratios=tuple(decision["ratios"]),
            reason=decision["reason"],
            warnings=tuple(decision["warnings"]),
            importance=decision["importance"],
        )


def transition_point(
    importance: Importance,
    rule: CutRule = "layer_ratio",
    threshold: float | None = None,
    *,
    on_no_transition: OnNoTransition = "all",
    fixed: int | None = None,
) -> Cut:
    """The first layer boundary at which sensitivity jumps.

    `layer_ratio`:       smallest p with s_{p+1} > t · s_p (against the last earlier layer with s > 0)
    `cumulative_ratio`:  smallest p with F_{p+1} > t · F_p, the equation as printed
    `max_jump`:          the p with the largest s_{p+1} / s_p
    `fixed`:             p as given

    >>> s = {"conv1": 1.0, "conv2": 0.1, "conv3": 0.1, "fc1": 50.0, "fc2": 10.0}
    >>> transition_point(s, "layer_ratio", 3.5).federated
    ('conv1', 'conv2', 'conv3')
    >>> transition_point(s, "cumulative_ratio", 42.0).index, transition_point(s, "max_jump").index
    (3, 3)
    >>> transition_point(s, "layer_ratio", 1e9).index    # no jump: everything is shared, as in FedAvg
    5
    """
    threshold = check_rule(rule, threshold, on_no_transition)
    layers = tuple(importance)
    if not layers:
        raise LayerError("there are no layers to cut")
    if not all(math.isfinite(s) and s >= 0 for s in importance.values()):
        raise LayerError(f"layer scores must be finite and non-negative, not {dict(importance)}")
    ratios = cut_ratios(importance, "cumulative_ratio" if rule == "cumulative_ratio" else "layer_ratio")
    if rule == "fixed":
        if fixed is None or not 0 <= fixed <= len(layers):
            raise LayerError(f"the fixed cut must be between 0 and {len(layers)}, not {fixed}")
        return Cut(fixed, layers, rule, None, ratios, f"the cut is fixed at {fixed}", (), dict(importance))

    jump, reason = _first_jump(layers, rule, threshold, ratios)
    warnings = []
    if jump is None and len(layers) > 1:
        reason, jump = _no_transition(layers, rule, threshold, ratios, on_no_transition)
        warnings.append(reason)
    warnings += _close_calls(layers, ratios, threshold, jump)
    index = len(layers) if jump is None else jump
    return Cut(index, layers, rule, threshold, ratios, reason, tuple(warnings), dict(importance))


def cut_ratios(importance: Importance, rule: CutRule) -> Ratios:
    """The ratios that a rule compares with its threshold at each boundary.

    >>> cut_ratios({"a": 2.0, "b": 0.0, "c": 6.0}, "layer_ratio")
    (0.0, 3.0)
    >>> cut_ratios({"a": 0.0, "b": 2.0, "c": 6.0}, "cumulative_ratio")
    (None, 4.0)
    """
    cumulative = rule == "cumulative_ratio"
    values = list(federation_sensitivity(importance).values() if cumulative else importance.values())
    ratios: list[float | None] = []
    reference = 0.0
    for here, after in pairwise(values):
        # Leading frozen or dead layers score 0; the next comparison is with the last layer that did not.
        reference = here if here > 0 else reference
        ratios.append(after / reference if reference > 0 else None)
    return tuple(ratios)


def check_rule(rule: str, threshold: float | None, on_no_transition: str) -> float | None:
    """The threshold a rule works with, if it has one; rejects invalid settings."""
    check_choice(rule, CutRule, "rule")
    check_choice(on_no_transition, OnNoTransition, "on_no_transition")
    if rule not in DEFAULT_THRESHOLDS:
        return None
    threshold = DEFAULT_THRESHOLDS[rule] if threshold is None else threshold
    if isinstance(threshold, bool) or not isinstance(threshold, Real):
        raise LayerError(f"threshold must be a number such as {DEFAULT_THRESHOLDS[rule]:g}, not {threshold!r}")
    lowest = 1.0 if rule == "cumulative_ratio" else 0.0
    if math.isnan(threshold) or threshold < lowest:
        raise LayerError(
            f"threshold {threshold} is not allowed for {rule}: it must be at least {lowest:g}"
            + (" (these ratios never fall below 1, so a smaller one always cuts after the first layer)" * (lowest > 0))
        )
    return threshold


def _first_jump(
    layers: tuple[LayerName, ...], rule: str, threshold: float | None, ratios: Ratios
) -> tuple[int | None, str]:
    if len(layers) == 1:
        return 1, "there is only one layer"
    known = [(p, ratio) for p, ratio in enumerate(ratios, start=1) if ratio is not None]
    if rule == "max_jump":
        if not known:
            return None, ""
        p, ratio = max(known, key=lambda item: (item[1], -item[0]))
        return p, f"the score rises {ratio:.3g} times at {layers[p]}, the largest jump"
    assert threshold is not None
    for p, ratio in known:
        if ratio > threshold:
            what = "the sensitivity" if rule == "cumulative_ratio" else "the score"
            return p, f"{what} rises {ratio:.3g} times at {layers[p]}, more than the threshold {threshold:g}"
    return None, ""


def _no_transition(
    layers: tuple[LayerName, ...], rule: str, threshold: float | None, ratios: Ratios, policy: str
) -> tuple[str, int]:
    largest = max((ratio for ratio in ratios if ratio is not None), default=0.0)
    finding = f"no clear transition: the largest {rule} is {largest:.3g}"
    finding += f", not above the threshold {threshold:g}" if threshold is not None else ""
    if policy == "error":
        raise LayerError(f"{finding}; lower the threshold or set on_no_transition to 'all' or 'all_but_last'")
    if policy == "all_but_last":
        return f"{finding}; all layers but the last are shared", len(layers) - 1
    return f"{finding}; all layers are shared, as in FedAvg", len(layers)


def _close_calls(layers: tuple[LayerName, ...], ratios: Ratios, threshold: float | None, jump: int | None) -> list[str]:
    """Boundaries, up to the one that decided, whose ratio is so close to the threshold that chance may decide."""
    if threshold is None or math.isinf(threshold):
        return []
    return [
        f"close call at {layers[p]}: its ratio {ratio:.3g} is within 10 % of the threshold {threshold:g}"
        for p, ratio in enumerate(ratios[:jump], start=1)
        if ratio is not None and abs(ratio - threshold) <= NEAR * threshold
    ]


def choose_cut(
    scores: Mapping[str, Importance],
    *,
    rule: CutRule = "layer_ratio",
    threshold: float | None = None,
    on_no_transition: OnNoTransition = "all",
    fixed: int | None = None,
    num_examples: Mapping[str, int] | None = None,
    client_weight: ClientWeight = "uniform",
    normalise: Normalise = "none",
    reduce: Reduce = "mean",
) -> Cut:
    """One cut for all sites from every site's layer scores, with a warning if it depends on a choice.

    >>> choose_cut({"a": {"x": 1.0, "y": 9.0}, "b": {"x": 1.0, "y": 8.0}}).federated
    ('x',)
    """

    def cut_with(normalise: Normalise, on_no_transition: OnNoTransition) -> Cut:
        combined = combine_sites(
            scores, num_examples=num_examples, client_weight=client_weight, normalise=normalise, reduce=reduce
        )
        cut = transition_point(combined.importance, rule, threshold, on_no_transition=on_no_transition, fixed=fixed)
        return replace(cut, warnings=(*combined.warnings, *cut.warnings))

    cut = cut_with(normalise, on_no_transition)
    other: Normalise = "first_layer" if normalise == "none" else "none"
    elsewhere = cut_with(other, "all" if on_no_transition == "error" else on_no_transition).index
    if elsewhere == cut.index:
        return cut
    note = f"with normalise={other!r} the cut would be after {elsewhere} layers instead of {cut.index}"
    return replace(cut, warnings=(*cut.warnings, note))
