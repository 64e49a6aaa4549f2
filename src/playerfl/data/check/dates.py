"""Dates that are written as numbers, such as 20240131: a model would read them as measurements."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from playerfl.data.check.predictors import name_parts
from playerfl.data.check.result import DataCheck
from playerfl.data.encoding.cells import Flags, Numbers
from playerfl.data.encoding.rules import spelled

_NAMES = {"date", "datum", "day", "time", "timestamp", "datetime", "dob", "dod", "birth", "admitted", "admission"}
_NAMES |= {"discharge", "discharged", "visit", "created", "updated", "fecha", "jour"}
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
        f"data.drop_columns={column}",
        column,
    )
    return True


def are_calendar_dates(values: Numbers) -> Flags:
    """Which whole numbers are a year from 1900 to 2099, a month and a day.

    >>> are_calendar_dates(np.array([20240131.0, 20241301.0, 1.0])).tolist()
    [True, False, False]
    """
    year, month, day = values // 10_000, values // 100 % 100, values % 100
    return np.asarray((year >= 1900) & (year < 2100) & (month >= 1) & (month <= 12) & (day >= 1) & (day <= 31))
