"""What crosses between the coordinator and a site: named tensors and small values, nothing else."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from torch import Tensor

from playerfl.weights import Weights, num_bytes

SiteId = str
Scalar = int | float | str
Info = Mapping[str, Scalar | list[Scalar]]
"""Small values any wire can carry."""
Verb = Literal["prepare", "fit", "evaluate", "finish"]
Stage = Literal["round", "finish"]


@dataclass(frozen=True)
class Download:
    """Coordinator to one site."""

    round: int
    """Merges completed so far."""
    weights: Weights = field(default_factory=dict)
    info: Info = field(default_factory=dict)

    @property
    def num_bytes(self) -> int:
        return num_bytes(self.weights) + info_bytes(self.info)


@dataclass(frozen=True)
class Upload:
    """One site to the coordinator."""

    num_examples: int
    weights: Mapping[str, Tensor] = field(default_factory=dict)
    info: Info = field(default_factory=dict)

    @property
    def num_bytes(self) -> int:
        return num_bytes(self.weights) + info_bytes(self.info)


@dataclass(frozen=True)
class ExpectedUpload:
    """What an upload has to hold, so that a coordinator can refuse anything else."""

    layers: tuple[str, ...] = ()
    numbers: Mapping[str, int] = field(default_factory=dict)
    """Lists of numbers in `info`: their names and lengths."""
    optional: bool = False
    """Whether a site may leave some of these layers out."""


class Score(NamedTuple):
    """One measured number of one site."""

    stage: Stage
    round: int
    split: str
    metric: str
    value: float


@dataclass(frozen=True)
class Request:
    """One message a site and round: what it gets, and what it shall do with it, in this order.

    A message costs a process start on some engines, so the evaluation of the last merge and the next fit
    travel together.
    """

    verbs: tuple[Verb, ...]
    download: Download
    best_round: int | None = None
    """The round all sites together did best in so far, where one round is chosen for all."""


@dataclass(frozen=True)
class Reply:
    """A site's answer: what the algorithm uploads, and the scores the engine asked for."""

    upload: Upload
    scores: tuple[Score, ...] = ()


def info_bytes(info: Info) -> int:
    """Eight bytes a number, the UTF-8 bytes of a text.

    >>> info_bytes({"cut": 3, "importance": [0.5, 0.25]})
    24
    """

    def size(value: Scalar) -> int:
        return len(value.encode()) if isinstance(value, str) else 8

    return sum(sum(map(size, value)) if isinstance(value, list) else size(value) for value in info.values())
