"""recommend: where to cut, and how well the measured scores support it. Nothing is trained again."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from torch import nn

from playerfl.errors import LayerError
from playerfl.layers.cut import Cut, CutRule, OnNoTransition, check_rule, choose_cut, cut_ratios, transition_point
from playerfl.layers.cut_summary import summarise_cut
from playerfl.layers.layer_map import LayerMap, LayerName
from playerfl.layers.measured_model import check_model
from playerfl.layers.recommendation import NextBest, Recommendation, ThresholdStep, judged, step_at
from playerfl.layers.sensitivity import ClientWeight, Importance, Normalise, Profile, Reduce, combine_sites, is_usable

SiteProfiles = Mapping[str, Profile | Mapping[str, Any]]
"""Every site's scores: profiles, or their JSON."""
RULES: tuple[CutRule, ...] = ("layer_ratio", "cumulative_ratio", "max_jump")
NORMALISATIONS: tuple[Normalise, ...] = ("none", "first_layer", "last")


def recommend(
    profiles: Profile | SiteProfiles | Sequence[SiteProfiles],
    model: nn.Module | None = None,
    *,
    layers: LayerMap | None = None,
    rule: CutRule = "layer_ratio",
    threshold: float | None = None,
    on_no_transition: OnNoTransition = "all",
    client_weight: ClientWeight = "uniform",
    normalise: Normalise = "none",
    reduce: Reduce = "mean",
    resamples: int = 1000,
    seed: int = 0,
) -> Recommendation:
    """Which layers to share, from the sites' scores by batch, and the evidence for it.

    `profiles`: every site's `Profile` by site name (`probe.profile()`, or a run's stored ones); a list of those, one
    per seed; or a single profile. With the `model` the recommendation says what the cut amounts to in parameters and
    bytes, and can be exported. Its layers are those that were measured: profiles carry them, and `layers`, if given, or
    a model with other entries is refused.

    >>> def site(*rows): return Profile(("conv", "fc", "head"), rows, (8,) * len(rows), 8 * len(rows))
    >>> advice = recommend({"a": site((2, 1, 40), (2, 1, 50)), "b": site((2, 1, 60), (2, 1, 50))})
    >>> advice.cut.federated, advice.verdict
    (('conv', 'fc'), 'clear')
    >>> [round(end, 2) for end in advice.interval]  # the ratios are 1/2 and 50/1
    [0.5, 50.0]
    >>> advice.without_site
    {'a': 2, 'b': 2}
    """
    seeds = _by_seed(profiles)
    names = _common_layers(seeds)
    threshold = check_rule(rule, threshold, on_no_transition)
    if rule == "fixed":
        raise LayerError("rule 'fixed' needs no evidence; choose layer_ratio, cumulative_ratio or max_jump")
    if resamples < 0:
        raise LayerError(f"resamples must be at least 0, not {resamples}")
    pooled = _pooled(seeds)
    combining: dict[str, Any] = {
        "num_examples": {site: profile.num_examples for site, profile in pooled.items()},
        "client_weight": client_weight,
        "normalise": normalise,
        "reduce": reduce,
    }
    scores = {site: profile.importance for site, profile in pooled.items()}
    # A comparison must not end in an error because it finds no transition.
    fallback: OnNoTransition = "all" if on_no_transition == "error" else on_no_transition

    def cut_of(
        by_site: Mapping[str, Importance], rule: CutRule = rule, threshold: float | None = threshold, **other: Any
    ) -> int:
        combined = combine_sites(by_site, **{**combining, **other})
        return transition_point(combined.importance, rule, threshold, on_no_transition=fallback).index

    cut = choose_cut(scores, rule=rule, threshold=threshold, on_no_transition=on_no_transition, **combining)
    shares = combine_sites(scores, **combining).shares
    usable = {site: scores[site] for site in shares}
    each_seed = [{site: profile.importance for site, profile in run.items()} for run in seeds]
    thresholds = _threshold_steps(cut, fallback)
    measured = _measured_layers(seeds, model, layers, names)
    summary = None if model is None or measured is None else summarise_cut(model, measured, cut.index)
    evidence = Recommendation(
        cut=cut,
        verdict="clear",
        doubts=(),
        importance=scores,
        without_site={
            site: cut_of({other: score for other, score in usable.items() if other != site}) for site in usable
        } if len(usable) > 1 else {},
        site_alone={site: cut_of({site: score}) for site, score in usable.items()},
        bootstrap=_bootstrap({site: pooled[site] for site in usable}, cut_of, resamples, seed),
        resamples=resamples,
        by_seed=tuple(cut_of(run) for run in each_seed if any(map(is_usable, run.values()))),
        thresholds=thresholds,
        next_best=_next_best(cut, thresholds),
        rules={name: cut_of(scores, rule=name, threshold=threshold if name == rule else None) for name in RULES},
        normalisations={
            **{name: cut_of(scores, normalise=name) for name in NORMALISATIONS},
            "median of sites": cut_of(scores, reduce="median", client_weight="uniform"),
        },
        shares=shares,
        dominating=None,
        summary=summary,
        jumps=_jumps(seeds, cut),
        layers=measured,
    )  # fmt: skip
    return judged(evidence)


def _by_seed(profiles: Profile | SiteProfiles | Sequence[SiteProfiles]) -> list[dict[str, Profile]]:
    if isinstance(profiles, Profile):
        return [{"this site": profiles}]
    runs = [profiles] if isinstance(profiles, Mapping) else list(profiles)
    if not runs or not all(isinstance(run, Mapping) and run for run in runs):
        raise LayerError("there are no layer scores; give every site's profile by site name")
    return [{site: _profile(site, given) for site, given in sorted(run.items())} for run in runs]


def _profile(site: str, given: object) -> Profile:
    if isinstance(given, Profile):
        return given
    if not isinstance(given, Mapping):
        raise LayerError(f"{site}: a Profile is needed (probe.profile() gives one), not {type(given).__name__}")
    try:
        return Profile.from_json(given)
    except LayerError as problem:
        raise LayerError(f"{site}: {problem}") from problem


def _common_layers(seeds: Sequence[Mapping[str, Profile]]) -> tuple[LayerName, ...]:
    first = next(iter(seeds[0].values())).layers
    for run in seeds:
        if run.keys() != seeds[0].keys():
            raise LayerError(f"every seed needs the same sites, not {', '.join(seeds[0])} and {', '.join(run)}")
        for site, profile in run.items():
            if profile.layers != first:
                raise LayerError(f"{site} and {next(iter(run))} score different layers; all sites need the same model")
    return first


def _measured_layers(
    seeds: Sequence[Mapping[str, Profile]],
    model: nn.Module | None,
    given: LayerMap | None,
    names: tuple[LayerName, ...],
) -> LayerMap | None:
    """The layers that the scores are of: all profiles' own, the given ones, or, for old profiles, the model's."""
    known = {site: profile.layer_map for run in seeds for site, profile in run.items() if profile.layer_map is not None}
    measured = next(iter(known.values()), None)
    for site, other in known.items():
        if measured is not None and (problem := measured.difference(other)):
            raise LayerError(f"{next(iter(known))} and {site} measured different layers: {problem}")
    if measured is not None and given is not None and (problem := measured.difference(given)):
        raise LayerError(f"the scores are not of the layers given: {problem}; leave `layers` out")
    if given is None and measured is not None and measured.names != names:
        raise LayerError("a profile's layers are not those of its scores; it was changed by hand")
    chosen = given or measured or (LayerMap.of(model) if model is not None else None)
    if chosen is None:
        return None
    if model is not None:
        check_model(chosen, model)
    return chosen.in_order(names)


def _pooled(seeds: Sequence[Mapping[str, Profile]]) -> dict[str, Profile]:
    """Each site's batches, pooled over all seeds."""
    return {
        site: replace(
            profile,
            batches=tuple(row for run in seeds for row in run[site].batches),
            batch_sizes=tuple(size for run in seeds for size in run[site].batch_sizes),
        )
        for site, profile in seeds[0].items()
    }


def _jumps(seeds: Sequence[Mapping[str, Profile]], cut: Cut) -> tuple[float, ...]:
    """By how much each site's score in each seed rises at the cut."""
    if not 0 < cut.index < len(cut.layers):
        return ()
    rule: CutRule = "cumulative_ratio" if cut.rule == "cumulative_ratio" else "layer_ratio"
    scores = (profile.importance for run in seeds for profile in run.values())
    ratios = (cut_ratios(one, rule)[cut.index - 1] for one in scores if is_usable(one))
    return tuple(ratio for ratio in ratios if ratio is not None and math.isfinite(ratio))


def _bootstrap(
    profiles: Mapping[str, Profile], cut_of: Callable[[Mapping[str, Importance]], int], resamples: int, seed: int
) -> dict[int, float]:
    """How often each cut results when every site's batches are resampled with replacement, among the resamples that
    have a score: LoRA's first batch has none, because B starts at zero."""
    if not resamples or all(len(profile.batches) < 2 for profile in profiles.values()):
        return {}
    generator = np.random.default_rng(seed)
    tables = {site: np.array(profile.batches) for site, profile in profiles.items()}
    weights = {
        site: np.array(profile.batch_sizes if profile.weight_batches else [1.0] * len(profile.batches))
        for site, profile in profiles.items()
    }
    counts: Counter[int] = Counter()
    for _ in range(resamples):
        drawn = {}
        for site, table in tables.items():
            # Counting how often each batch was drawn avoids copying its scores.
            drawn_often = np.bincount(generator.integers(len(table), size=len(table)), minlength=len(table))
            share = drawn_often * weights[site]
            mean = share @ table / share.sum()
            drawn[site] = dict(zip(profiles[site].layers, mean.tolist(), strict=True))
        if any(map(is_usable, drawn.values())):  # not so if only batches that score nothing were drawn
            counts[cut_of(drawn)] += 1
    return {cut: counts[cut] / counts.total() for cut in sorted(counts)}


def _threshold_steps(cut: Cut, on_no_transition: OnNoTransition) -> tuple[ThresholdStep, ...]:
    """The whole staircase from thresholds to cuts, exact: the cut is p where r_p > t ≥ every earlier ratio."""
    if cut.threshold is None:
        return ()
    largest = 1.0 if cut.rule == "cumulative_ratio" else 0.0
    steps = []
    for p, ratio in enumerate(cut.ratios, start=1):
        if ratio is not None and ratio > largest:
            steps.append(ThresholdStep(largest, ratio, p, True))
            largest = ratio
    everything = len(cut.layers) - (on_no_transition == "all_but_last" and len(cut.layers) > 1)
    return (*steps, ThresholdStep(largest, math.inf, everything, False))


def _next_best(cut: Cut, steps: Sequence[ThresholdStep]) -> NextBest | None:
    """The neighbouring cut whose threshold is nearest, by factor; with `max_jump`, the second largest jump."""
    if cut.rule == "max_jump":
        others = [(ratio, p) for p, ratio in enumerate(cut.ratios, start=1) if ratio is not None and p != cut.index]
        if not others:
            return None
        ratio, p = max(others, key=lambda item: (item[0], -item[1]))
        return NextBest(p, f"the second-largest jump, {ratio:.3g}-fold at {cut.layers[p]}")
    here = step_at(steps, cut.threshold)
    if here is None or cut.threshold is None:
        return None
    place = steps.index(here)
    candidates = []
    if place > 0 and here.low > 0:
        factor = cut.threshold / here.low
        candidates.append((factor, steps[place - 1].cut, f"any threshold below {here.low:.3g} would choose it"))
    if place + 1 < len(steps) and cut.threshold > 0:
        factor = here.high / cut.threshold
        candidates.append((factor, steps[place + 1].cut, f"any threshold of at least {here.high:.3g} would choose it"))
    if not candidates:
        return None
    _, index, need = min(candidates)
    return NextBest(index, f"{need} (used: {cut.threshold:g})")
