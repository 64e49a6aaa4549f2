"""Calibration: whether predicted probabilities come true as often as they say."""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch

from playerfl.runs.measures.outcomes import SiteOutcomes, joined
from playerfl.runs.measures.row_intervals import ReliabilityBin, reliability_of, row_interval, row_score
from playerfl.runs.measures.row_intervals import resampled_scores as resampled
from playerfl.runs.result import RunResult

_NORMAL_95 = 1.959963984540054
# The logarithm of 0 is not a number, and outcomes must be numbers.
_NEVER = 1e-12
ALL_SITES = ""
"""The site that stands for the rows of all sites together."""


@dataclass(frozen=True)
class Calibration:
    """One run's probabilities on the test rows of one site, or of all."""

    task: str
    algorithm: str
    site: str
    outcomes: SiteOutcomes
    positive: int

    @cached_property
    def bins(self) -> list[ReliabilityBin]:
        return reliability_of(self.outcomes, positive=self.positive)

    @property
    def rows(self) -> int:
        return len(self.outcomes.targets)

    def score(self, metric: str) -> float:
        """The Brier score or the expected calibration error."""
        return row_score(self.outcomes, metric, positive=self.positive)

    def interval(self, metric: str) -> tuple[float, float]:
        """The same in resamples of the rows."""
        drawn = resampled(self.outcomes, metric, self.site, positive=self.positive)
        return (math.nan, math.nan) if drawn is None else row_interval(np.asarray(drawn))


def calibrations(run: RunResult, task: str, algorithm: str, sites: Collection[str]) -> list[Calibration]:
    """Those of these sites, all together first; none where the run kept no rows or predicts no classes."""
    by_site = {
        site: outcomes for site, outcomes in sorted(run.outcomes.items()) if outcomes.of_classes and site in sites
    }
    if not by_site:
        return []
    every = {ALL_SITES: joined(list(by_site.values())), **by_site}
    made = [Calibration(task, algorithm, site, outcomes, run.positive_class) for site, outcomes in every.items()]
    return [calibration for calibration in made if calibration.bins]


def baseline_calibration(run: RunResult, task: str, name: str, sites: Collection[str]) -> Calibration | None:
    """That of always saying how frequent each class is in a site's training rows; None if that is not recorded."""
    parts = []
    for site, outcomes in sorted(run.outcomes.items()):
        if site not in sites or site not in run.data["sites"] or not outcomes.of_classes:
            continue
        counts = run.data["sites"][site]["train"].get("classes", {})
        if not counts or not all(label.isdecimal() and int(label) < outcomes.outputs.shape[1] for label in counts):
            return None
        frequent = torch.zeros(outcomes.outputs.shape[1], dtype=torch.float64)
        for label, count in counts.items():
            frequent[int(label)] = count
        log_shares = (frequent / frequent.sum()).clamp(min=_NEVER).log().expand(len(outcomes.targets), -1)
        parts.append(SiteOutcomes(log_shares, outcomes.targets, groups=outcomes.groups))
    return Calibration(task, name, ALL_SITES, joined(parts), run.positive_class) if parts else None


def share_interval(share: float, rows: int) -> tuple[float, float]:
    """Wilson's 95 % interval of a share observed in this many rows.

    >>> [round(end, 3) for end in share_interval(0.5, 10)], [round(end, 3) for end in share_interval(0.0, 10)]
    ([0.237, 0.763], [0.0, 0.278])
    """
    square = _NORMAL_95**2 / rows
    middle = (share + square / 2) / (1 + square)
    half = _NORMAL_95 * math.sqrt(share * (1 - share) / rows + square / (4 * rows)) / (1 + square)
    # Rounding must not leave the share itself out.
    return min(share, max(0.0, middle - half)), max(share, min(1.0, middle + half))
