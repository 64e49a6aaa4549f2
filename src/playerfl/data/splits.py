"""Splits a site's examples into 64 % training, 16 % validation and 20 % test."""

from __future__ import annotations

import numpy as np

from playerfl.data.partition import Indices
from playerfl.errors import DataError
from playerfl.seeding import seed_for

TEST_SHARE = 0.2
VALIDATION_SHARE = 0.2


def three_way_split(
    labels: Indices, *, seed: int = 42, groups: Indices | None = None
) -> tuple[Indices, Indices, Indices]:
    """Positions for training, validation and test: a fifth for test, then a fifth of the rest for validation.

    Stratified if every class has at least 3 examples (one per part), plain otherwise. Examples of one group (such as
    images of one lesion) are never separated; a group counts as its first example.

    >>> train, validation, test = three_way_split(np.repeat([0, 1], 50))
    >>> len(train), len(validation), len(test)
    (64, 16, 20)
    """
    if groups is not None:
        _, first, member_of = np.unique(groups, return_index=True, return_inverse=True)
        parts = three_way_split(labels[first], seed=seed)
        train, validation, test = (np.flatnonzero(np.isin(member_of, part)) for part in parts)
        return train, validation, test
    if len(labels) < 3:
        raise DataError(f"a site needs at least 3 examples, one for each part, not {len(labels)}")
    rng = np.random.default_rng(seed_for(seed, "split"))
    classes, counts = np.unique(labels, return_counts=True)
    strata = [np.flatnonzero(labels == label) for label in classes]
    if counts.min() < 3:
        strata = [np.arange(len(labels))]
    pieces = [_cut_in_three(rng.permutation(stratum)) for stratum in strata]
    train, validation, test = (np.sort(np.concatenate(piece)) for piece in zip(*pieces, strict=True))
    return train, validation, test


def _cut_in_three(members: Indices) -> tuple[Indices, Indices, Indices]:
    test = max(1, round(TEST_SHARE * len(members)))
    validation = max(1, round(VALIDATION_SHARE * (len(members) - test)))
    return members[test + validation :], members[test : test + validation], members[:test]
