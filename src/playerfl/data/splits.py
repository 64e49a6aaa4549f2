"""Splits a site's examples into training, validation and test: by default 64 %, 16 % and 20 %."""

from __future__ import annotations

import numpy as np

from playerfl.data.partition import Indices
from playerfl.errors import DataError
from playerfl.seeding import seed_for

Shares = tuple[float, float, float]
"""Of training, validation and test."""
SHARES: Shares = (0.64, 0.16, 0.2)


def three_way_split(
    labels: Indices, *, seed: int = 42, groups: Indices | None = None, shares: Shares = SHARES
) -> tuple[Indices, Indices, Indices]:
    """Positions for training, validation and test: the share of test first, then validation from the rest.

    Stratified if every class has at least 3 examples (one per part), plain otherwise. Examples of one group (such as
    images of one lesion) are never separated; a group counts as its first example.

    >>> train, validation, test = three_way_split(np.repeat([0, 1], 50))
    >>> len(train), len(validation), len(test)
    (64, 16, 20)
    """
    if groups is not None:
        _, first, member_of = np.unique(groups, return_index=True, return_inverse=True)
        parts = three_way_split(labels[first], seed=seed, shares=shares)
        train, validation, test = (np.flatnonzero(np.isin(member_of, part)) for part in parts)
        return train, validation, test
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


def _cut_in_three(members: Indices, shares: Shares) -> tuple[Indices, Indices, Indices]:
    """The test part first, then the validation part from the rest; at least one member for each part."""
    train_share, validation_share, test_share = shares
    count = len(members)
    test = min(max(1, round(test_share * count)), count - 2)
    rest = count - test
    validation = min(max(1, round(validation_share / (train_share + validation_share) * rest)), rest - 1)
    return members[test + validation :], members[test : test + validation], members[:test]
