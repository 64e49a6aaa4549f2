"""Sites: a task's data by site name, with notes for readers of the results, and what a run records of both."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NotRequired

import torch
from torch import Tensor
from typing_extensions import TypedDict

from playerfl.data.encoding.encoding import Encoding
from playerfl.data.examples import SiteData, TensorExamples, tensors_in
from playerfl.data.partition import Indices

_HASHED_BYTES = 2**26


class Sites(dict[str, SiteData]):
    """Site data by name, and notes such as "4 of the 6 centres"."""

    def __init__(
        self,
        sites: Mapping[str, SiteData],
        notes: Iterable[str] = (),
        encodings: Mapping[str, Encoding] | None = None,
        groups: Mapping[str, PartGroups] | None = None,
    ) -> None:
        """`encodings`: how each site's rows became inputs, for tasks that read tables or images.

        `groups`: for every site, the group of each example (such as its patient), for tasks that know it.
        """
        super().__init__(sites)
        self.notes = tuple(notes)
        self.encodings = dict(encodings or {})
        self.groups = dict(groups or {})


@dataclass(frozen=True)
class PartGroups:
    """The group of every example, as a number: examples of one group are all in the same part."""

    train: Indices
    validation: Indices
    test: Indices


class PartRecord(TypedDict):
    """One part of one site's data: training, validation or test."""

    examples: int
    classes: NotRequired[dict[str, int]]
    """Examples per class, where targets are classes held in memory."""
    undefined: NotRequired[dict[str, str]]
    """For test data: the metrics that have no value for its targets, whatever is predicted, and why."""


class SiteRecord(TypedDict):
    """One site's data; for a remote site, only the size of its training data is known."""

    train: PartRecord
    validation: NotRequired[PartRecord]
    test: NotRequired[PartRecord]
    baseline: NotRequired[dict[str, float]]
    """Test scores of predicting the same for every row: the class frequencies or the mean of the training data."""


class DataRecord(TypedDict):
    """A run's record of its data."""

    notes: list[str]
    partition_hash: str | None
    """None for remote sites."""
    sites: dict[str, SiteRecord]
    unseen: NotRequired[dict[str, SiteRecord]]
    """The sites that took no part in training, if the experiment names any; they are not among `sites`."""


def describe(sites: Mapping[str, SiteData], *, classification: bool) -> DataRecord:
    """Sizes, class counts, a fingerprint and notes."""
    return {
        "notes": list(getattr(sites, "notes", ())),
        "partition_hash": partition_hash(sites),
        "sites": {
            name: {
                "train": _part(site.train, classification),
                "validation": _part(site.validation, classification),
                "test": _part(site.test, classification),
            }
            for name, site in sorted(sites.items())
        },
    }


def _part(examples: Any, classification: bool) -> PartRecord:
    record: PartRecord = {"examples": len(examples)}
    if classification and isinstance(examples, TensorExamples):
        labels, counts = torch.unique(examples.targets, return_counts=True)
        record["classes"] = {str(label): count for label, count in zip(labels.tolist(), counts.tolist(), strict=True)}
    return record


def partition_hash(sites: Mapping[str, SiteData]) -> str:
    """A fingerprint of which site has which examples in which part. For examples in a loader, only their number counts.

    Only every k-th row of a very large tensor is read, so that hashing never takes longer than loading.
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
