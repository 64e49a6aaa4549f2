"""Named random streams: no result depends on the order of draws."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager

import torch


def seed_for(*parts: int | str) -> int:
    """A seed for one purpose, the same on every machine and in every process.

    >>> seed_for(0, "main", "site-1", 3) == seed_for(0, "main", "site-1", 3)
    True
    >>> seed_for(0, "main", "site-1", 3) == seed_for(0, "main", "site-13")
    False
    """
    text = "\x1f".join(f"{type(part).__name__}:{part}" for part in parts)
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big") >> 1


def generator_for(*parts: int | str) -> torch.Generator:
    """A CPU generator seeded for one purpose."""
    return torch.Generator().manual_seed(seed_for(*parts))


@contextmanager
def seeded_rng(seed: int, device: torch.device | str = "cpu") -> Iterator[None]:
    """Seeds torch's global generators (for dropout, initial weights) and restores them afterwards.

    `torch.manual_seed` is not used: without a GPU it formats a stack trace at each call, which takes longer than a
    step of a small model.
    """
    kind = torch.device(device).type
    module = None if kind == "cpu" else torch.get_device_module(kind)
    before = torch.get_rng_state()
    before_there = module.get_rng_state() if module else None
    torch.default_generator.manual_seed(seed)
    if module:
        module.manual_seed(seed)
    try:
        yield
    finally:
        torch.set_rng_state(before)
        if module:
            module.set_rng_state(before_there)
