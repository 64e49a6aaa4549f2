"""Dates that are written as numbers, such as 20240131: a model would read them as measurements."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from playerfl.data.check.predictors import name_parts
from playerfl.data.check.result import DataCheck, set_to
from playerfl.data.encoding.cells import Flags, Numbers
from playerfl.data.encoding.rules import spelled

_NAMES = {"date", "datum", "day", "time", "timestamp", "datetime", "dob", "dod", "birth", "admitted", "admission"}
_NAMES |= {
    "discharge",
    "discharged",
    "visit",
    "created",
    "updated",
    "fecha",
    "jour",
    "dt",
    "birthday",
    "geburtsdatum",
    "aufnahmedatum",
}
_ENOUGH = 10
_MOST = 0.95


def check_dates(check: DataCheck, column: str, numbers: Mapping[str, Numbers]) -> bool:
    """Adds a finding if a column's whole numbers are dates, and returns whether; `numbers` are those that are there."""
    values = np.concatenate([of_site[:1000] for of_site in numbers.values()])
    if len(values) < _ENOUGH or (values % 1).any() or len(np.unique(values)) < 3:
        return False
    sounds_so = bool(name_parts(column) & _NAMES)
    if are_calendar_dates(values).mean() >= _MOST:
        meaning = "a date written as one number (year, month, day)"
    elif max(are_calendar_dates(turned).mean() for turned in _year_first(values)) >= _MOST:
        meaning = "a date written as one number (its year last)"
    elif sounds_so and values.min() > 10_100 and are_calendar_dates(values + 20_000_000).mean() >= _MOST:
        meaning = "a date written as one number (two digits of the year, month, day)"
    elif sounds_so and ((values > 3e8) & (values < 4e12)).all():
        meaning = "a time stamp"
    elif sounds_so and ((values > 20_000) & (values < 60_000)).all():
        meaning = "a date as a spreadsheet counts days"
    else:
        return False
    check.add(
        "warning",
        "dates",
        f"{column!r}: {spelled(float(values[0]))} looks like {meaning}, but is read as a measurement; convert "
        "it to a number such as days since admission, or leave it out",
        set_to("drop_columns", column),
        column,
    )
    return True


def _year_first(values: Numbers) -> tuple[Numbers, Numbers]:
    """Numbers read as day, month and year, and as month, day and year, in the order year, month, day.

    >>> [turned.tolist() for turned in _year_first(np.array([31012024.0]))]
    [[20240131.0], [20243101.0]]
    """
    first, second, year = values // 1_000_000, values // 10_000 % 100, values % 10_000
    return year * 10_000 + second * 100 + first, year * 10_000 + first * 100 + second


def are_calendar_dates(values: Numbers) -> Flags:
    """Which whole numbers are a year from 1900 to 2099, a month and a day.

    >>> are_calendar_dates(np.array([20240131.0, 20241301.0, 1.0])).tolist()
    [True, False, False]
    """
    year, month, day = values // 10_000, values // 100 % 100, values % 100
    return np.asarray((year >= 1900) & (year < 2100) & (month >= 1) & (month <= 12) & (day >= 1) & (day <= 31))
