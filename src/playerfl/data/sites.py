"""Sites: a task's data by site name, with what a reader of the results must know about them."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor

from playerfl.data.examples import SiteData, TensorExamples, tensors_in

_HASHED_BYTES = 2**26


class Sites(dict[str, SiteData]):
    """Site data by name, and notes such as "4 of the 6 centres"."""

    def __init__(self, sites: Mapping[str, SiteData], notes: Iterable[str] = ()) -> None:
        super().__init__(sites)
        self.notes = tuple(notes)


def describe(sites: Mapping[str, SiteData], *, classification: bool) -> dict[str, Any]:
    """What is recorded of the data with a run: sizes, class counts, a fingerprint, notes."""
    return {
        "notes": list(getattr(sites, "notes", ())),
        "partition_hash": partition_hash(sites),
        "sites": {
            name: {part: _part(examples, classification) for part, examples in sites[name].__dict__.items()}
            for name in sorted(sites)
        },
    }


def _part(examples: Any, classification: bool) -> dict[str, Any]:
    found: dict[str, Any] = {"examples": len(examples)}
    if classification and isinstance(examples, TensorExamples):
        labels, counts = torch.unique(examples.targets, return_counts=True)
        found["classes"] = {str(label): count for label, count in zip(labels.tolist(), counts.tolist(), strict=True)}
    return found


def partition_hash(sites: Mapping[str, SiteData]) -> str:
    """A fingerprint of who has which examples in which part. Data behind loaders count by their number only.

    Of very large tensors every k-th row is read, so that this never takes longer than loading them did.
    """
    fingerprint = hashlib.blake2b(digest_size=16)
    for name in sorted(sites):
        for part, examples in sites[name].__dict__.items():
            fingerprint.update(f"{name}/{part}/{len(examples)}".encode())
            if isinstance(examples, TensorExamples):
                for tensor in (*tensors_in(examples.inputs), examples.targets):
                    fingerprint.update(_bytes_of(tensor))
    return fingerprint.hexdigest()


def _bytes_of(tensor: Tensor) -> bytes:
    stride = max(1, tensor.numel() * tensor.element_size() // _HASHED_BYTES)
    return tensor[::stride].cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
