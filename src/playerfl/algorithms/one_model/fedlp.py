"""FedLP: sites upload a random subset of their layers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

import torch

from playerfl.algorithms.algorithm import Algorithm
from playerfl.errors import ConfigError, one_of
from playerfl.federation.client import Client
from playerfl.federation.messages import Download, ExpectedUpload, SiteId, Upload, Verb
from playerfl.federation.server import Server
from playerfl.layers.layer_map import LayerMap


@dataclass(frozen=True)
class FedLP(Algorithm):
    """FedAvg in which a site uploads each layer with probability q; a layer is averaged over the sites that sent it.

    w_l ← Σ_{c ∈ S_l} n_c θ_{c,l} / Σ_{c ∈ S_l} n_c, unchanged if S_l is empty.

    Paper: Zhu et al. 2023, Algorithm 1 (homogeneous), https://arxiv.org/abs/2303.06360. keep = 1 is FedAvg.
    Differs: drawn per layer as in the paper (its code: per tensor).
    """

    keep: float = 0.7
    """The layer-preserving rate q."""
    weighting: Literal["samples", "uniform"] = "samples"
    """Whether a layer's average weights the sites that sent it by their training rows or equally."""

    def __post_init__(self) -> None:
        if not 0 <= self.keep <= 1:
            raise ConfigError(f"keep must be between 0 and 1, not {self.keep}")
        if self.weighting not in ("samples", "uniform"):
            raise ConfigError(one_of(self.weighting, ("samples", "uniform"), "weighting"))

    def same_as(self, layers: LayerMap) -> str | None:
        return "FedAvg" if self.keep == 1 and self.weighting == "samples" else None

    def common_model(self, server: Server) -> bool:
        return True

    async def client_fit(self, client: Client, download: Download) -> Upload:
        client.load(download.weights)
        await client.train()
        draws = torch.rand(len(client.layers.names), generator=client.stream("mask"))
        kept = [name for name, draw in zip(client.layers.names, draws.tolist(), strict=True) if draw < self.keep]
        return client.upload(kept)

    def server_expects(self, server: Server, verbs: tuple[Verb, ...]) -> ExpectedUpload:
        return ExpectedUpload(server.layers.names if "fit" in verbs else (), optional=True)

    def server_merge(self, server: Server, uploads: Mapping[SiteId, Upload]) -> None:
        if self.weighting == "uniform":
            uploads = {site: replace(upload, num_examples=1) for site, upload in uploads.items()}
        super().server_merge(server, uploads)
