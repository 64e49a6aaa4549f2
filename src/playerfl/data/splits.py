"""Splits a site's examples into training, validation and test: by default 64 %, 16 % and 20 %."""

from __future__ import annotations

import numpy as np

from playerfl.data.partition import Indices
from playerfl.errors import DataError
from playerfl.seeding import seed_for

Shares = tuple[float, float, float]
"""Shares of training, validation and test."""
SHARES: Shares = (0.64, 0.16, 0.2)


# A part of a grouped split may have this many times more or fewer rows than its share.
_TOLERATED = 1.25
# Parts with less than this of their share lack rows, because one large group is in another part.
_TOO_SMALL = (0.75, 0.5, 0.5)


def three_way_split(
    labels: Indices, *, seed: int = 42, groups: Indices | None = None, shares: Shares = SHARES
) -> tuple[Indices, Indices, Indices]:
    """Positions for training, validation and test: the share of test first, then validation from the rest.

    Stratified if every class has at least 3 examples (one per part), plain otherwise. Examples of one group (such as
    the visits of one patient) are never separated; see `_split_groups`.

    >>> train, validation, test = three_way_split(np.repeat([0, 1], 50))
    >>> len(train), len(validation), len(test)
    (64, 16, 20)
    """
    if groups is not None:
        return _split_groups(labels, groups, seed, shares)
    if len(labels) < 3:
        raise DataError(f"a site needs at least 3 examples, one for each part, not {len(labels)}")
    rng = np.random.default_rng(seed_for(seed, "split"))
    classes, counts = np.unique(labels, return_counts=True)
    strata = [np.flatnonzero(labels == label) for label in classes]
    if counts.min() < 3:
        strata = [np.arange(len(labels))]
    pieces = [_cut_in_three(rng.permutation(stratum), shares) for stratum in strata]
    train, validation, test = (np.sort(np.concatenate(piece)) for piece in zip(*pieces, strict=True))
    return train, validation, test


def _split_groups(labels: Indices, groups: Indices, seed: int, shares: Shares) -> tuple[Indices, Indices, Indices]:
    """Groups are drawn like examples, each counting as its first example.

    If that leaves a part with far too many or too few rows, of all or of a class, because groups differ in size or
    hold several classes, they are instead dealt one by one, the largest first, to the part that needs them most.
    They are also dealt if one large group leaves the other parts short of rows, and dealing comes closer to the shares.
    """
    _, first, member_of = np.unique(groups, return_index=True, return_inverse=True)
    if len(first) < 3:
        raise DataError(f"a site needs at least 3 groups, one for each part, not {len(first)}")
    parts: tuple[Indices, ...] = three_way_split(labels[first], seed=seed, shares=shares)
    classes, label_of = np.unique(labels, return_inverse=True)
    counts = np.zeros((len(first), len(classes)), dtype=np.int64)
    np.add.at(counts, (member_of, label_of), 1)
    is_balanced = _balanced(parts, counts, shares)
    if not is_balanced or _lacks_rows(parts, counts, shares):
        dealt = _dealt(counts, shares, np.random.default_rng(seed_for(seed, "split groups")))
        if not is_balanced or _distance(dealt, counts, shares) < _distance(parts, counts, shares):
            parts = dealt
    train, validation, test = (np.flatnonzero(np.isin(member_of, part)) for part in parts)
    return train, validation, test


def _balanced(parts: tuple[Indices, ...], counts: Indices, shares: Shares) -> bool:
    """Whether every part has about its share of the rows, and of every class.

    A deviation by the size of the largest group cannot be avoided; nor can one in the classes if some class has too few
    groups for a stratified draw.
    """
    groups = (counts > 0).sum(0)
    enough = counts[:, groups * min(shares) >= 2] if groups.min() >= 3 else counts[:, :0]
    for column in (counts.sum(1), *enough.T):
        for part, share in zip(parts, shares, strict=True):
            wanted, found = share * column.sum(), column[part].sum()
            if not wanted / _TOLERATED - column.max() <= found <= wanted * _TOLERATED + column.max():
                return False
    return True


def _lacks_rows(parts: tuple[Indices, ...], counts: Indices, shares: Shares) -> bool:
    parts_held = _found_shares(parts, counts)
    return any(of_part < least * share for of_part, least, share in zip(parts_held, _TOO_SMALL, shares, strict=True))


def _distance(parts: tuple[Indices, ...], counts: Indices, shares: Shares) -> float:
    """How far the parts' rows are from their shares."""
    return sum(abs(of_part - share) for of_part, share in zip(_found_shares(parts, counts), shares, strict=True))


def _found_shares(parts: tuple[Indices, ...], counts: Indices) -> list[float]:
    return [float(counts[part].sum() / counts.sum()) for part in parts]


def _dealt(counts: Indices, shares: Shares, rng: np.random.Generator) -> tuple[Indices, ...]:
    """The groups (rows of `counts`, which has a column per class) of every part."""
    totals = counts.sum(0)
    wanted = np.outer(shares, totals)
    dealt = np.zeros_like(wanted)
    part_of = np.empty(len(counts), dtype=np.int64)
    order = rng.permutation(len(counts))
    for group in order[np.argsort(-counts[order].sum(1), kind="stable")]:
        # What a group changes in the sum of squared distances from the wanted counts.
        change = counts[group] * (counts[group] + 2 * (dealt - wanted)) / totals**2
        part_of[group] = int(change.sum(1).argmin())
        dealt[part_of[group]] += counts[group]
    smallest_first = np.argsort(counts.sum(1), kind="stable")
    for part in range(3):
        if not (part_of == part).any():
            crowded = np.bincount(part_of, minlength=3).argmax()
            part_of[next(group for group in smallest_first if part_of[group] == crowded)] = part
    return tuple(np.flatnonzero(part_of == part) for part in range(3))


def _cut_in_three(members: Indices, shares: Shares) -> tuple[Indices, Indices, Indices]:
    """The test part first, then the validation part from the rest; at least one member for each part."""
    train_share, validation_share, test_share = shares
    count = len(members)
    test = min(max(1, round(test_share * count)), count - 2)
    rest = count - test
    validation = min(max(1, round(validation_share / (train_share + validation_share) * rest)), rest - 1)
    return members[test + validation :], members[test : test + validation], members[:test]
