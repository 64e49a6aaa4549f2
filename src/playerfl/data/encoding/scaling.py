"""Scales: how a site's inputs are brought to a common size, learnt from its training rows alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from playerfl.data.encoding.cells import Flags, Numbers
from playerfl.data.encoding.forms import may_hold_flags

Scaling = Literal["auto", "standard", "robust"]
FAR = 30.0
"""A column is heavy-tailed if a value is more than this many robust spreads away from the median. Scaled values are
clipped at this number too, unless told otherwise."""
# Of normally distributed values, half are closer to the median than 1 / 1.4826 of their standard deviation.
_NORMAL = 1.4826


@dataclass(frozen=True)
class Scale:
    """How one model input is made: (value - centre) / spread, kept between `low` and `high`."""

    centre: float = 0.0
    spread: float = 1.0
    """0 if the input was constant over the training rows: it is then always 0."""
    low: float | None = None
    high: float | None = None
    fill: float = 0.0
    """The value that stands for a missing one."""
    robust: bool = False
    """Whether centre and spread are the median and the robust spread, because the column is heavy-tailed."""

    @property
    def may_hold_flags(self) -> bool:
        return may_hold_flags(self.centre, self.spread, self.robust)


def fit_scales(train: Numbers, is_measured: Flags, scaling: Scaling = "auto", clip: float = FAR) -> list[Scale]:
    """The scale of every input from the site's training rows (rows, inputs), in which nan is a missing value.

    Measured inputs get mean 0 and variance 1; a heavy-tailed one is scaled with its median and robust spread instead,
    since a single 1e12 would squash all other values into one. The other inputs are left alone.
    `clip` bounds scaled values (0: no bounds); values that an ordinary column has in its training rows are within them.

    >>> scales = fit_scales(np.array([[1.0, 0.0], [3.0, 1.0]]), np.array([True, False]))
    >>> [(scale.centre, scale.spread, scale.fill) for scale in scales]
    [(2.0, 1.0, 2.0), (0.0, 1.0, 0.5)]
    """
    seen = ~np.isnan(train)
    filled = np.where(seen, train, 0.0)
    count = seen.sum(0).clip(1)
    mean = filled.sum(0) / count
    spread = np.sqrt((np.where(seen, train - mean, 0.0) ** 2).sum(0) / count)
    lowest, highest = np.where(seen, train, np.inf).min(0), np.where(seen, train, -np.inf).max(0)
    # Compared, not computed: the spread of equal numbers may differ from 0 in its last digits.
    varies = (lowest < highest) & (spread > 0)
    scales = []
    for i, is_number in enumerate(is_measured.tolist()):
        if not is_number:
            scales.append(Scale(fill=float(mean[i])))
        elif not varies[i]:
            scales.append(Scale(float(mean[i]), 0.0, fill=float(mean[i])))
        else:
            present = train[seen[:, i], i]
            median, typical = robust_spread(present)
            if scaling == "robust" or (scaling == "auto" and share_far(present) > 0):
                scales.append(_bounded(median, typical, clip, robust=True))
            else:
                reach = (lowest[i] - mean[i]) / spread[i], (highest[i] - mean[i]) / spread[i]
                scales.append(_bounded(float(mean[i]), float(spread[i]), clip, reach))
    return scales


def _bounded(
    centre: float, spread: float, clip: float, reach: tuple[float, float] = (0.0, 0.0), *, robust: bool = False
) -> Scale:
    if clip == 0:
        return Scale(centre, spread, None, None, centre, robust)
    return Scale(centre, spread, float(min(-clip, reach[0])), float(max(clip, reach[1])), centre, robust)


def robust_spread(values: Numbers) -> tuple[float, float]:
    """The median, and the typical distance from it among values that differ from it.

    Values equal to the median do not count: a column that is mostly 0 still has a scale.

    >>> median, spread = robust_spread(np.array([0.0, 0.0, 0.0, 0.0, 10.0, 20.0, 30.0]))
    >>> median, round(spread, 3)
    (0.0, 29.652)
    """
    median = float(np.median(values))
    distances = np.abs(values - median)
    distances = distances[distances > 0]
    return median, float(_NORMAL * np.median(distances)) if len(distances) else 0.0


def share_far(values: Numbers) -> float:
    """The share of values that are very far from the median; if there are any, standardising would squash the others.

    >>> ages = np.arange(20.0, 79.0)
    >>> share_far(ages), share_far(np.append(ages, 1e12)) == 1 / 60, share_far(np.array([0.0] * 99 + [1.0]))
    (0.0, True, 0.0)
    """
    median, spread = robust_spread(values)
    return float((np.abs(values - median) > FAR * spread).mean()) if len(values) else 0.0


def scaled(raw: Numbers, scales: Sequence[Scale]) -> np.ndarray[tuple[int, int], np.dtype[np.float32]]:
    """Raw inputs (rows, inputs), with nan for a missing value, as the model takes them."""
    centre, spread, fill = (np.array([getattr(s, name) for s in scales]) for name in ("centre", "spread", "fill"))
    varies = spread > 0
    known = np.where(np.isnan(raw), fill, raw)
    inputs = np.where(varies, (known - centre) / np.where(varies, spread, 1.0), 0.0)
    low = np.array([-np.inf if scale.low is None else scale.low for scale in scales])
    high = np.array([np.inf if scale.high is None else scale.high for scale in scales])
    return np.clip(inputs, low, high).astype(np.float32)
