"""Rank correlation of federation sensitivity with the other quantities."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

import numpy as np

from playerfl.report.compute import statistics

Curve = Sequence[float]
"""One number per layer, input to output."""


@dataclass(frozen=True)
class Correlation:
    """Spearman's ρ over layers: the mean over curves (sites and seeds) with a bootstrap interval."""

    value: float
    low: float
    high: float
    """nan if there is only one curve."""
    curves: int
    """The number of sites times seeds in the mean."""
    layers: int
    """The number of layers that each ρ covers; with few layers ρ is coarse."""


def spearman(left: Curve, right: Curve) -> float:
    """Spearman's rank correlation over the layers where both are known; nan if one of them is constant.

    >>> spearman([1.0, 2.0, 3.0, 4.0], [1.0, 10.0, 100.0, 50.0])
    0.8
    """
    pairs = _known(left, right)
    if len(pairs) < 3:
        return float("nan")
    known = np.array(pairs).T
    return round(float(statistics.spearman(known[0], known[1])), 12)


def _known(left: Curve, right: Curve) -> list[tuple[float, float]]:
    return [(a, b) for a, b in zip(left, right, strict=True) if math.isfinite(a) and math.isfinite(b)]


def correlate(pairs: Mapping[object, tuple[Curve, Curve]]) -> Correlation | None:
    """The mean ρ of several curves with its 95 % percentile bootstrap interval; None if no ρ is known.

    >>> rho = correlate({"a": ([1, 2, 3], [1, 2, 3]), "b": ([1, 2, 3], [1, 3, 2])})
    >>> rho.value, (rho.low, rho.high)
    (0.75, (0.5, 1.0))
    """
    known = [rho for left, right in pairs.values() if math.isfinite(rho := spearman(left, right))]
    if not known:
        return None
    layers = max(len(_known(left, right)) for left, right in pairs.values())
    if len(known) == 1:
        # Resampling one curve always gives that curve, so there is no interval.
        return Correlation(known[0], math.nan, math.nan, 1, layers)
    generator = np.random.default_rng(0)
    means = np.array(known)[generator.integers(len(known), size=(2000, len(known)))].mean(1)
    low, high = np.quantile(means, [0.025, 0.975])
    return Correlation(fmean(known), float(low), float(high), len(known), layers)
