"""Sites at which the target seems to be coded the other way round: 1 for no and 0 for yes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations

import numpy as np

from playerfl.data.check.result import DataCheck, listing
from playerfl.data.check.texts.codings import recode_setting
from playerfl.data.encoding.cells import Numbers

MOST_ROWS, MOST_COLUMNS, MOST_SITES = 2_000, 200, 40
_FEWEST_ROWS = 30
_WEAK = 0.15
_DEVIATIONS = 4.5


def check_direction(
    check: DataCheck,
    inputs: Mapping[str, Sequence[Numbers]],
    targets: Mapping[str, Numbers],
    target: str,
    classes: Sequence[str],
) -> None:
    """Adds a finding if inputs that rise with the target at some sites fall with it at the others.

    `inputs`: columns of some rows of each site, with nan for a missing value; `targets`: of the same rows, in which
    `classes`, if there are any, are numbered in their order.
    """
    usual, odd = _directions({s: (np.array(columns), targets[s]) for s, columns in inputs.items() if columns})
    if not odd:
        return
    where = f"at {listing(odd)}, compared with {listing(usual)}"
    swapped = dict(zip(classes, reversed(classes), strict=True)) if len(classes) == 2 else {}
    check.add(
        "warning",
        "labels",
        f"target {target!r} may be coded the other way round {where}: the inputs that rise with it at one fall "
        "with it at the other",
        recode_setting({f"{site}/{target}": swapped for site in odd}) if swapped else None,
        target,
        odd,
    )


def _directions(sites: Mapping[str, tuple[Numbers, Numbers]]) -> tuple[list[str], list[str]]:
    """The largest group of sites that agree, and the sites that contradict one of them.

    A sum of a site's inputs, weighted with their correlations with the target at another one, must correlate with its
    target; far below 0, by more than chance and in both directions, it says that one of them has reversed it.

    >>> rng = np.random.default_rng(0)
    >>> rows = {site: rng.normal(size=(3, 200)) for site in "abc"}
    >>> _directions({site: (x, x[0] if site != "b" else -x[0]) for site, x in rows.items()})
    (['a', 'c'], ['b'])
    """
    known: dict[str, tuple[Numbers, Numbers]] = {}
    for site, (columns, target) in list(sites.items())[:MOST_SITES]:
        there = ~np.isnan(target)
        if there.sum() >= _FEWEST_ROWS and np.ptp(target[there]) > 0:
            known[site] = _standardised(columns[:, there]), _standardised(target[None, there])[0]
    weights = {site: columns @ target for site, (columns, target) in known.items()}
    signs = {}
    for pair in combinations(known, 2):
        both = [_correlation(weights[a] @ known[b][0], known[b][1]) for a, b in (pair, pair[::-1])]
        least = [max(_WEAK, _DEVIATIONS / np.sqrt(len(known[site][1]))) for site in pair[::-1]]
        signs[frozenset(pair)] = all(c > t for c, t in zip(both, least, strict=True)) - all(
            c < -t for c, t in zip(both, least, strict=True)
        )
    groups: list[list[str]] = []
    for site in known:
        met = [group for group in groups if any(signs[frozenset((site, other))] > 0 for other in group)]
        groups = [group for group in groups if group not in met]
        groups.append([*(other for group in met for other in group), site])
    usual = max(groups, key=len, default=[])
    odd = [site for site in known if site not in usual and any(signs[frozenset((site, other))] < 0 for other in usual)]
    return usual, odd


def _standardised(rows: Numbers) -> Numbers:
    """Every row with mean 0 and variance 1 over its columns; 0 where a value is missing."""
    seen = ~np.isnan(rows)
    count = seen.sum(1, keepdims=True).clip(1)
    filled = np.where(seen, rows, 0.0)
    centred = np.where(seen, rows - filled.sum(1, keepdims=True) / count, 0.0)
    spread = np.sqrt((centred**2).sum(1, keepdims=True) / count)
    return np.where(spread > 0, centred / np.where(spread > 0, spread, 1.0), 0.0).clip(-10, 10)


def _correlation(score: Numbers, target: Numbers) -> float:
    return float(np.corrcoef(score, target)[0, 1]) if np.ptp(score) > 0 else 0.0
