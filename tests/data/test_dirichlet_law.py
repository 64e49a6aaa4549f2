"""Our Dirichlet partition follows the same law as flwr-datasets' (if that is installed) and as numpy's."""

from __future__ import annotations

import numpy as np
import pytest

from playerfl.data.partition import dirichlet_partition

SITES, ALPHA, DRAWS = 5, 0.5, 150
LABELS = np.repeat(np.arange(4), 250)


def largest_shares(parts_of_draws: list[list[np.ndarray]]) -> np.ndarray:  # type: ignore[type-arg]
    """For each draw and class, the share of the site that has most of it."""
    return np.array(
        [
            max(np.mean(np.isin(np.flatnonzero(label == LABELS), part)) for part in parts)
            for parts in parts_of_draws
            for label in range(4)
        ]
    )


def test_shares_follow_flowers_law() -> None:
    flwr_datasets = pytest.importorskip("flwr_datasets", reason="flwr-datasets is not installed")
    datasets = pytest.importorskip("datasets", reason="flwr-datasets needs the package datasets")
    pool = datasets.Dataset.from_dict({"label": LABELS.tolist(), "row": list(range(len(LABELS)))})

    def theirs(seed: int) -> list[np.ndarray]:  # type: ignore[type-arg]
        partitioner = flwr_datasets.partitioner.DirichletPartitioner(
            SITES, "label", ALPHA, min_partition_size=10, self_balancing=False, seed=seed
        )
        partitioner.dataset = pool
        return [np.array(partitioner.load_partition(i)["row"]) for i in range(SITES)]

    ours = largest_shares([dirichlet_partition(LABELS, SITES, ALPHA, seed=s, min_size=10) for s in range(DRAWS)])
    others = largest_shares([theirs(seed) for seed in range(DRAWS)])
    error = np.sqrt(ours.var() / ours.size + others.var() / others.size)
    assert abs(ours.mean() - others.mean()) < 4 * error
    assert abs(ours.std() - others.std()) < 0.03


def test_shares_follow_the_dirichlet_law() -> None:
    """Against draws from the law itself, which needs nothing installed."""
    ours = largest_shares([dirichlet_partition(LABELS, SITES, ALPHA, seed=s, min_size=1) for s in range(DRAWS)])
    drawn = np.random.default_rng(0).dirichlet(np.full(SITES, ALPHA), size=4 * DRAWS).max(axis=1)
    error = np.sqrt(ours.var() / ours.size + drawn.var() / drawn.size)
    assert abs(ours.mean() - drawn.mean()) < 4 * error
