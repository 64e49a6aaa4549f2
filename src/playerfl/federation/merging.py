"""Merge: how the server turns uploads into one model. The mean by default; others withstand some bad sites."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median_low
from typing import Literal, get_args

import torch
from torch import Tensor

from playerfl.errors import ConfigError, one_of
from playerfl.weights import Weights, squared_distance, weighted_mean

MergeRule = Literal["mean", "median", "trimmed_mean"]
Parts = Sequence[tuple[Mapping[str, Tensor], float]]


@dataclass(frozen=True)
class Merge:
    """A rule for merging uploads.

    `median` and `trimmed_mean` work number by number and count every site once, whatever its number of examples: they
    ignore what a minority of sites sends, but they also ignore what is special about a small group of honest sites.

    Papers: Yin et al. 2018, https://arxiv.org/abs/1803.01498 (median, trimmed mean); Sun et al. 2019,
    https://arxiv.org/abs/1911.07963 (norm clipping).
    """

    rule: MergeRule = "mean"
    trim: float = 0.1
    """For trimmed_mean: the share of sites left out at each end; at least one site, if there are three or more."""
    clip_norm: float = 0.0
    """Scales an update (upload minus common model) that is longer than this many times the round's median update down
    to that length; 0: off."""

    def __post_init__(self) -> None:
        if self.rule not in get_args(MergeRule):
            raise ConfigError(one_of(self.rule, get_args(MergeRule), "merge rule"))
        if not 0 <= self.trim < 0.5:
            raise ConfigError(f"merge.trim must be at least 0 and below 0.5, not {self.trim}")
        if not (self.clip_norm == 0 or 1 <= self.clip_norm < math.inf):
            raise ConfigError(f"merge.clip_norm must be at least 1, or 0 to switch it off, not {self.clip_norm}")

    @property
    def is_mean(self) -> bool:
        """Whether this is the plain mean, for which uploads can be summed unseen."""
        return self.rule == "mean" and not self.clip_norm

    def __call__(self, parts: Parts, common: Mapping[str, Tensor]) -> Weights:
        """One model from uploads and their weights; `common` is what they were trained from.

        >>> parts = [({"w": torch.tensor([x])}, 1) for x in (1.0, 2.0, 30.0)]
        >>> common = {"w": torch.zeros(1)}
        >>> [Merge(rule)(parts, common)["w"].item() for rule in ("mean", "median", "trimmed_mean")]
        [11.0, 2.0, 2.0]
        >>> Merge(clip_norm=2.0)(parts, common)["w"]    # 30 becomes twice the median of 2
        tensor([2.3333])
        """
        if self.clip_norm:
            parts = _clipped(parts, common, self.clip_norm)
        if self.rule == "mean":
            return weighted_mean(parts)
        return weighted_mean(parts, self._middle)

    def _middle(self, entries: Sequence[Tensor]) -> Tensor:
        """The mean of the middle values, number by number."""
        stacked = torch.stack(list(entries))
        if not stacked.is_floating_point():
            return stacked.median(0).values
        count = len(entries)
        if self.rule == "median":
            dropped = (count - 1) // 2
        else:
            dropped = max(math.floor(self.trim * count), 1 if count > 2 and self.trim else 0)
        kept = stacked.double().sort(0).values[dropped : count - dropped]
        return kept.mean(0).to(stacked.dtype)


def _clipped(parts: Parts, common: Mapping[str, Tensor], times: float) -> Parts:
    """The parts, with long updates scaled down; those within the bound are the same tensors."""
    lengths = [math.sqrt(squared_distance(weights, common)) for weights, _ in parts]
    # An update of nothing says nothing about how long updates usually are.
    bound = times * median_low([length for length in lengths if length] or [0.0])
    clipped: list[tuple[Mapping[str, Tensor], float]] = []
    for (weights, share), length in zip(parts, lengths, strict=True):
        if length > bound:
            weights = {name: _scaled(entry, common.get(name), bound / length) for name, entry in weights.items()}
        clipped.append((weights, share))
    return clipped


def _scaled(entry: Tensor, common: Tensor | None, factor: float) -> Tensor:
    if common is None or not entry.is_floating_point():
        return entry
    before = common.double()
    return (before + factor * (entry.double() - before)).to(entry.dtype)
