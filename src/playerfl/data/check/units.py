"""Numbers in other units: at sites whose numbers hardly overlap with those of the others, or in some rows of a site."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from playerfl.data.check.result import ColumnProfile, DataCheck, listing
from playerfl.data.encoding.cells import Numbers

_ENOUGH = 10
_FEWEST_VALUES = 5
_MOST_COMPARED = 5_000
_FEW = 0.05
_LEAST_GAP = 0.25
_ALIKE = 2.0
_APART = 0.95
"""Of two values from two sites, how often that of one of them is larger if the sites count as apart. Kilograms against
pounds give 0.98; what age and severity do between hospitals stays below 0.9."""


def check_units(check: DataCheck, column: ColumnProfile, numbers: Mapping[str, Numbers]) -> None:
    """Adds a finding if the sites fall into groups whose values hardly overlap; `numbers` are those that are there."""
    known = {
        site: _sample(values)
        for site, values in numbers.items()
        if len(values) >= _ENOUGH and column.sites[site].distinct >= _FEWEST_VALUES
    }
    usual, *others = _overlapping(known)
    for group in others:
        own, usually = (float(np.median(np.concatenate([known[s] for s in sites]))) for sites in (group, usual))
        large, small = max(abs(own), abs(usually)), min(abs(own), abs(usually))
        more = "more" if abs(own) > abs(usually) else "less"
        factor = f", {large / small:.3g} times {more}" if small and own * usually > 0 else ""
        place = f"at {listing(usual)}" if len(usual) + len(group) < len(known) or len(usual) == 1 else "elsewhere"
        check.add(
            "warning",
            "units",
            f"{column.name!r}: the median is {own:.4g} at {listing(group)}, but {usually:.4g} {place}{factor}, and the "
            "values hardly overlap; are the units the same?",
            column=column.name,
            sites=group,
        )


def check_units_within(check: DataCheck, name: str, numbers: Mapping[str, Numbers]) -> dict[str, Numbers]:
    """Adds a finding for a site whose values fall into two groups with nothing between, if no other site has both.

    Returns the values of these sites without those of the odd group.
    """
    halves = {site: groups for site, values in numbers.items() if (groups := _two_groups(values)) is not None}
    usual_values = {}
    for site, (low, high) in halves.items():
        others = [values for other, values in numbers.items() if other != site and len(values) >= _ENOUGH]
        below = [float((values < (low[-1] * high[0]) ** 0.5).mean()) for values in others]
        if not others or not (min(below) >= 1 - _FEW or max(below) <= _FEW):
            continue
        usual, odd = (low, high) if below[0] > 0.5 else (high, low)
        factor = np.median(high) / np.median(low)
        check.add(
            "warning",
            "units",
            f"{name!r} at {site}: {len(odd):,} values around {np.median(odd):.4g} and {len(usual):,} around "
            f"{np.median(usual):.4g}, {factor:.3g} times apart, with none between; other sites have only the latter: "
            "are the units the same?",
            column=name,
            sites=(site,),
        )
        usual_values[site] = usual
    return usual_values


def _two_groups(values: Numbers) -> tuple[Numbers, Numbers] | None:
    """Positive values on both sides of a gap that is wider than each side, with about the same relative spread.

    >>> groups = _two_groups(np.concatenate([np.linspace(4, 7, 30), np.linspace(160, 280, 10)]))
    >>> [len(group) for group in groups], _two_groups(np.linspace(1, 300, 40))
    ([30, 10], None)
    """
    least = max(_FEWEST_VALUES, int(_FEW * len(values)))
    if len(values) < 4 * least or values.min() <= 0:
        return None
    ordered = np.sort(values)
    logs = np.log(ordered)
    gaps = np.diff(logs)[least - 1 : len(logs) - least]
    cut = least + int(gaps.argmax())
    widths = [float(np.ptp(side)) for side in (logs[:cut], logs[cut:])]
    spreads = sorted(float(side.std()) for side in (logs[:cut], logs[cut:]))
    if gaps.max() <= max(max(widths), _LEAST_GAP) or spreads[1] > _ALIKE * spreads[0]:
        return None
    return ordered[:cut], ordered[cut:]


def _sample(values: Numbers) -> Numbers:
    ordered = np.sort(values)
    return ordered[:: -(-len(ordered) // _MOST_COMPARED)]


def _overlapping(known: Mapping[str, Numbers]) -> list[list[str]]:
    """The sites in groups that overlap, directly or through another site; the largest group first."""
    groups: list[list[str]] = []
    for site in known:
        met = [group for group in groups if any(not _are_apart(known[site], known[other]) for other in group)]
        groups = [group for group in groups if group not in met]
        groups.append([*(other for group in met for other in group), site])
    # Of two sites, the second is reported.
    return sorted(groups, key=lambda group: (-len(group), group)) or [[]]


def _are_apart(first: Numbers, second: Numbers) -> bool:
    """
    >>> _are_apart(np.arange(10.0), np.arange(20.0, 30.0)), _are_apart(np.arange(10.0), np.arange(5.0, 15.0))
    (True, False)
    """
    larger = np.searchsorted(second, first, side="left").mean() / len(second)
    not_smaller = np.searchsorted(second, first, side="right").mean() / len(second)
    share = (larger + not_smaller) / 2
    return bool(max(share, 1 - share) >= _APART)
