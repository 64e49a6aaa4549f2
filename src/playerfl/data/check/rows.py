"""Rows that occur more than once, within a site or at several, exactly or nearly."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from playerfl.data.check.result import DataCheck, set_to
from playerfl.data.encoding.cells import Cells, Numbers
from playerfl.data.encoding.scaling import robust_spread
from playerfl.data.partition import Indices
from playerfl.seeding import seed_for

Hashes = NDArray[np.uint64]
_MIX = np.uint64(0x9E3779B97F4A7C15)
# Rows of a few coarse columns coincide by chance; and columns that depend on each other do so more often.
_BY_CHANCE = 10.0
_NEGLIGIBLE = 0.001
_SAMPLED, _COMPARED = 400, 4000
_NEIGHBOUR = 10
_FEWEST_COLUMNS = 3
_CLOSE = 0.15
_FEWEST_ROWS, _FEWEST_VALUES = 40, 10
_OFTEN, _UNSORTED = 0.3, 0.25
_MOST = 0.5


def cell_hashes(cells: Cells) -> Hashes:
    """A number for every cell, which depends only on the cell's value."""
    import pandas as pd

    hashes = _mixed((cells.numbers + 0.0).view(np.uint64))
    hashes[cells.is_missing] = 0
    if cells.texts is not None and cells.is_text.any():
        names, codes = cells.spellings
        of_names = pd.util.hash_array(np.array([*names, ""], dtype=object))
        hashes = np.where(cells.is_text, of_names[codes], hashes)
    return hashes


def _mixed(values: Hashes) -> Hashes:
    spread = values ^ (values >> np.uint64(31))
    spread *= _MIX
    return np.asarray(spread ^ (spread >> np.uint64(29)))


def combined(hashes: Hashes | None, further: Hashes) -> Hashes:
    """The hashes of rows with one more column."""
    return further if hashes is None else _mixed(hashes + _MIX) ^ further


def coincidence(hashes: Hashes) -> float:
    """How often two different rows have the same value in a column.

    >>> coincidence(np.array([1, 1, 2, 2], dtype=np.uint64)) == 2 / 6
    True
    """
    counts = np.unique(hashes, return_counts=True)[1].astype(float)
    return float((counts * (counts - 1)).sum() / max(1, len(hashes) * (len(hashes) - 1)))


def check_duplicates(
    check: DataCheck,
    hashes: Mapping[str, Hashes],
    chance: float,
    what: str = "rows",
    groups: Mapping[str, Indices] | None = None,
    *,
    can_set: bool = True,
) -> None:
    """Adds findings on exact duplicates; `chance` is that of two unrelated rows being equal (see `coincidence`).

    `groups`: the group of every row, if there are any; copies within a group do no harm.
    `can_set`: whether the task has settings for groups and sites.
    """
    unique = {site: np.unique(of_site) for site, of_site in hashes.items()}
    apart = {
        site: _one_per_group(of_site, None if groups is None else groups[site]) for site, of_site in hashes.items()
    }
    repeated = {
        site: len(of_site) - len(np.unique(of_site))
        for site, of_site in apart.items()
        if _too_many(_equal_pairs(of_site), chance * len(of_site) ** 2 / 2)
    }
    if repeated:
        shown = ", ".join(f"{site} {count:,} of {len(hashes[site]):,}" for site, count in repeated.items())
        start = f"{what} that repeat an earlier one ({shown}): copies may be in both training and test; remove them"
        if groups is not None:
            start = (
                f"{what} that repeat one of another group ({shown}): copies may be in both training and test; remove "
                "them"
            )
        ask = groups is None and can_set
        check.add(
            "warning",
            "duplicates",
            f"{start}, or keep them together" if ask else start,
            "data.group=COLUMN" if ask else None,
            sites=repeated,
        )
    for first, second in combinations(sorted(hashes), 2):
        common = len(np.intersect1d(unique[first], unique[second], assume_unique=True))
        smaller = min(len(unique[first]), len(unique[second]))
        if not _too_many(common, chance * len(unique[first]) * len(unique[second])):
            continue
        setting = set_to("skip_sites", second) if 2 * common > smaller and can_set else None
        text = f"{first} and {second} have {common:,} {what} in common"
        hint = ", so one may be a copy of the other" if 2 * common > smaller else ""
        check.add("warning", "duplicates", f"{text} (of {smaller:,}){hint}", setting, sites=(first, second))


def _too_many(pairs: int, expected: float) -> bool:
    """Whether more rows are equal than chance explains; where it explains any, one or two are not worth reporting."""
    return pairs > _BY_CHANCE * expected + (2 if expected > _NEGLIGIBLE else 0)


def _one_per_group(hashes: Hashes, groups: Indices | None) -> Hashes:
    """Equal rows of one group as one row."""
    if groups is None:
        return hashes
    different: Hashes = np.unique(np.stack([hashes.view(np.int64), groups]), axis=1)[0].view(np.uint64)
    return different


def _equal_pairs(hashes: Hashes) -> int:
    counts = np.unique(hashes, return_counts=True)[1]
    return int((counts * (counts - 1) // 2).sum())


def nearly_repeated(columns: Sequence[Numbers], groups: Indices | None = None) -> float:
    """The share of a site's rows that have a near-duplicate, as repeated measurements of one subject do.

    Such a row is much closer to its nearest neighbour than to its tenth; among unrelated rows of three or more
    measurements, the two distances are alike. Judged on up to 400 rows; with groups, rows of the same do not count.

    >>> rng = np.random.default_rng(0)
    >>> apart = rng.normal(size=(6, 300))
    >>> visits = np.repeat(rng.normal(size=(6, 100)), 3, axis=1) + rng.normal(0, 0.01, (6, 300))
    >>> nearly_repeated(list(apart)) < 0.05, nearly_repeated(list(visits)) > 0.95
    (True, True)
    """
    measured = [column for column in columns if not np.isnan(column).any() and _is_fine(column)]
    if len(measured) < _FEWEST_COLUMNS or len(measured[0]) <= 2 * _NEIGHBOUR:
        return 0.0
    rng = np.random.default_rng(seed_for("near duplicates"))
    # Neighbouring rows are kept: files often list a subject's rows one after the other.
    start = int(rng.integers(0, max(1, len(measured[0]) - _COMPARED)))
    rows = np.stack([column[start : start + _COMPARED] for column in measured], axis=1)
    scale = np.array([robust_spread(column)[1] or 1.0 for column in rows.T])
    rows = np.clip((rows - np.median(rows, 0)) / scale, -30, 30)
    chosen = rng.permutation(len(rows))[:_SAMPLED]
    squared = (rows**2).sum(1)
    distances = squared[chosen][:, None] + squared[None] - 2 * rows[chosen] @ rows.T
    distances[np.arange(len(chosen)), chosen] = np.inf
    if groups is not None:
        nearby = groups[start : start + _COMPARED]
        distances[nearby[chosen][:, None] == nearby[None]] = np.inf
    nearest = np.sqrt(np.partition(distances, (0, _NEIGHBOUR - 1), axis=1).clip(0))
    first, tenth = nearest[:, 0], nearest[:, _NEIGHBOUR - 1]
    return float(np.mean((first < _CLOSE * tenth) & (tenth > 0) & (tenth < np.inf)))


def _is_fine(column: Numbers) -> bool:
    """Whether it has many different values, as measurements do."""
    return len(np.unique(column[:_COMPARED])) > 0.2 * min(len(column), _COMPARED)


def repeats_above(values: Numbers) -> float:
    """How often a row has the value of the row above, in a column of many values by which the rows are not sorted.

    So it is where the rows of a subject follow each other; 0 where chance or sorting may explain it.

    >>> ages = np.random.default_rng(0).integers(20, 90, 60).astype(float)
    >>> round(repeats_above(np.repeat(ages, 3)), 1), repeats_above(np.repeat(np.sort(ages), 3)), repeats_above(ages)
    (0.7, 0.0, 0.0)
    """
    if len(values) < _FEWEST_ROWS or np.isnan(values).any() or len(np.unique(values)) < _FEWEST_VALUES:
        return 0.0
    steps = np.diff(values)
    changes = steps[steps != 0]
    share, by_chance = float((steps == 0).mean()), coincidence(values.view(np.uint64))
    is_sorted = not _UNSORTED <= (changes > 0).mean() <= 1 - _UNSORTED
    return 0.0 if share < max(_OFTEN, _BY_CHANCE * by_chance) or is_sorted else share


def check_repeats_above(check: DataCheck, shares: Mapping[str, Mapping[str, float]]) -> None:
    """`shares`: `repeats_above` of some columns of every site."""
    column, of_column = max(shares.items(), key=lambda item: max(item[1].values(), default=0.0), default=("", {}))
    found = {site: share for site, share in of_column.items() if share > 0}
    if not found:
        return
    shown = ", ".join(f"{site} {share:.0%}" for site, share in found.items())
    check.add(
        "warning",
        "groups",
        f"many rows have the same {column!r} as the row above ({shown}), although the rows are not sorted by it, as "
        "several rows of one subject do; if so, name the column that says whose they are, or such rows will be in "
        "training and in test",
        "data.group=COLUMN",
        sites=found,
    )


def check_near_duplicates(check: DataCheck, shares: Mapping[str, float], *, grouped: bool) -> None:
    """`shares`: of each site's rows, how many are nearly repeated; if rows are grouped, in another group."""
    suspicious = {site: share for site, share in shares.items() if share > _MOST}
    if not suspicious:
        return
    shown = ", ".join(f"{site} {share:.0%}" for site, share in suspicious.items())
    alike = "as repeated measurements of one subject do"
    if grouped:
        text = f"most rows have a near-duplicate in another group ({shown}), {alike}; does data.group name the subject?"
    else:
        text = (
            f"most rows have a near-duplicate ({shown}), {alike}; if so, name the column that says whose they are, or "
            "such rows will be in both training and test"
        )
    check.add("warning", "groups", text, None if grouped else "data.group=COLUMN", sites=suspicious)
