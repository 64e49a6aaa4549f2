"""FedBN: everything is shared except batch norm."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from playerfl.algorithms.private_entries import PrivateEntries
from playerfl.layers.layer_map import LayerMap


@dataclass(frozen=True)
class FedBN(PrivateEntries):
    """FedAvg in which each site keeps its own batch norm: the scale γ, the shift β and the running statistics.

    θ_c = (w, norm_c);  w ← Σ_c (n_c / Σ n) · w_c over everything but norm_c, which never leaves its site.

    Paper: Li et al. 2021, Algorithm 1, https://arxiv.org/abs/2102.07623. Without batch norm it is FedAvg.
    Differs: averages are weighted by the sites' examples (the authors' code: all sites alike). Layer and group norm
    have no statistics of the site's data, so they are shared.
    """

    remembered: ClassVar[str] = "norms"

    def same_as(self, layers: LayerMap) -> str | None:
        return None if batch_norm_entries(layers) else "FedAvg"

    def private(self, layers: LayerMap) -> frozenset[str]:
        return batch_norm_entries(layers)


def batch_norm_entries(layers: LayerMap) -> frozenset[str]:
    """The entries of norms that have running statistics.

    >>> layers = LayerMap({"0": ("0.weight", "1.weight", "1.bias", "1.running_mean", "1.running_var")}, {"0": 9},
    ...     buffers=frozenset({"1.running_mean", "1.running_var"}))
    >>> sorted(batch_norm_entries(layers))
    ['1.bias', '1.running_mean', '1.running_var', '1.weight']
    """
    modules = {entry.removesuffix("running_mean") for entry in layers.buffers if entry.endswith("running_mean")}
    return frozenset(entry for entry in layers.all_entries if f"{entry.rpartition('.')[0]}." in modules)
