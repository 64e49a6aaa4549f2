"""recommend: where to cut, and how far the measured scores bear that out. Nothing is trained again."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

import numpy as np
from torch import nn

from playerfl.errors import LayerError
from playerfl.layers.export import export_cut
from playerfl.layers.layer_map import LayerMap, LayerName, some
from playerfl.layers.meaning import Meaning, cut_meaning
from playerfl.layers.sensitivity import (
    DOMINATES,
    ClientWeight,
    Importance,
    Normalise,
    Profile,
    Reduce,
    combine_sites,
)
from playerfl.layers.split import (
    DEFAULT_THRESHOLDS,
    NEAR,
    Cut,
    OnNoTransition,
    SplitRule,
    check_rule,
    choose_cut,
    transition_point,
)

SiteProfiles = Mapping[str, Profile | Mapping[str, Any]]
"""Every site's scores: profiles, or their JSON."""
Verdict = Literal["clear", "doubtful", "no clear transition"]

AGREEMENT = 0.95
"""A cut is doubted if it comes out of a smaller share of resampled batches."""
_RULES: tuple[SplitRule, ...] = ("layer_ratio", "cumulative_ratio", "max_jump")
_NORMALISATIONS: tuple[Normalise, ...] = ("none", "first_layer", "last")


@dataclass(frozen=True)
class ThresholdStep:
    """All thresholds t with low ≤ t < high give this cut."""

    low: float
    high: float
    cut: int
    transition: bool
    """False for the last step, where no ratio is above the threshold."""


@dataclass(frozen=True)
class NextBest:
    """The cut that would be chosen if the deciding number were a little different."""

    cut: int
    reason: str


@dataclass(frozen=True)
class Recommendation:
    """A cut, the evidence for it, and what it means."""

    cut: Cut
    verdict: Verdict
    doubts: tuple[str, ...]
    """Why the verdict is not "clear", in sentences."""
    importance: Mapping[str, Importance]
    """Every site's layer scores s_l(c)."""
    without_site: Mapping[str, int]
    """The cut if one site is left out; empty for a single site."""
    site_alone: Mapping[str, int]
    """The cut each site would choose for itself."""
    bootstrap: Mapping[int, float]
    """The share of resampled batches that gives each cut; empty where sites measured once."""
    resamples: int
    by_seed: tuple[int, ...]
    """The cut of each seed's scores alone."""
    thresholds: tuple[ThresholdStep, ...]
    """Every threshold and its cut; empty for a rule without one."""
    next_best: NextBest | None
    rules: Mapping[str, int]
    normalisations: Mapping[str, int]
    shares: Mapping[str, float]
    """What each site supplies of the summed sensitivity."""
    dominating: str | None
    """The site that decides alone, if there is one."""
    meaning: Meaning | None = None

    @property
    def interval(self) -> tuple[float, float] | None:
        """The thresholds [low, high) in which the cut stays where it is."""
        step = _step_at(self.thresholds, self.cut.threshold)
        return None if step is None else (step.low, step.high)

    @property
    def agreement(self) -> float | None:
        """The share of resampled batches that gives this cut."""
        return self.bootstrap.get(self.cut.index, 0.0) if self.bootstrap else None

    @property
    def caveats(self) -> tuple[str, ...]:
        """What the verdict does not cover: it is about the measurement, given the rule."""
        others = [f"{rule} after {index}" for rule, index in self.rules.items() if index != self.cut.index]
        return (f"other rules would cut elsewhere: {', '.join(others)}",) if others else ()

    def to_json(self) -> dict[str, Any]:
        """Everything, for machines. An endless interval has null for its end."""
        interval = self.interval
        return {
            "cut": self.cut.to_json(),
            "verdict": self.verdict,
            "doubts": list(self.doubts),
            "caveats": list(self.caveats),
            "sites": {site: dict(scores) for site, scores in self.importance.items()},
            "without_site": dict(self.without_site),
            "site_alone": dict(self.site_alone),
            "bootstrap": {str(cut): share for cut, share in self.bootstrap.items()},
            "resamples": self.resamples,
            "agreement": self.agreement,
            "by_seed": list(self.by_seed),
            "threshold_interval": interval and [interval[0], _finite(interval[1])],
            "thresholds": [{**asdict(step), "high": _finite(step.high)} for step in self.thresholds],
            "next_best": self.next_best and asdict(self.next_best),
            "rules": dict(self.rules),
            "normalisations": dict(self.normalisations),
            "shares": dict(self.shares),
            "dominating_site": self.dominating,
            "meaning": self.meaning and self.meaning.to_json(),
            "export": self.meaning and export_cut(self.meaning),
        }

    def __str__(self) -> str:
        total = len(self.cut.layers)
        lines = [
            f"federate {self.cut.index} of {total} layers: {some(self.cut.federated, 8) or 'none'}",
            f"keep private: {some(self.cut.personal, 8) or 'none'}",
            f"verdict: {self.verdict}; {self.cut.reason}",
            *(f"doubt: {doubt}" for doubt in self.doubts),
            *(f"note: {caveat}" for caveat in self.caveats),
        ]
        if self.interval:
            lines.append(f"the cut stays for thresholds from {self.interval[0]:.3g} to {self.interval[1]:.3g}")
        if self.meaning:
            lines.append(
                f"{self.meaning.bytes_per_round:,} bytes a site and round each way instead of "
                f"{self.meaning.bytes_of_whole_model:,}; {self.meaning.private_share:.0%} of parameters stay private"
            )
            lines += [f"note: {warning}" for warning in self.meaning.warnings]
        return "\n".join(lines)


def recommend(
    profiles: Profile | SiteProfiles | Sequence[SiteProfiles],
    model: nn.Module | None = None,
    *,
    layers: LayerMap | None = None,
    rule: SplitRule = "layer_ratio",
    threshold: float | None = None,
    on_no_transition: OnNoTransition = "all",
    client_weight: ClientWeight = "uniform",
    normalise: Normalise = "none",
    reduce: Reduce = "mean",
    resamples: int = 1000,
    seed: int = 0,
) -> Recommendation:
    """Which layers to federate, from the sites' scores by batch, and the evidence for it.

    `profiles`: every site's `Profile` by site name (`probe.profile()`, or a run's stored ones); a list of those, one
    a seed; or one profile. With the `model` (or its `layers`, too, if they were made with an example batch) the
    recommendation says what the cut means in parameters and bytes, and can be exported.

    >>> def site(*rows): return Profile(("conv", "fc", "head"), rows, (8,) * len(rows), 8 * len(rows))
    >>> found = recommend({"a": site((1, 2, 40), (1, 1, 50)), "b": site((2, 2, 60), (1, 2, 50))})
    >>> found.cut.federated, found.verdict
    (('conv', 'fc'), 'clear')
    >>> [round(end, 2) for end in found.interval]  # the ratios are 7/5 and 200/7
    [1.4, 28.57]
    >>> found.without_site
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
    num_examples = {site: profile.num_examples for site, profile in pooled.items()}
    scores = {site: profile.importance for site, profile in pooled.items()}
    # A second opinion must not end in an error because it finds no transition.
    fallback: OnNoTransition = "all" if on_no_transition == "error" else on_no_transition

    def cut_of(own: Mapping[str, Importance], **other: Any) -> int:
        options: dict[str, Any] = {
            "rule": rule, "threshold": threshold, "client_weight": client_weight, "normalise": normalise,
            "reduce": reduce, **other,
        }  # fmt: skip
        by_rule = {key: options.pop(key) for key in ("rule", "threshold")}
        combined = combine_sites(own, num_examples=num_examples, **options)
        return transition_point(combined.importance, **by_rule, on_no_transition=fallback).index

    cut = choose_cut(
        scores,
        rule=rule,
        threshold=threshold,
        on_no_transition=on_no_transition,
        num_examples=num_examples,
        client_weight=client_weight,
        normalise=normalise,
        reduce=reduce,
    )
    usable = {site: own for site, own in scores.items() if _usable(own)}
    thresholds = _threshold_steps(cut, fallback)
    found = Recommendation(
        cut=cut,
        verdict="clear",
        doubts=(),
        importance=scores,
        without_site={
            site: cut_of({other: own for other, own in usable.items() if other != site}) for site in usable
        } if len(usable) > 1 else {},
        site_alone={site: cut_of({site: own}) for site, own in usable.items()},
        bootstrap=_bootstrap({site: pooled[site] for site in usable}, cut_of, resamples, seed),
        resamples=resamples,
        by_seed=tuple(cut_of({site: profile.importance for site, profile in own.items()}) for own in seeds),
        thresholds=thresholds,
        next_best=_next_best(cut, thresholds),
        rules={name: cut_of(scores, rule=name, threshold=threshold if name == rule else None) for name in _RULES},
        normalisations={
            **{name: cut_of(scores, normalise=name) for name in _NORMALISATIONS},
            "median of sites": cut_of(scores, reduce="median", client_weight="uniform"),
        },
        shares=_shares(usable),
        dominating=None,
        meaning=_meaning(model, layers, names, cut.index),
    )  # fmt: skip
    found = replace(found, dominating=_dominating(found))
    return _judged(found)


def _by_seed(profiles: Profile | SiteProfiles | Sequence[SiteProfiles]) -> list[dict[str, Profile]]:
    if isinstance(profiles, Profile):
        return [{"this site": profiles}]
    runs = [profiles] if isinstance(profiles, Mapping) else list(profiles)
    if not runs or not all(isinstance(run, Mapping) and run for run in runs):
        raise LayerError("there are no layer scores; give every site's profile by site name")
    return [{site: _profile(site, own) for site, own in sorted(run.items())} for run in runs]


def _profile(site: str, own: object) -> Profile:
    if isinstance(own, Profile):
        return own
    if not isinstance(own, Mapping):
        raise LayerError(f"{site}: a Profile is needed (probe.profile() gives one), not {type(own).__name__}")
    try:
        return Profile.from_json(own)
    except LayerError as problem:
        raise LayerError(f"{site}: {problem}") from problem


def _common_layers(seeds: Sequence[Mapping[str, Profile]]) -> tuple[LayerName, ...]:
    first = next(iter(seeds[0].values())).layers
    for run in seeds:
        if run.keys() != seeds[0].keys():
            raise LayerError(f"every seed needs the same sites, not {', '.join(seeds[0])} and {', '.join(run)}")
        for site, profile in run.items():
            if profile.layers != first:
                raise LayerError(f"{site} scores other layers than {next(iter(run))}; all sites need the same model")
    return first


def _pooled(seeds: Sequence[Mapping[str, Profile]]) -> dict[str, Profile]:
    """Each site's batches of all seeds together."""
    return {
        site: replace(
            profile,
            batches=tuple(row for run in seeds for row in run[site].batches),
            batch_sizes=tuple(size for run in seeds for size in run[site].batch_sizes),
        )
        for site, profile in seeds[0].items()
    }


def _usable(importance: Importance) -> bool:
    return all(map(math.isfinite, importance.values())) and any(value > 0 for value in importance.values())


def _bootstrap(
    profiles: Mapping[str, Profile], cut_of: Callable[[Mapping[str, Importance]], int], resamples: int, seed: int
) -> dict[int, float]:
    """How often each cut comes out when every site's batches are drawn again with replacement."""
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
            rows = generator.integers(len(table), size=len(table))
            mean = np.average(table[rows], axis=0, weights=weights[site][rows])
            drawn[site] = dict(zip(profiles[site].layers, mean.tolist(), strict=True))
        counts[cut_of({site: own for site, own in drawn.items() if _usable(own)} or drawn)] += 1
    return {cut: counts[cut] / resamples for cut in sorted(counts)}


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


def _step_at(steps: Sequence[ThresholdStep], threshold: float | None) -> ThresholdStep | None:
    if threshold is None or not steps:
        return None
    return next((step for step in steps if step.low <= threshold < step.high), steps[-1])


def _next_best(cut: Cut, steps: Sequence[ThresholdStep]) -> NextBest | None:
    """The neighbour that needs the least change of the threshold, by factor; for the largest jump, the second."""
    if cut.rule == "max_jump":
        others = [(ratio, p) for p, ratio in enumerate(cut.ratios, start=1) if ratio is not None and p != cut.index]
        if not others:
            return None
        ratio, p = max(others, key=lambda item: (item[0], -item[1]))
        return NextBest(p, f"the second largest jump, {ratio:.3g} times at {cut.layers[p]}")
    here = _step_at(steps, cut.threshold)
    if here is None or cut.threshold is None:
        return None
    place = steps.index(here)
    candidates = []
    if place > 0 and here.low > 0:
        factor = cut.threshold / here.low
        candidates.append((factor, steps[place - 1].cut, f"a threshold below {here.low:.3g}"))
    if place + 1 < len(steps) and cut.threshold > 0:
        factor = here.high / cut.threshold
        candidates.append((factor, steps[place + 1].cut, f"a threshold of {here.high:.3g} or more"))
    if not candidates:
        return None
    factor, index, need = min(candidates)
    return NextBest(index, f"{need} would choose it, {factor:.2g} times from {cut.threshold:g}")


def _shares(scores: Mapping[str, Importance]) -> dict[str, float]:
    totals = {site: math.fsum(own.values()) for site, own in scores.items()}
    return {site: total / math.fsum(totals.values()) for site, total in totals.items()}


def _dominating(found: Recommendation) -> str | None:
    """The loudest site, if it is louder than all others by far or the cut would be elsewhere without it."""
    if len(found.shares) < 2:
        return None
    loudest = max(found.shares, key=found.shares.__getitem__)
    if found.shares[loudest] > DOMINATES:
        return loudest
    moving = [site for site, index in found.without_site.items() if index != found.cut.index]
    return max(moving, key=found.shares.__getitem__) if moving else None


def _meaning(
    model: nn.Module | None, layers: LayerMap | None, names: tuple[LayerName, ...], cut: int
) -> Meaning | None:
    if model is None:
        return None
    return cut_meaning(model, (layers or LayerMap.of(model)).in_order(names), cut)


def _judged(found: Recommendation) -> Recommendation:
    """The verdict, and a sentence for everything that speaks against it."""
    cut = found.cut
    doubts = []
    flat = cut.rule == "max_jump" and max((r for r in cut.ratios if r is not None), default=0.0)
    if flat and flat <= DEFAULT_THRESHOLDS["layer_ratio"]:
        doubts.append(f"the largest jump is {flat:.3g} times only")
    step = _step_at(found.thresholds, cut.threshold)
    nothing = len(cut.layers) == 1 or bool(doubts) or (step is not None and not step.transition)
    if found.agreement is not None and found.agreement < AGREEMENT:
        others = {index: share for index, share in found.bootstrap.items() if index != cut.index}
        often = max(others, key=others.__getitem__)
        doubts.append(
            f"only {found.agreement:.0%} of resampled batches give this cut, {others[often]:.0%} give {often} layers"
        )
    moved = {site: index for site, index in found.without_site.items() if index != cut.index}
    doubts += [f"without {site} the cut would be after {index} layers" for site, index in moved.items()]
    if found.dominating is not None and found.dominating not in moved:
        share = found.shares[found.dominating]
        doubts.append(f"{found.dominating} alone supplies {share:.0%} of the summed sensitivity")
    if len(set(found.by_seed)) > 1:
        doubts.append(f"seeds disagree: they cut after {', '.join(map(str, found.by_seed))} layers")
    differing = {name: index for name, index in found.normalisations.items() if index != cut.index}
    doubts += [f"with {_described(name)} the cut would be after {index} layers" for name, index in differing.items()]
    if step is not None and cut.threshold is not None and not math.isinf(cut.threshold):
        for end in (step.low, step.high):
            if abs(end - cut.threshold) <= NEAR * cut.threshold:
                doubts.append(f"a ratio of {end:.3g} is within 10 % of the threshold {cut.threshold:g}")
    verdict: Verdict = "no clear transition" if nothing else "doubtful" if doubts else "clear"
    return replace(found, verdict=verdict, doubts=tuple(doubts))


def _described(normalisation: str) -> str:
    return {
        "none": "sites' scores as they are",
        "first_layer": "every site's scores relative to its first layer",
        "last": "every site's scores relative to their sum",
        "median of sites": "the median of sites",
    }[normalisation]


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
