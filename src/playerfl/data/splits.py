"""A site's examples in three parts: 64 % training, 16 % validation, 20 % test."""

from __future__ import annotations

import numpy as np

from playerfl.data.partition import Indices
from playerfl.errors import DataError
from playerfl.seeding import seed_for

TEST_SHARE = 0.2
VALIDATION_SHARE = 0.2


def three_way_split(labels: Indices, *, seed: int = 42) -> tuple[Indices, Indices, Indices]:
    """Positions for training, validation and test: a fifth for test, then a fifth of the rest for validation.

    Stratified where every class has at least 3 examples (one for each part), plain otherwise.

    >>> train, validation, test = three_way_split(np.repeat([0, 1], 50))
    >>> len(train), len(validation), len(test)
    (64, 16, 20)
    """
    if len(labels) < 3:
        raise DataError(f"a site needs at least 3 examples to be split in three parts, not {len(labels)}")
    rng = np.random.default_rng(seed_for(seed, "split"))
    classes, counts = np.unique(labels, return_counts=True)
    strata = [np.flatnonzero(labels == label) for label in classes]
    groups = strata if counts.min() >= 3 else [np.arange(len(labels))]
    parts = [_cut_in_three(rng.permutation(group)) for group in groups]
    train, validation, test = (np.sort(np.concatenate(part)) for part in zip(*parts, strict=True))
    return train, validation, test


def _cut_in_three(members: Indices) -> tuple[Indices, Indices, Indices]:
    test = max(1, round(TEST_SHARE * len(members)))
    validation = max(1, round(VALIDATION_SHARE * (len(members) - test)))
    return members[test + validation :], members[test : test + validation], members[:test]
