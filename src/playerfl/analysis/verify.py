"""verify_cut: a small sweep on validation data, to see whether the best cut beats the recommended one."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import fmean, stdev
from typing import Any

from playerfl.analysis.sweep import CutScore, sweep_cuts
from playerfl.errors import ConfigError
from playerfl.layers.recommendation import Recommendation
from playerfl.tasks.task import Task
from playerfl.wording import counted


@dataclass(frozen=True)
class Verification:
    """Validation scores of the recommended cut and its alternatives, and what they say."""

    recommended: int
    best: int
    """The cut with the best mean score; the recommended one in a tie."""
    metric: str
    means: Mapping[int, float]
    """By cut: the mean over seeds of the sites' average score; larger is better."""
    difference: float
    """Best minus recommended, mean over seeds."""
    interval: tuple[float, float] | None
    """95 % interval of the difference over seeds (paired, Student's t, Bonferroni for the number of cuts); None for a
    single seed."""
    seeds: int
    rounds: int
    seconds: float
    scores: Sequence[CutScore]

    @property
    def told_apart(self) -> bool:
        """Whether the best cut is better than the recommended one by more than chance over seeds."""
        return self.interval is not None and self.interval[0] > 0

    def __str__(self) -> str:
        where = f"on validation {self.metric}, {self.rounds} rounds, {counted(self.seeds, 'seed')}"
        if math.isnan(self.means[self.recommended]):
            return f"the recommended cut, after layer {self.recommended}, has no score: its training diverged ({where})"
        if self.best == self.recommended:
            return f"the recommended cut, after layer {self.recommended}, is the best of those tried ({where})"
        gain = f"the cut after layer {self.best} scores {self.difference:.3g} more than the recommended one ({where})"
        if self.interval is None:
            return f"{gain}; one seed cannot show whether that is chance, so give --seeds 3 or more"
        low, high = self.interval
        span = f"95 % interval {low:.3g} to {high:.3g}"
        if self.told_apart:
            return f"{gain}, {span}: the recommended cut is not the best; prefer the cut after layer {self.best}"
        return f"{gain}, {span}: the recommended cut cannot be distinguished from the best"

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "told_apart": self.told_apart, "conclusion": str(self)}


def verify_cut(
    task: Task,
    recommendation: Recommendation,
    *,
    rounds: int | None = None,
    seeds: Sequence[int] = (0, 1, 2),
    settings: Mapping[str, Any] | Sequence[str] = (),
    watch: Callable[[int], Callable[[], None]] = lambda total: lambda: None,
) -> Verification:
    """Trains with the recommended cut, with every alternative that has evidence, with all layers and with none
    federated, and compares their validation scores, seed by seed."""
    cuts = cuts_to_verify(recommendation)
    began = time.perf_counter()
    sweep = sweep_cuts(task, rounds=rounds, seeds=seeds, settings=settings, cuts=cuts, watch=watch)
    seconds = time.perf_counter() - began
    if sweep.layers != recommendation.cut.layers:
        raise ConfigError("the sweep's model has different layers from the one that was measured; probe it again")
    by_cut = {cut: [sweep.of(seed)[cut].validation for seed in sweep.seeds] for cut in cuts}
    means = {cut: fmean(values) for cut, values in by_cut.items()}
    here = recommendation.cut.index
    # A diverged run has no score.
    best = max(cuts, key=lambda cut: (-math.inf if math.isnan(means[cut]) else means[cut], cut == here))
    paired = [a - b for a, b in zip(by_cut[best], by_cut[here], strict=True)]
    interval = None
    if len(paired) > 1:
        # The best of several cuts is compared, so the interval is as wide as if each of them were (Bonferroni).
        outside = 0.05 / max(len(cuts) - 1, 1)
        half = t_quantile(1 - outside, len(paired) - 1) * stdev(paired) / len(paired) ** 0.5
        interval = (fmean(paired) - half, fmean(paired) + half)
    return Verification(
        here, best, sweep.metric, means, fmean(paired), interval, len(paired), sweep.rounds, seconds, sweep.scores
    )


def cuts_to_verify(recommendation: Recommendation) -> list[int]:
    """The recommended cut, its alternatives, and the two ends: everything federated, and nothing."""
    total = len(recommendation.cut.layers)
    return sorted({0, recommendation.cut.index, *recommendation.alternatives, total})


def t_quantile(inside: float, freedom: int) -> float:
    """The t with |T| < t in this share of cases, for a whole number of degrees of freedom, without scipy.

    >>> round(t_quantile(0.95, 2), 3), round(t_quantile(0.95, 9), 3)
    (4.303, 2.262)
    """
    low, high = 0.0, 1e6
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if _share_inside(middle, freedom) < inside else (low, middle)
    return high


def _share_inside(t: float, freedom: int) -> float:
    """P(|T| < t), the finite series for whole degrees of freedom (Abramowitz and Stegun, 26.7.3 and 26.7.4)."""
    angle = math.atan2(t, math.sqrt(freedom))
    squared = math.cos(angle) ** 2
    odd = freedom % 2 == 1
    term = math.cos(angle) if odd else 1.0
    total = term if freedom > 1 else 0.0
    for k in range(2 + odd, freedom - 1, 2):
        term *= squared * (k - 1) / k
        total += term
    return 2 / math.pi * (angle + math.sin(angle) * total) if odd else math.sin(angle) * total
