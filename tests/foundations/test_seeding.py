"""Named random streams: the same everywhere, and separate from the global one."""

from __future__ import annotations

import pytest
import torch

from playerfl.seeding import seed_for, seeded_rng


def test_seeds_are_the_same_on_every_machine() -> None:
    assert seed_for(0, "main", "site-1", 3) == 48_174_587_247_993_947


def test_numbers_and_strings_name_different_streams() -> None:
    parts: list[tuple[int | str, ...]] = [(1,), ("1",), (1, 1), (11,), ("1", 1), (1, "1")]
    assert len({seed_for(*p) for p in parts}) == len(parts)


def test_seeded_rng_repeats_itself_and_restores_the_global_state() -> None:
    def draw(seed: int) -> float:
        with seeded_rng(seed):
            return torch.rand(()).item()

    before = torch.get_rng_state()
    assert draw(1) == draw(1) != draw(2)
    assert torch.equal(torch.get_rng_state(), before)


def test_seeded_rng_restores_the_global_state_after_an_error() -> None:
    before = torch.get_rng_state()
    with pytest.raises(ZeroDivisionError), seeded_rng(1):
        torch.rand(())
        raise ZeroDivisionError
    assert torch.equal(torch.get_rng_state(), before)
