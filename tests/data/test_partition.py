"""Dirichlet label skew: a true partition, deterministic, following the law it is named after."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from playerfl.data.partition import (
    Indices,
    dirichlet_partition,
    equal_partition,
    partition_by_id,
    quantity_partition,
    shard_partition,
)
from playerfl.errors import DataError

LABELS = np.repeat(np.arange(10), 200)


def class_shares(parts: list[Indices]) -> np.ndarray:
    """Share of each class (column) that each site (row) holds."""
    counts = np.array([np.bincount(LABELS[part], minlength=10) for part in parts])
    return counts / counts.sum(0)


@given(
    st.lists(st.integers(0, 5), min_size=1, max_size=80), st.integers(1, 6), st.floats(0.01, 100), st.integers(0, 999)
)
def test_every_example_goes_to_exactly_one_site(labels: list[int], sites: int, alpha: float, seed: int) -> None:
    parts = dirichlet_partition(np.array(labels), sites, alpha, seed=seed, min_size=0)
    assert len(parts) == sites
    assert sorted(np.concatenate(parts).tolist()) == list(range(len(labels)))


def test_the_seed_decides_the_partition_and_the_global_random_state_does_not() -> None:
    def draw(seed: int) -> list[list[int]]:
        return [part.tolist() for part in dirichlet_partition(LABELS, 5, 0.5, seed=seed)]

    assert draw(1) == draw(1)
    assert draw(1) != draw(2)


def test_a_huge_alpha_gives_every_site_the_same_mix() -> None:
    shares = class_shares(dirichlet_partition(LABELS, 5, 1e6))
    assert shares == pytest.approx(np.full((5, 10), 1 / 5), abs=0.02)


def test_a_tiny_alpha_gives_a_class_mostly_to_one_site() -> None:
    shares = class_shares(dirichlet_partition(LABELS, 5, 0.01, min_size=0))
    assert np.median(shares.max(0)) > 0.95


def test_a_class_varies_over_sites_as_a_dirichlet_share_does() -> None:
    # Var of one share is (1/C)(1 - 1/C) / (Cα + 1); for C = 4, α = 0.5 that is 1/16.
    draws = [class_shares(dirichlet_partition(LABELS, 4, 0.5, seed=seed, min_size=0))[0] for seed in range(100)]
    assert np.var(draws) == pytest.approx(1 / 16, rel=0.15)
    assert np.mean(draws) == pytest.approx(1 / 4, rel=0.1)


def test_a_class_is_shuffled_before_it_is_divided() -> None:
    (first, _) = dirichlet_partition(np.zeros(100, dtype=np.int64), 2, 1e6)
    assert first.tolist() != list(range(len(first)))


def test_draws_are_repeated_until_every_site_is_large_enough() -> None:
    seed = next(s for s in range(99) if min(map(len, dirichlet_partition(LABELS, 5, 0.1, seed=s, min_size=0))) < 100)
    assert min(map(len, dirichlet_partition(LABELS, 5, 0.1, seed=seed, min_size=100))) >= 100


def test_the_default_minimum_is_fifty() -> None:
    smallest = [min(map(len, dirichlet_partition(LABELS, 10, 0.1, seed=seed))) for seed in range(20)]
    assert min(smallest) >= 50


def test_hopeless_draws_end_with_an_error_and_a_remedy() -> None:
    remedy = "gave each of the 2 sites 100 examples; use a larger alpha, fewer sites"
    with pytest.raises(DataError, match=rf"none of 1000 Dirichlet\(0\.001\) draws {remedy}"):
        dirichlet_partition(np.zeros(200, dtype=np.int64), 2, 0.001, min_size=100)


def test_more_examples_than_exist_are_refused() -> None:
    with pytest.raises(DataError, match=r"5 sites of at least 50 examples need 250, but there are 200; use fewer"):
        dirichlet_partition(np.zeros(200, dtype=np.int64), 5, 1.0)


@pytest.mark.parametrize("alpha", [0.0, -1.0, float("nan"), float("inf")])
def test_alpha_must_be_positive_and_finite(alpha: float) -> None:
    with pytest.raises(DataError, match=f"alpha must be .* not {alpha}"):
        dirichlet_partition(LABELS, 2, alpha)


def test_no_sites_are_refused() -> None:
    with pytest.raises(DataError, match="at least 1, not 0"):
        dirichlet_partition(LABELS, 0, 1.0)


@pytest.mark.parametrize(
    "deal",
    [
        lambda labels, seed: quantity_partition(labels, 4, 0.5, seed=seed, min_size=5),
        lambda labels, seed: shard_partition(labels, 4, 2, seed=seed),
        lambda labels, seed: equal_partition(labels, 4, seed=seed),
    ],
    ids=["quantity", "shards", "equal"],
)
def test_other_partitions_are_disjoint_complete_and_repeatable(deal: Any) -> None:
    labels = np.arange(203) % 7
    parts = deal(labels, 1)
    assert sorted(np.concatenate(parts).tolist()) == list(range(203))
    assert all(np.array_equal(a, b) for a, b in zip(parts, deal(labels, 1), strict=True))
    assert any(not np.array_equal(a, b) for a, b in zip(parts, deal(labels, 2), strict=True))


def test_quantity_skew_changes_sizes_and_not_the_mix() -> None:
    labels = np.repeat([0, 1], 5000)
    parts = quantity_partition(labels, 5, 0.5, min_size=300)
    assert max(map(len, parts)) > 2 * min(map(len, parts))
    assert all(abs(labels[part].mean() - 0.5) < 0.1 for part in parts)


def test_shards_give_sites_few_classes() -> None:
    labels = np.repeat(np.arange(10), 100)
    assert all(len(np.unique(labels[part])) <= 2 for part in shard_partition(labels, 5, 2))
    with pytest.raises(DataError, match="5 sites with 300 shards each"):
        shard_partition(labels, 5, 300)


def test_sites_by_id_keep_their_rows_in_order() -> None:
    parts = partition_by_id(["b", "a", "b", "c"])
    assert {name: rows.tolist() for name, rows in parts.items()} == {"a": [1], "b": [0, 2], "c": [3]}
