"""Recommendation: a cut, the evidence for it, and the verdict on it in words."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from statistics import fmean, stdev
from typing import Any, Literal

from playerfl.layers.cut import DEFAULT_THRESHOLDS, NEAR, Cut, cut_ratios
from playerfl.layers.cut_summary import CutSummary
from playerfl.layers.export import export_cut
from playerfl.layers.layer_map import LayerMap, some
from playerfl.layers.sensitivity import DOMINATES, Importance

Verdict = Literal["clear", "doubtful", "no clear transition"]

AGREEMENT = 0.95
"""A cut is doubtful if less than this share of resamples gives it."""


@dataclass(frozen=True)
class ThresholdStep:
    """All thresholds t with low ≤ t < high give the same cut."""

    low: float
    high: float
    cut: int
    transition: bool
    """False for the last step, where no ratio is above the threshold."""


def step_at(steps: Sequence[ThresholdStep], threshold: float | None) -> ThresholdStep | None:
    """The step a threshold falls on; None if there is none."""
    if threshold is None or not steps:
        return None
    return next((step for step in steps if step.low <= threshold < step.high), steps[-1])


@dataclass(frozen=True)
class NextBest:
    """The cut that a slightly different deciding number would give."""

    cut: int
    reason: str


@dataclass(frozen=True)
class Recommendation:
    """A cut, the evidence for it, and its summary."""

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
    """The share of resampled batches that gives each cut; empty if sites measured only once."""
    resamples: int
    by_seed: tuple[int, ...]
    """The cut that each seed's scores alone give."""
    thresholds: tuple[ThresholdStep, ...]
    """Every threshold and its cut; empty for a rule without one."""
    next_best: NextBest | None
    rules: Mapping[str, int]
    normalisations: Mapping[str, int]
    shares: Mapping[str, float]
    """Each usable site's share of the summed sensitivity, after weighting and normalising."""
    dominating: str | None
    """The site that decides the cut on its own, if there is one."""
    summary: CutSummary | None = None
    jumps: tuple[float, ...] = ()
    """The jump at the cut for each site and seed; empty if everything is federated."""
    layers: LayerMap | None = None
    """The layers that were measured, which are those that the exports name."""

    @property
    def interval(self) -> tuple[float, float] | None:
        """The thresholds [low, high) that give this cut."""
        step = step_at(self.thresholds, self.cut.threshold)
        return None if step is None else (step.low, step.high)

    @property
    def agreement(self) -> float | None:
        """The share of resampled batches that gives this cut."""
        return self.bootstrap.get(self.cut.index, 0.0) if self.bootstrap else None

    @property
    def alternatives(self) -> tuple[int, ...]:
        """The other cuts that some part of the evidence gives, in order."""
        often = [index for index, share in self.bootstrap.items() if share >= 1 - AGREEMENT]
        answers = [self.rules, self.without_site, self.normalisations]
        if self.dominating is not None or _spread(self):
            answers.append(self.site_alone)
        near = [index for _, index in _close_calls(self)]
        every = {*often, *near, *self.by_seed, *(index for answer in answers for index in answer.values())}
        return tuple(sorted(every - {self.cut.index}))

    def to_json(self) -> dict[str, Any]:
        """Everything, as JSON values. The upper end of an unbounded interval is null, and so is a score that is not
        finite."""
        interval = self.interval
        return {
            "cut": self.cut.to_json(),
            "layers": self.layers and {name: list(entries) for name, entries in self.layers.entries.items()},
            "verdict": self.verdict,
            "doubts": list(self.doubts),
            "alternatives": list(self.alternatives),
            "jumps": list(self.jumps),
            "sites": {site: {k: _finite(v) for k, v in scores.items()} for site, scores in self.importance.items()},
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
            "meaning": self.summary and self.summary.to_json(),
            "export": self.summary and export_cut(self.summary),
        }

    def __str__(self) -> str:
        total = len(self.cut.layers)
        lines = [
            f"share {self.cut.index} of {total} layers: {some(self.cut.federated, 8) or 'none'}",
            f"keep private: {some(self.cut.personal, 8) or 'none'}",
            f"verdict: {self.verdict}; {self.cut.reason}",
            *(f"doubt: {doubt}" for doubt in self.doubts),
        ]
        if self.alternatives:
            lines.append(f"other cuts with evidence: after layer {', '.join(map(str, self.alternatives))}")
        if self.interval:
            lines.append(f"the cut stays the same for thresholds from {self.interval[0]:.3g} to {self.interval[1]:.3g}")
        if self.summary:
            lines.append(
                f"{self.summary.bytes_per_round:,} bytes per site and round each way instead of "
                f"{self.summary.bytes_of_whole_model:,}; {self.summary.private_share:.0%} of parameters stay private"
            )
            if self.summary.bytes_of_full_fine_tuning is not None:
                lines.append(f"full fine-tuning would send {self.summary.bytes_of_full_fine_tuning:,} bytes instead")
            lines += [f"note: {warning}" for warning in self.summary.warnings]
        return "\n".join(lines)


def judged(recommendation: Recommendation) -> Recommendation:
    """The same recommendation with its verdict, and a sentence for each reason to doubt it."""
    evidence = replace(recommendation, dominating=_dominating(recommendation))
    cut = evidence.cut
    doubts = []
    largest = max((ratio for ratio in cut.ratios if ratio is not None), default=0.0)
    flat = cut.rule == "max_jump" and largest <= DEFAULT_THRESHOLDS["layer_ratio"]
    if flat and largest:
        doubts.append(f"the largest jump is only {largest:.3g}-fold")
    step = step_at(evidence.thresholds, cut.threshold)
    nothing = len(cut.layers) == 1 or flat or (step is not None and not step.transition)
    if evidence.agreement is None and len(evidence.shares) == len(evidence.by_seed) == 1:
        doubts.append("it rests on a single measurement, so nothing shows how much of it is chance")
    lost = [site for site in evidence.importance if site not in evidence.shares]
    doubts += [f"{site} is left out: its scores are not finite or all zero" for site in lost]
    trained = evidence.layers.num_parameters if evidence.layers is not None else {}
    if silent := [name for name, score in cut.importance.items() if score == 0 and trained.get(name)]:
        doubts.append(f"{some(silent)} had no gradient, so the score does not say where it belongs")
    if evidence.agreement is not None and evidence.agreement < AGREEMENT:
        others = {index: share for index, share in evidence.bootstrap.items() if index != cut.index}
        often = max(others, key=others.__getitem__)
        share = f"only {evidence.agreement:.0%} of resampled batches give this cut"
        doubts.append(f"{share}, {others[often]:.0%} cut after layer {often}")
    moved = {site: index for site, index in evidence.without_site.items() if index != cut.index}
    doubts += [f"without {site} the cut would be after layer {index}" for site, index in moved.items()]
    if evidence.dominating is not None and evidence.dominating not in moved:
        supplied = evidence.shares[evidence.dominating]
        doubts.append(f"{evidence.dominating} alone supplies {supplied:.0%} of the summed sensitivity")
    if any(index != cut.index for index in evidence.by_seed):
        doubts.append(f"seeds disagree: they cut after layers {', '.join(map(str, evidence.by_seed))}")
    elsewhere = [f"{rule} cuts after layer {index}" for rule, index in evidence.rules.items() if index != cut.index]
    doubts += [f"the rules disagree: {', '.join(elsewhere)}"] if elsewhere else []
    if spread := _spread(evidence):
        doubts.append(spread)
    differing = {name: index for name, index in evidence.normalisations.items() if index != cut.index}
    doubts += [f"with {_described(name)} the cut would be after layer {index}" for name, index in differing.items()]
    doubts += [doubt for doubt, _ in _close_calls(evidence)]
    verdict: Verdict = "no clear transition" if nothing else "doubtful" if doubts else "clear"
    return replace(evidence, verdict=verdict, doubts=tuple(doubts))


def _close_calls(evidence: Recommendation) -> list[tuple[str, int]]:
    """Ratios that nearly decided otherwise, in words, each with the cut that it would have given."""
    cut, steps = evidence.cut, evidence.thresholds
    calls: list[tuple[str, int]] = []
    # Where max_jump agrees with the rule in use, it may do so by a hair.
    if 0 < cut.index < len(cut.layers) and evidence.rules.get("max_jump") == cut.index:
        jumps = cut_ratios(cut.importance, "layer_ratio")
        largest = jumps[cut.index - 1] or 0.0
        calls = [
            (f"the jump at {cut.layers[p]}, {jump:.3g}-fold, is within 10 % of the largest", p)
            for p, jump in enumerate(jumps, start=1)
            if p != cut.index and jump is not None and jump >= (1 - NEAR) * largest
        ]
    step = step_at(steps, cut.threshold)
    if step is None or cut.threshold is None or math.isinf(cut.threshold):
        return calls
    place = steps.index(step)
    return calls + [
        (f"a ratio of {end:.3g} is within 10 % of the threshold {cut.threshold:g}", steps[neighbour].cut)
        for end, neighbour in ((step.low, place - 1), (step.high, place + 1))
        if abs(end - cut.threshold) <= NEAR * cut.threshold and 0 <= neighbour < len(steps)
    ]


def _spread(evidence: Recommendation) -> str | None:
    """A sentence if the jump at the cut is no larger than its spread over sites and seeds, as factors."""
    if len(evidence.jumps) < 2:
        return None
    logs = [math.log(jump) for jump in evidence.jumps if jump > 0]
    # A site whose score falls to zero there has no jump at all.
    if len(logs) == len(evidence.jumps) and fmean(logs) > stdev(logs):
        return None
    low, high = min(evidence.jumps), max(evidence.jumps)
    return (
        f"the jump at {evidence.cut.layers[evidence.cut.index]} is within its spread over sites and seeds: "
        f"from {low:.3g}-fold to {high:.3g}-fold"
    )


def _dominating(evidence: Recommendation) -> str | None:
    """The site with by far the largest share, or a site without which the cut would move; None if there is neither."""
    if len(evidence.shares) < 2:
        return None
    largest = max(evidence.shares, key=evidence.shares.__getitem__)
    if evidence.shares[largest] > DOMINATES:
        return largest
    moving = [site for site, index in evidence.without_site.items() if index != evidence.cut.index]
    return max(moving, key=evidence.shares.__getitem__) if moving else None


def _described(normalisation: str) -> str:
    return {
        "none": "sites' scores as they are",
        "first_layer": "every site's scores relative to its first layer",
        "last": "every site's scores relative to their sum",
        "median of sites": "the median of sites",
    }[normalisation]


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
