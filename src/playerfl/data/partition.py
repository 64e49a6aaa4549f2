"""Partitions of one pool of examples over sites, as pure functions on labels and indices."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from playerfl.errors import DataError
from playerfl.seeding import seed_for

Indices = NDArray[np.int64]
_TRIES = 1000


def dirichlet_partition(
    labels: Indices, sites: int, alpha: float, *, seed: int = 42, min_size: int = 50
) -> list[Indices]:
    """Label skew: every class is dealt to the sites in shares drawn from Dirichlet(alpha).

    Small alpha gives sites with few classes, large alpha the same mix everywhere. The whole draw is repeated,
    a bounded number of times, until every site has at least `min_size` examples.

    >>> parts = dirichlet_partition(np.repeat(np.arange(4), 50), sites=3, alpha=0.5, min_size=10)
    >>> sum(len(part) for part in parts)
    200
    """
    if not 0 < alpha < float("inf"):
        raise DataError(f"alpha must be greater than 0, not {alpha}; 0.5 is usual")
    if sites < 1:
        raise DataError(f"the number of sites must be at least 1, not {sites}")
    if sites * min_size > len(labels):
        raise DataError(
            f"{sites} sites of at least {min_size} examples need {sites * min_size}, but there are {len(labels)}; "
            "use fewer sites or a smaller min_size"
        )
    for attempt in range(_TRIES):
        parts = _draw(labels, sites, alpha, np.random.default_rng(seed_for(seed, "partition", attempt)))
        if min(map(len, parts)) >= min_size:
            return parts
    raise DataError(
        f"no Dirichlet({alpha:g}) draw in {_TRIES} gave all {sites} sites {min_size} examples; "
        "use a larger alpha, fewer sites or a smaller min_size"
    )


def _draw(labels: Indices, sites: int, alpha: float, rng: np.random.Generator) -> list[Indices]:
    dealt: list[list[Indices]] = [[] for _ in range(sites)]
    for label in np.unique(labels):
        members = rng.permutation(np.flatnonzero(labels == label))
        shares = rng.dirichlet(np.full(sites, alpha))
        stops = np.floor(np.cumsum(shares)[:-1] * len(members)).astype(np.int64)
        for site, part in enumerate(np.split(members, stops)):
            dealt[site].append(part)
    return [np.sort(np.concatenate(parts)).astype(np.int64) for parts in dealt]
