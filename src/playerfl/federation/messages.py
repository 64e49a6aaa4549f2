"""The messages between the server and a site: named tensors and small values, nothing else."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from torch import Tensor

from playerfl.layers.layer_map import LayerMap
from playerfl.learning.confusion import Matrix
from playerfl.weights import Weights, num_bytes

SiteId = str
Scalar = int | float | str
Info = Mapping[str, Scalar | list[Scalar]]
"""Small values any wire can carry."""
Verb = Literal["prepare", "fit", "evaluate", "finish"]
ScoreStage = Literal["round", "finish", "unseen"]
ConfusionKey = tuple[str, int, SiteId, str]
"""Identifies one confusion matrix of a run: stage, round, site and split."""


@dataclass(frozen=True)
class Download:
    """From the server to one site."""

    round: int
    """Merges completed so far."""
    weights: Weights = field(default_factory=dict)
    info: Info = field(default_factory=dict)

    @property
    def num_bytes(self) -> int:
        return num_bytes(self.weights) + info_bytes(self.info)


@dataclass(frozen=True)
class Upload:
    """From one site to the server."""

    num_examples: int
    weights: Mapping[str, Tensor] = field(default_factory=dict)
    info: Info = field(default_factory=dict)

    @property
    def num_bytes(self) -> int:
        return num_bytes(self.weights) + info_bytes(self.info)


@dataclass(frozen=True)
class ExpectedUpload:
    """What an upload must contain, so that the server can refuse anything else."""

    layers: tuple[str, ...] = ()
    numbers: Mapping[str, int] = field(default_factory=dict)
    """Lists of numbers in `info`: name and length."""
    optional: bool = False
    """Whether a site may leave some of these layers out."""
    without: frozenset[str] = frozenset()
    """Entries of these layers that stay at the site."""
    beside: tuple[str, ...] = ()
    """Prefixes: under each, the upload has another tensor for every parameter of these layers."""
    signed: bool = False
    """Whether the numbers may be negative."""

    def entries(self, layers: LayerMap, model: Mapping[str, Tensor]) -> Weights:
        """The tensors of such an upload; only their names, shapes and types matter."""
        sent = {n: w for n, w in layers.travelling(model, self.layers).items() if n not in self.without}
        return sent | {p + n: w for p in self.beside for n, w in sent.items() if n not in layers.buffers}

    def differs(self, upload: Upload, layers: LayerMap, model: Mapping[str, Tensor]) -> str | None:
        """How an upload differs from this, in words; None if it does not. Values are not compared."""
        expected = self.entries(layers, model)
        if extra := sorted(upload.weights.keys() - expected.keys()):
            return f"has {extra[0]!r}, which server_expects does not announce"
        missing = [name for name in expected if name not in upload.weights]
        if missing and not self.optional:
            return f"lacks {missing[0]!r}, which server_expects announces"
        for name, tensor in upload.weights.items():
            wanted = expected[name]
            if tensor.shape != wanted.shape or tensor.dtype != wanted.dtype:
                return f"has {name!r} as {tuple(tensor.shape)} {tensor.dtype}, not {tuple(wanted.shape)} {wanted.dtype}"
        if upload.info.keys() != self.numbers.keys():
            return f"has info {sorted(upload.info)}, but server_expects announces the numbers {sorted(self.numbers)}"
        for name, length in self.numbers.items():
            values = upload.info[name]
            if not isinstance(values, list) or len(values) != length:
                return f"has an info[{name!r}] that is not the announced list of {length} numbers"
        return None


class Score(NamedTuple):
    """One measured value at one site."""

    stage: ScoreStage
    round: int
    split: str
    metric: str
    value: float


@dataclass(frozen=True)
class Request:
    """One message to a site: what the site receives, and the verbs it must carry out, in this order.

    Some engines start a process for each message, so the evaluation of the last merge and the next fit
    travel together.
    """

    verbs: tuple[Verb, ...]
    download: Download
    best_round: int | None = None
    """The best round so far over all sites, if one round is chosen for all."""
    common: bool = False
    """Whether all sites predict with one model, the one to evaluate."""


@dataclass(frozen=True)
class Reply:
    """A site's reply: what the algorithm uploads, and the scores the engine asked for."""

    upload: Upload
    scores: tuple[Score, ...] = ()
    confusions: Mapping[tuple[ScoreStage, int, str], Matrix] = field(default_factory=dict)
    """The confusion matrices behind the scores, by stage, round and split. They are for the results of a run in one
    process and never leave the machine: they show how many patients of each class a site has."""


def info_bytes(info: Info) -> int:
    """Eight bytes per number, the UTF-8 bytes of a string.

    >>> info_bytes({"cut": 3, "importance": [0.5, 0.25]})
    24
    """

    def size(value: Scalar) -> int:
        return len(value.encode()) if isinstance(value, str) else 8

    return sum(sum(map(size, value)) if isinstance(value, list) else size(value) for value in info.values())
