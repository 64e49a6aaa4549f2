"""CheckSummary: the part of a data check that a site may share, as counts and rounded numbers."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from playerfl.data.check.result import ColumnProfile, DataCheck, SiteColumn, listing
from playerfl.data.check.units import check_units
from playerfl.data.schema import LONGEST_NAME, MOST_COLUMNS

_LEAST_ROWS = 20
"""With fewer rows than this, a column would reveal too much about single ones."""
_TOPIC = re.compile(r"[a-z ]{1,30}")
_MOST_TOPICS, _MOST_FINDINGS, _LARGEST = 50, 10**6, 1e100
_MOST_SENTENCES = 20


@dataclass(frozen=True)
class CheckSummary:
    """What one site shares of its check: no value of any row."""

    warnings: Mapping[str, int] = field(default_factory=dict)
    """How many warnings there are, by topic."""
    columns: Mapping[str, tuple[int, float, float, float]] = field(default_factory=dict)
    """By column of numbers: the percentage of missing values, and the 5th percentile, median and 95th percentile with
    two digits."""

    @classmethod
    def of(cls, check: DataCheck, *, columns: bool) -> CheckSummary:
        """The summary of a check of one site's data; `columns`: with the columns of numbers."""
        warnings: dict[str, int] = {}
        for finding in (*check.having("stop"), *check.having("warning")):
            warnings[finding.topic] = warnings.get(finding.topic, 0) + 1
        profiles = {column.name: one for column in check.columns for one in column.sites.values()} if columns else {}
        return cls(warnings, {name: row for name, one in profiles.items() if (row := _row(one))})

    def to_json(self) -> dict[str, Any]:
        return {"warnings": dict(self.warnings), "columns": {name: list(row) for name, row in self.columns.items()}}

    @classmethod
    def from_json(cls, table: Any) -> CheckSummary:
        """The inverse of `to_json`; ValueError for anything else.

        >>> CheckSummary.from_json(CheckSummary({"codes": 2}, {"age": (0, 20.0, 51.0, 88.0)}).to_json()).warnings
        {'codes': 2}
        """
        try:
            warnings, columns = dict(table["warnings"]), {name: tuple(row) for name, row in table["columns"].items()}
        except (KeyError, TypeError, ValueError, AttributeError) as problem:
            raise ValueError(f"not the summary of a data check ({type(problem).__name__})") from problem
        counts = all(type(n) is int and 0 <= n <= _MOST_FINDINGS for n in warnings.values())
        if len(warnings) > _MOST_TOPICS or not counts or not all(map(_TOPIC.fullmatch, map(str, warnings))):
            raise ValueError("the warnings of a data check are counts by topic")
        named = all(type(name) is str and len(name) <= LONGEST_NAME for name in columns)
        if len(columns) > MOST_COLUMNS or not named or not all(map(_is_row, columns.values())):
            raise ValueError("the columns of a data check have four numbers each")
        return cls(warnings, {name: (row[0], *map(float, row[1:])) for name, row in columns.items()})


def _row(column: SiteColumn) -> tuple[int, float, float, float] | None:
    if column.rows - column.missing < _LEAST_ROWS or column.low_5 is None:
        return None
    values = [float(f"{value:.1e}") for value in (column.low_5, column.median or 0.0, column.high_95 or 0.0)]
    return round(100 * column.missing / column.rows), values[0], values[1], values[2]


def _is_row(row: tuple[Any, ...]) -> bool:
    plain = len(row) == 4 and type(row[0]) is int and all(type(value) in (int, float) for value in row)
    return plain and 0 <= row[0] <= 100 and all(abs(value) <= _LARGEST for value in row)


def compared(summaries: Mapping[str, CheckSummary]) -> list[str]:
    """Sentences about what the sites have found, and about columns that one of them may have in another unit.

    >>> mmol, mg = (0, 4.0, 5.5, 9.0), (0, 72.0, 99.0, 160.0)
    >>> for line in compared({site: CheckSummary(columns={"glucose": mg if site == "c" else mmol}) for site in "abc"}):
    ...     print(line)
    'glucose': the median is 99 at c, but 5.5 elsewhere, 18 times more, and the values hardly overlap; are the units \
the same?
    """
    lines = [
        f"{site}'s data check has warnings about {listing([f'{topic} ({n})' for topic, n in one.warnings.items()])}"
        for site, one in sorted(summaries.items())
        if one.warnings
    ]
    check = DataCheck("")
    for name in dict.fromkeys(name for one in summaries.values() for name in one.columns):
        rows = {site: one.columns[name] for site, one in sorted(summaries.items()) if name in one.columns}
        sites = {
            site: SiteColumn(_LEAST_ROWS, 0, _LEAST_ROWS, low_5=low, median=median, high_95=high)
            for site, (_, low, median, high) in rows.items()
        }
        # An odd number of values between the three that are known of a site, so that its median stays what it is.
        spread = np.linspace(0.05, 0.95, _LEAST_ROWS + 1)
        numbers = {site: np.interp(spread, (0.05, 0.5, 0.95), row[1:]) for site, row in rows.items()}
        check_units(check, ColumnProfile(name, "number", sites), numbers)
    return [*lines, *(finding.text for finding in check.findings)][:_MOST_SENTENCES]
