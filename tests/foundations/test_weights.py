"""The weighted mean across sites, and the fingerprint that compares weights."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from playerfl.weights import digest, num_bytes, squared_distance, weighted_mean

FLOATS = [torch.float16, torch.bfloat16, torch.float32, torch.float64]
finite = st.floats(-1e6, 1e6, width=32)


def mean_of(tensors: Sequence[Tensor], shares: Sequence[float]) -> Tensor:
    return weighted_mean([({"w": tensor}, share) for tensor, share in zip(tensors, shares, strict=True)])["w"]


def assert_same_bits(found: Tensor, expected: Tensor) -> None:
    assert digest({"w": found}) == digest({"w": expected})


def test_the_mean_is_weighted() -> None:
    assert mean_of([torch.tensor([0.0, 8.0]), torch.tensor([4.0, 0.0])], [1, 3]).tolist() == [3.0, 2.0]


def test_each_entry_is_averaged_over_the_sites_that_sent_it() -> None:
    a, b = {"x": torch.tensor([1.0]), "y": torch.tensor([1.0])}, {"y": torch.tensor([4.0]), "z": torch.tensor([7.0])}
    mean = weighted_mean([(a, 1), (b, 2)])
    assert {name: value.item() for name, value in mean.items()} == {"x": 1.0, "y": 3.0, "z": 7.0}


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.uint8])
def test_the_largest_integer_is_taken(dtype: torch.dtype) -> None:
    mean = mean_of([torch.tensor(n, dtype=dtype) for n in (3, 9, 5)], [100, 1, 100])
    assert mean.item() == 9
    assert mean.dtype == dtype


def test_a_mask_stays_a_mask() -> None:
    mask = torch.tensor([True, False])
    assert_same_bits(mean_of([mask, mask], [1, 2]), mask)


@pytest.mark.parametrize("dtype", FLOATS)
def test_a_single_upload_comes_back_bit_for_bit(dtype: torch.dtype) -> None:
    weights = torch.randn(1000, generator=torch.Generator().manual_seed(0)).to(dtype)
    assert_same_bits(mean_of([weights], [37]), weights)


@pytest.mark.parametrize("value", [-0.0, 1e-45, -3.4e38, float("inf")])
@pytest.mark.parametrize("count", [1, 3])
def test_extreme_values_sent_by_all_come_back_bit_for_bit(value: float, count: int) -> None:
    weights = torch.tensor([value])
    assert_same_bits(mean_of([weights] * count, [1] * count), weights)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("shares", [(1, 1, 1), (1, 3, 7), (10, 999, 123_456)])
def test_equal_uploads_come_back_bit_for_bit(dtype: torch.dtype, shares: tuple[int, ...]) -> None:
    weights = torch.randn(1000, generator=torch.Generator().manual_seed(1)).to(dtype)
    assert_same_bits(mean_of([weights] * len(shares), shares), weights)


@given(st.lists(st.tuples(finite, st.integers(1, 10_000)), min_size=1, max_size=6))
def test_the_mean_is_the_float64_sum_in_the_given_order(parts: list[tuple[float, int]]) -> None:
    total = sum(share for _, share in parts)
    expected = 0.0
    for value, share in parts:
        expected += value * (share / total)
    found = mean_of([torch.tensor([value]) for value, _ in parts], [share for _, share in parts])
    assert found.item() == torch.tensor(expected, dtype=torch.float64).float().item()


@given(st.lists(st.tuples(finite, st.integers(1, 100)), min_size=1, max_size=6), st.randoms())
def test_the_order_of_uploads_changes_at_most_the_last_bits(parts: list[tuple[float, int]], random: object) -> None:
    shuffled = list(parts)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    a, b = (mean_of([torch.tensor([v]).double() for v, _ in p], [s for _, s in p]) for p in (parts, shuffled))
    assert a.item() == pytest.approx(b.item(), rel=1e-12, abs=1e-9)


def test_small_parts_are_not_lost_beside_large_ones() -> None:
    assert mean_of([torch.tensor([v]) for v in (1e8, 1.0, -1e8)], [1, 1, 1]).item() == pytest.approx(1 / 3, rel=1e-6)


def test_the_mean_shares_no_memory_with_the_uploads() -> None:
    weights = torch.ones(2)
    mean_of([weights], [1]).add_(1)
    assert weights.tolist() == [1.0, 1.0]


def test_distance_is_measured_over_common_floating_entries_in_float64() -> None:
    left = {"w": torch.tensor([1.0, 0.5]), "steps": torch.tensor(3), "left": torch.ones(1)}
    right = {"w": torch.tensor([4097.0, 0.0]), "steps": torch.tensor(9), "right": torch.ones(1)}
    # float32 would lose the quarter next to 2²⁴.
    assert squared_distance(left, right) == 4096.0**2 + 0.25


def test_bytes_count_every_scalar_at_its_own_size() -> None:
    assert num_bytes({"half": torch.zeros(4, dtype=torch.float16), "steps": torch.zeros((), dtype=torch.int64)}) == 16


@pytest.mark.parametrize(
    "other",
    [
        {"v": torch.zeros(2, 3)},
        {"w": torch.zeros(3, 2)},
        {"w": torch.zeros(2, 3, dtype=torch.int32)},
        {"w": torch.full((2, 3), -0.0)},
        {"w": torch.zeros(2, 3), "b": torch.zeros(0)},
    ],
    ids=["name", "shape", "kind", "sign of zero", "one entry more"],
)
def test_different_weights_have_different_digests(other: dict[str, Tensor]) -> None:
    assert digest(other) != digest({"w": torch.zeros(2, 3)})


def test_the_digest_ignores_order_and_memory_layout() -> None:
    image = torch.arange(24.0).reshape(1, 2, 3, 4)
    a = {"x": image, "steps": torch.tensor(7)}
    b = {"steps": torch.tensor(7), "x": image.contiguous(memory_format=torch.channels_last)}
    assert digest(a) == digest(b)


@pytest.mark.parametrize("size", [2**18, 2**18 + 1, 3 * 2**18 + 13])
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_large_entries_are_summed_in_pieces_with_the_same_bits(size: int, layout: torch.memory_format) -> None:
    generator = torch.Generator().manual_seed(0)
    shape = (2, 3, 1, size // 6 + 1)
    uploads = [torch.randn(shape, generator=generator).contiguous(memory_format=layout) for _ in range(3)]
    shares = [3, 5, 11]
    whole = torch.zeros_like(uploads[0], dtype=torch.float64)
    for upload, share in zip(uploads, shares, strict=True):
        whole.add_(upload, alpha=share / 19)
    found = mean_of(uploads, shares)
    assert_same_bits(found, whole.float())
    assert found.stride() == uploads[0].stride()
