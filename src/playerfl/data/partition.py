"""Ways to divide one pool of examples among sites: pure functions of labels and indices."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from playerfl.errors import DataError
from playerfl.seeding import seed_for

Indices = NDArray[np.int64]
_TRIES = 1000


def dirichlet_partition(
    labels: Indices,
    sites: int,
    alpha: float,
    *,
    seed: int = 42,
    min_size: int = 50,
    usable: Callable[[list[Indices]], bool] = lambda parts: True,
) -> list[Indices]:
    """Label skew: every class is divided among the sites in shares drawn from Dirichlet(alpha).

    A small alpha gives sites with few classes, a large one the same mix everywhere. The whole draw is repeated, up
    to a fixed number of times, until every site has at least `min_size` examples and the draw is `usable`.

    >>> parts = dirichlet_partition(np.repeat(np.arange(4), 50), sites=3, alpha=0.5, min_size=10)
    >>> sum(len(part) for part in parts)
    200
    """
    if not 0 < alpha < float("inf"):
        raise DataError(f"alpha must be greater than 0 and finite, not {alpha}; 0.5 is usual")
    if sites < 1:
        raise DataError(f"the number of sites must be at least 1, not {sites}")
    if sites * min_size > len(labels):
        raise DataError(
            f"{sites} sites of at least {min_size} examples need {sites * min_size}, but there are {len(labels)}; "
            "use fewer sites or a smaller min_size"
        )
    large_enough = False
    for attempt in range(_TRIES):
        parts = _draw(labels, sites, alpha, np.random.default_rng(seed_for(seed, "partition", attempt)))
        if min(map(len, parts)) >= min_size:
            large_enough = True
            if usable(parts):
                return parts
    lacking = "a second class to train on" if large_enough else f"{min_size} examples"
    remedy = "data.accept_small_sites=true" if large_enough else "a smaller min_size"
    raise DataError(
        f"none of {_TRIES} Dirichlet({alpha:g}) draws gave each of the {sites} sites {lacking}; "
        f"use a larger alpha, fewer sites or {remedy}"
    )


def _draw(labels: Indices, sites: int, alpha: float, rng: np.random.Generator) -> list[Indices]:
    dealt: list[list[Indices]] = [[] for _ in range(sites)]
    for label in np.unique(labels):
        members = rng.permutation(np.flatnonzero(labels == label))
        # Shares are rounded down; the last site takes the rest.
        shares = rng.dirichlet(np.full(sites, alpha))
        stops = np.floor(np.cumsum(shares)[:-1] * len(members)).astype(np.int64)
        for site, part in enumerate(np.split(members, stops)):
            dealt[site].append(part)
    return [np.sort(np.concatenate(parts)).astype(np.int64) for parts in dealt]


def quantity_partition(
    labels: Indices, sites: int, alpha: float, *, seed: int = 42, min_size: int = 50
) -> list[Indices]:
    """Quantity skew: the same mix of classes everywhere, sizes drawn from Dirichlet(alpha).

    >>> sizes = [len(part) for part in quantity_partition(np.zeros(200, dtype=int), 3, 0.5, min_size=10)]
    >>> sum(sizes), min(sizes) >= 10
    (200, True)
    """
    return dirichlet_partition(np.zeros_like(labels), sites, alpha, seed=seed, min_size=min_size)


def shard_partition(labels: Indices, sites: int, shards_per_site: int = 2, *, seed: int = 42) -> list[Indices]:
    """Pathological skew: examples are sorted by class and cut into equal shards; each site gets a few shards.

    >>> parts = shard_partition(np.repeat(np.arange(4), 10), sites=2, shards_per_site=2)
    >>> [len(part) for part in parts]
    [20, 20]
    """
    shards = sites * shards_per_site
    if shards_per_site < 1 or not 1 <= shards <= len(labels):
        raise DataError(
            f"{sites} sites with {shards_per_site} shards each need 1 to {len(labels)} shards in all, not {shards}; "
            "use fewer"
        )
    rng = np.random.default_rng(seed_for(seed, "partition"))
    mixed = rng.permutation(len(labels))
    by_class = mixed[np.argsort(labels[mixed], kind="stable")]
    cut = np.array_split(by_class, shards)
    dealt = rng.permutation(shards).reshape(sites, shards_per_site)
    return [np.sort(np.concatenate([cut[shard] for shard in shards])).astype(np.int64) for shards in dealt]


def equal_partition(labels: Indices, sites: int, *, seed: int = 42) -> list[Indices]:
    """No skew: a random share of the same size for each site.

    >>> [len(part) for part in equal_partition(np.zeros(10, dtype=int), sites=3)]
    [4, 3, 3]
    """
    if not 1 <= sites <= len(labels):
        raise DataError(f"the number of sites must be between 1 and {len(labels)}, the number of examples, not {sites}")
    mixed = np.random.default_rng(seed_for(seed, "partition")).permutation(len(labels))
    return [np.sort(part).astype(np.int64) for part in np.array_split(mixed, sites)]


def partition_by_id(ids: Sequence[str]) -> dict[str, Indices]:
    """Natural sites: examples with the same id form a site; sites are sorted by name.

    >>> partition_by_id(["b", "a", "b"])
    {'a': array([1]), 'b': array([0, 2])}
    """
    members: dict[str, list[int]] = {}
    for position, name in enumerate(ids):
        members.setdefault(name, []).append(position)
    return {name: np.array(members[name], dtype=np.int64) for name in sorted(members)}
