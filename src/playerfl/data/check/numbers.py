"""Columns of numbers by site: codes among them, values far away, columns without information."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from playerfl.data.check.result import ColumnProfile, DataCheck, SiteColumn, listing, set_to
from playerfl.data.check.units import check_units, check_units_within
from playerfl.data.encoding.cells import Cells, Numbers
from playerfl.data.encoding.rules import spelled
from playerfl.data.encoding.scaling import FAR, Scaling, robust_spread

_UPPER = (77, 88, 97, 98, 99)
_CODES = (
    *(-1, -9, -99, -999, -9999, -99999, -999999, 0, *_UPPER),
    *(999, 9999, 99999, 999999, 888, 8888, 777, 7777, 997, 998, 9997, 9998),
)
_AWAY = 5.0
_OFTEN, _MORE_OFTEN, _NEAR = 5, 4, 5
_ENOUGH = 10


def profile(cells: Cells, numbers: Numbers | None) -> SiteColumn:
    """`numbers`: those that are there, or None if the column holds none."""
    missing = int(cells.is_missing.sum())
    if numbers is None:
        return SiteColumn(len(cells), missing, len(cells.spellings[0]))
    if len(numbers) == 0:
        return SiteColumn(len(cells), missing, 0)
    ordered = np.sort(numbers)
    distinct = 1 + int((np.diff(ordered) > 0).sum())
    low_5, median, high_95 = (float(ordered[round(share * (len(ordered) - 1))]) for share in (0.05, 0.5, 0.95))
    return SiteColumn(
        *(len(cells), missing, distinct, float(ordered[0]), low_5, median, high_95, float(ordered[-1])),
        spread=robust_spread(ordered)[1],
    )


def check_numbers(
    check: DataCheck,
    column: ColumnProfile,
    numbers: Mapping[str, Numbers],
    *,
    can_set: bool = True,
    is_target: bool = False,
    scaling: Scaling = "auto",
) -> None:
    """Adds findings on a column of numbers; `numbers` are those that are there.

    `can_set`: whether the task has settings for missing codes and scaling; `scaling`: what it is set to.
    """
    name = column.name
    codes = _codes(column, numbers)
    for code, sites in codes.items():
        check.add(
            "warning",
            "codes",
            f"{name!r}: {code} ({', '.join(f'{site} {count:,}' for site, count in sites.items())}) may be a code for "
            "a missing value, but is read as a number",
            f"{set_to('missing_codes', f'{name}={code}')} data.missing=mean" if can_set else None,
            name,
            sites,
        )
    cleaned = {
        site: values[~np.isin(values, [float(code) for code, at in codes.items() if site in at])]
        for site, values in numbers.items()
    }
    cleaned |= check_units_within(check, name, cleaned)
    _check_far(check, name, cleaned, can_set, is_target, scaling)
    check_units(check, column, cleaned)


def check_information(check: DataCheck, column: ColumnProfile, *, can_drop: bool = True) -> None:
    """Columns that are empty or constant, everywhere or at one site."""
    sites = column.sites
    empty = [site for site, of_site in sites.items() if of_site.distinct == 0]
    constant = [site for site, of_site in sites.items() if of_site.distinct == 1]
    drop = set_to("drop_columns", column.name) if can_drop else None
    if len(empty) == len(sites):
        check.add("warning", "empty", f"{column.name!r} is empty at all sites", drop, column.name)
    elif empty:
        check.add("warning", "empty", f"{column.name!r} is empty at {listing(empty)}", drop, column.name, empty)
    if len(sites) > 1 and len(constant) == len(sites):
        check.add("note", "constant", f"{column.name!r} has only one value at every site", drop, column.name)
    elif constant and len(constant) < len(sites):
        text = f"{column.name!r} has only one value at {listing(constant)}, but several elsewhere"
        check.add("warning" if column.kind != "category" else "note", "constant", text, drop, column.name, constant)


def _codes(column: ColumnProfile, numbers: Mapping[str, Numbers]) -> dict[str, dict[str, int]]:
    """Typical codes that are far from all other values, with the number of rows that have them."""
    by_code: dict[str, dict[str, int]] = {}
    for site, values in numbers.items():
        of_site = column.sites[site]
        if of_site.distinct < 4 or of_site.low is None or of_site.high is None:
            continue
        for code in _CODES:
            # A code is the smallest or the largest value, or next to another code.
            if not of_site.low <= code <= of_site.high:
                continue
            count = int((values == code).sum())
            others = values[~np.isin(values, _CODES)]
            if count == 0 or len(others) < _ENOUGH or count > len(others):
                continue
            low, high = others.min(), others.max()
            away = _AWAY * robust_spread(others)[1]
            below = code < low - away or (code in (-1, -9) and low >= 0 and count > 1 and not (others % 1).any())
            above = code > high + away
            # Among ages up to 96, nine times 99 is hardly an age.
            above |= code in _UPPER and code > high and count >= _OFTEN and _stands_alone(values, code, count)
            # A lone 0 or 99 is more often a value than a code.
            if (below or above) and (count > 1 or abs(code) > 100):
                by_code.setdefault(spelled(float(code)), {})[site] = count
    return by_code


def _stands_alone(values: Numbers, code: int, count: int) -> bool:
    """Whether whole numbers have a value that is the largest, and far more frequent than those just below."""
    if (values % 1).any() or values.max() > code:
        return False
    near = [int((values == code - step).sum()) for step in range(1, _NEAR + 1)]
    return count >= _MORE_OFTEN * max(near)


def _check_far(
    check: DataCheck,
    name: str,
    numbers: Mapping[str, Numbers],
    can_set: bool,
    is_target: bool,
    scaling: Scaling,
) -> None:
    far: dict[str, str] = {}
    for site, values in numbers.items():
        if len(values) < _ENOUGH:
            continue
        median, spread = robust_spread(values)
        distance = np.abs(values - median)
        if spread > 0 and distance.max() > FAR * spread:
            furthest = float(values[distance.argmax()])
            far[site] = f"{furthest:.6g} at {site} (median {median:.4g})"
    if far:
        then = ""
        can_set &= scaling != "standard"
        if can_set:
            where = " in training, if such values are few" if is_target else ""
            then = f"; the column is scaled with its median and robust spread, and clipped{where}"
        check.add(
            "warning",
            "outliers",
            f"{name!r}: {listing(list(far.values()))} {'is' if len(far) == 1 else 'are'} very far from the other "
            f"values; correct it if it is wrong{then}",
            "data.scaling=standard" if can_set else None,
            name,
            far,
        )


def ends_with_total(values: Numbers) -> bool:
    """Whether the last value is the sum of all others, as in a row of totals, and larger than each of them.

    >>> ends_with_total(np.array([3.0, 4, 5, 6, 7, 8, 9, 10, 11, 12, 75])), ends_with_total(np.zeros(20))
    (True, False)
    >>> ends_with_total(np.linspace(1e-10, 2e-10, 20))
    False
    """
    if len(values) <= _ENOUGH or np.isnan(values[-1]) or values[-1] == 0:
        return False
    if not np.isclose(np.nansum(values[:-1]), values[-1], rtol=1e-6, atol=0.0):
        return False
    return bool(abs(values[-1]) > np.nanmax(np.abs(values[:-1])))
