"""Training, validation and test parts of one site."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from playerfl.data.splits import SHARES, _cut_in_three, three_way_split
from playerfl.errors import DataError

labels_of_a_site = st.lists(st.integers(0, 4), min_size=3, max_size=120)


@given(labels_of_a_site, st.integers(0, 99))
def test_every_example_is_in_exactly_one_part(labels: list[int], seed: int) -> None:
    parts = three_way_split(np.array(labels), seed=seed)
    assert sorted(np.concatenate(parts).tolist()) == list(range(len(labels)))


@given(labels_of_a_site)
def test_no_part_is_empty(labels: list[int]) -> None:
    assert all(len(part) > 0 for part in three_way_split(np.array(labels)))


@pytest.mark.parametrize(("rows", "sizes"), [(100, (64, 16, 20)), (1000, (640, 160, 200)), (3, (1, 1, 1))])
def test_a_fifth_is_test_and_a_fifth_of_the_rest_validation(rows: int, sizes: tuple[int, int, int]) -> None:
    assert tuple(map(len, three_way_split(np.zeros(rows, dtype=np.int64)))) == sizes


@pytest.mark.parametrize(
    ("rows", "shares", "sizes"),
    [(100, (0.7, 0.2, 0.1), (70, 20, 10)), (10, (0.2, 0.4, 0.4), (2, 4, 4)), (3, (0.01, 0.01, 0.98), (1, 1, 1))],
)
def test_other_shares(rows: int, shares: tuple[float, float, float], sizes: tuple[int, int, int]) -> None:
    assert tuple(map(len, three_way_split(np.zeros(rows, dtype=np.int64), shares=shares))) == sizes


@given(st.integers(3, 10**6))
def test_the_default_shares_are_fifths_whatever_the_rounding(rows: int) -> None:
    test = max(1, round(0.2 * rows))
    validation = max(1, round(0.2 * (rows - test)))
    found = _cut_in_three(np.broadcast_to(np.int64(0), rows), SHARES)
    assert tuple(map(len, found)) == (rows - test - validation, validation, test)


def test_classes_keep_their_shares_in_every_part() -> None:
    labels = np.repeat([0, 1, 2], [700, 200, 100])
    counts = [np.bincount(labels[part]).tolist() for part in three_way_split(labels)]
    assert counts == [[448, 128, 64], [112, 32, 16], [140, 40, 20]]


def test_a_class_of_three_is_in_every_part() -> None:
    labels = np.repeat([0, 1], [50, 3])
    assert all(1 in labels[part] for part in three_way_split(labels))


def test_a_class_of_two_makes_the_split_plain() -> None:
    labels = np.repeat([0, 1], [48, 2])
    assert tuple(map(len, three_way_split(labels))) == (32, 8, 10)


@given(st.lists(st.integers(20, 60), min_size=1, max_size=10))
def test_rounding_in_classes_hardly_shifts_the_shares(sizes: list[int]) -> None:
    parts = three_way_split(np.repeat(np.arange(len(sizes)), sizes))
    assert [len(part) / sum(sizes) for part in parts] == pytest.approx([0.64, 0.16, 0.20], abs=0.05)


def test_the_seed_decides_the_split() -> None:
    def split(seed: int) -> list[list[int]]:
        return [part.tolist() for part in three_way_split(np.arange(60) % 3, seed=seed)]

    assert split(1) == split(1)
    assert split(1) != split(2)


@pytest.mark.parametrize("rows", [0, 1, 2])
def test_a_site_too_small_for_three_parts_is_refused(rows: int) -> None:
    with pytest.raises(DataError, match=f"at least 3 examples, .* not {rows}"):
        three_way_split(np.zeros(rows, dtype=np.int64))


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(1, 30)), min_size=3, max_size=40), st.integers(0, 9))
def test_a_group_is_never_divided(drawn: list[tuple[int, int]], seed: int) -> None:
    groups = np.repeat(np.arange(len(drawn)), [size for _, size in drawn])
    labels = np.random.default_rng(seed).integers(0, 4, len(groups))
    parts = three_way_split(labels, seed=seed, groups=groups)
    assert sorted(np.concatenate(parts).tolist()) == list(range(len(labels)))
    assert all(len(part) for part in parts)
    assert sum(len(set(groups[part])) for part in parts) == len(drawn)


def test_groups_of_very_different_sizes_keep_the_shares_of_rows_and_classes() -> None:
    """Most patients of one class come twice, those of the other up to a hundred times."""
    sizes = np.r_[np.full(60, 2), np.arange(1, 101, 5)]
    groups = np.repeat(np.arange(len(sizes)), sizes)
    labels = (groups >= 60).astype(np.int64)
    for seed in range(5):
        parts = three_way_split(labels, seed=seed, groups=groups)
        for label in (0, 1):
            found = [np.sum(labels[part] == label) / np.sum(labels == label) for part in parts]
            assert found == pytest.approx(SHARES, abs=0.15)


def test_visits_with_changing_outcomes_keep_the_classes_in_balance() -> None:
    """The first visit of every patient has the same outcome, so it says nothing about the others."""
    groups = np.repeat(np.arange(40), 10)
    labels = np.where(np.arange(400) % 10 == 0, 0, np.where(groups < 20, 1, 2))
    for seed in range(5):
        parts = three_way_split(labels, seed=seed, groups=groups)
        for label in (1, 2):
            found = [np.sum(labels[part] == label) / np.sum(labels == label) for part in parts]
            assert found == pytest.approx(SHARES, abs=0.11)


def test_two_groups_are_too_few() -> None:
    with pytest.raises(DataError, match="a site needs at least 3 groups, one for each part, not 2"):
        three_way_split(np.zeros(10, dtype=np.int64), groups=np.repeat([0, 1], 5))


@pytest.mark.parametrize("largest", [40, 70, 90, 120])
def test_a_group_of_most_rows_is_for_training(largest: int) -> None:
    rest = 150 - largest
    groups = np.r_[np.zeros(largest, dtype=np.int64), 1 + np.arange(rest) // 3]
    for seed in range(20):
        labels = np.random.default_rng(seed).integers(0, 2, 150)
        train, validation, test = (len(part) for part in three_way_split(labels, seed=seed, groups=groups))
        assert train >= 0.75 * 0.64 * 150
        assert validation >= min(0.08 * 150, 0.3 * rest)
        assert test >= min(0.1 * 150, 0.3 * rest)
