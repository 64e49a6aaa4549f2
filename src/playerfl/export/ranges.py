"""Ranges: where the values of a site's training rows lie, so that a prediction can say when it extrapolates.

A model folder may leave its site, so a limit is never a single patient's value: it is a quantile with at least five
rows beyond it, moved outwards. Normally distributed values leave the range about once in 16,000.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray
from torch import Tensor
from typing_extensions import TypedDict

from playerfl.data.encoding.encoding import TableEncoding

Numbers = NDArray[np.float64]
ROWS_BEYOND = 5
_REACH = 4.0
"""How far a range reaches, in standard deviations of normally distributed values."""
_OUTER = 0.005
_LOW_TAIL = 0.05
# A tensor with more numbers per row, such as a picture, has one range for all of them.
_MOST_POSITIONS = 100
_MOST_NUMBERS = 1_000_000


class RangeRecord(TypedDict):
    """The range of one number per row, or of all numbers of an input."""

    column: str
    input: int
    """The number of the model's input."""
    position: int | None
    """The place of the number in a row of the input; None: all of them."""
    low: float
    high: float
    middle: tuple[float, float] | None
    """Between these are half of the training values; None if there are too few rows to say."""


def table_ranges(encoding: TableEncoding, scaled: Numbers) -> list[RangeRecord]:
    """For every model input of a table, from the site's training rows as the model takes them."""
    ranges: list[RangeRecord] = []
    position = 0
    for column in encoding.columns:
        for scale in column.scales:
            values = scaled[:, position]
            if column.kind.is_measured:
                # The fill value of a missing cell becomes exactly 0, and is not a measurement.
                known = values[values != 0] if encoding.fills_missing else values
                limits = value_range(known * scale.spread + scale.centre)
                if limits is None and scale.spread > 0 and len(values) >= ROWS_BEYOND:
                    # What the scale says already.
                    far = _REACH * scale.spread
                    limits = (scale.centre - far, scale.centre + far, None)
                elif scale.spread == 0:
                    slack = 1e-6 * abs(scale.centre)
                    limits = (scale.centre - slack, scale.centre + slack, None)
                if limits is not None:
                    limits = (min(limits[0], scale.centre), max(limits[1], scale.centre), limits[2])
            else:
                # The fill value is the share of the training rows that have this category, or true.
                never, always = scale.fill == 0, scale.fill == 1 and column.kind.kind == "boolean"
                limits = None if column.kind.kind == "time" else (float(always), float(not never), None)
            if limits is not None:
                ranges.append(_record(column.kind.name, 0, position, *limits))
            position += 1
    return ranges


def tensor_ranges(inputs: Mapping[str, Tensor]) -> list[RangeRecord]:
    """Of the inputs of a model that takes tensors, from a site's training rows; whole numbers (tokens) have none."""
    ranges: list[RangeRecord] = []
    for number, (name, tensor) in enumerate(inputs.items()):
        if not tensor.is_floating_point():
            continue
        rows: Numbers = tensor.reshape(len(tensor), -1).double().numpy()
        if rows.shape[1] > _MOST_POSITIONS:
            some = rows.reshape(-1)[:: max(1, rows.size // _MOST_NUMBERS)]
            columns: Sequence[tuple[str, int | None, Numbers]] = [(name, None, some)]
        else:
            several = rows.shape[1] > 1
            columns = [(f"{name}[{i}]" if several else name, i, rows[:, i]) for i in range(rows.shape[1]) if len(rows)]
        for column, position, values in columns:
            if (limits := value_range(values)) is not None:
                ranges.append(_record(column, number, position, *limits))
    return ranges


def picture_ranges(measures: Tensor) -> list[RangeRecord]:
    """Of a site's training images, from `picture_measures`."""
    both = [value_range(values) for values in measures.double().numpy().T]
    named = zip(("brightness", "contrast"), both, strict=True)
    return [_record(name, 0, i, *limits) for i, (name, limits) in enumerate(named) if limits is not None]


def value_range(values: Numbers) -> tuple[float, float, tuple[float, float] | None] | None:
    """The lowest and the highest value that are not surprising, and the quartiles; None if there are too few values.

    >>> low, high, middle = value_range(np.arange(1000.0) / 10)
    >>> round(low, 1), round(high), [round(quartile) for quartile in middle]
    (0.0, 127, [25, 75])
    """
    if len(values) < 4 * ROWS_BEYOND:
        return None
    share = max(_OUTER, ROWS_BEYOND / len(values))
    low, first, third, high = np.quantile(values, (share, 0.25, 0.75, 1 - share)).tolist()
    if low == high:
        # Nearly all values are the same; the others decide, unless they are only a few patients.
        others = values[values != low]
        if len(others) < ROWS_BEYOND:
            slack = 1e-6 * abs(low)
            return low - slack, high + slack, None
        centre, spread = float(others.mean()), float(others.std())
        low, high = min(low, centre - _REACH * spread), max(high, centre + _REACH * spread)
    else:
        reached = NormalDist().inv_cdf(1 - share)
        margin = (high - low) * (_REACH - reached) / (2 * reached) if reached < _REACH else 0.0
        low, high = low - margin, high + margin
    return *_on_its_side_of_zero(values, low, high, share), (first, third)


def _on_its_side_of_zero(values: Numbers, low: float, high: float, share: float) -> tuple[float, float]:
    """Values that are never negative have a range that is not, either; a tenth of all but the smallest is not usual."""
    if values.min() >= 0:
        small = float(np.quantile(values, max(share, _LOW_TAIL))) / 10 if values.min() > 0 else 0.0
        return max(low, small), high
    if values.max() <= 0:
        return low, min(high, 0.0)
    return low, high


def _record(
    column: str, number: int, position: int | None, low: float, high: float, middle: tuple[float, float] | None
) -> RangeRecord:
    return {"column": column, "input": number, "position": position, "low": low, "high": high, "middle": middle}


def between(low: float, high: float) -> str:
    """A range in words.

    >>> between(0.5, 99.51), between(5.0, 5.000001)
    ('0.5 to 99.5', '5')
    """
    ends = dict.fromkeys(f"{end:.3g}" for end in (low, high))
    return " to ".join(ends)
