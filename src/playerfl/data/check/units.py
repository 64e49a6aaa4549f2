"""Sites whose numbers hardly overlap with those of the others, as if they were in other units."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from playerfl.data.check.result import ColumnProfile, DataCheck, listing
from playerfl.data.encoding.cells import Numbers

_ENOUGH = 10
_FEWEST_VALUES = 5
_MOST_COMPARED = 5_000
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
