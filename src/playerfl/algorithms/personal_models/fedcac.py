"""FedCAC: each site shares its critical parameters only with sites that have the same ones."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from playerfl.algorithms.algorithm import Algorithm
from playerfl.errors import ConfigError, at_least_zero
from playerfl.federation.client import Client
from playerfl.federation.messages import Download, SiteId, Upload
from playerfl.federation.server import Server
from playerfl.layers.layer_map import LayerMap
from playerfl.weights import Weights, weighted_mean

Masks = dict[str, Tensor]


@dataclass(frozen=True)
class FedCAC(Algorithm):
    """In each tensor the share τ of weights with the largest |Δθ·θ| is critical; the rest is averaged over all sites.

    A site's critical weights are averaged over the sites with  |M_i ∧ M_j| / |M_i| ≥ mean + t/β · (max - mean)  in
    round t, the mean and the maximum taken over all pairs; after round β each site keeps its own.

    Paper: Wu et al. 2023, https://arxiv.org/abs/2309.11103. tau = 0 is FedAvg.
    Differs: the server computes the masks M_i, since it knows what it sent and what came back, so no mask is sent
    (the same masks, less traffic); all averages are weighted by the sites' examples (the authors' code: not those of
    critical weights); exactly τ of a tensor is critical even if values tie; batch-norm statistics are averaged over all
    sites (the code: each site keeps its own). The server keeps every site's latest model, as with pFedLA, which matters
    for privacy.
    """

    tau: float = 0.5
    """τ: the share of each tensor that is critical."""
    beta: int = 100
    """β: the round after which each site keeps its critical weights to itself."""

    def __post_init__(self) -> None:
        at_least_zero("beta", self.beta)
        if not 0 <= self.tau <= 1:
            raise ConfigError(f"tau must be between 0 and 1, not {self.tau}")

    @property
    def averages(self) -> bool:
        return False

    def same_as(self, layers: LayerMap) -> str | None:
        return "FedAvg" if self.tau == 0 else None

    def common_model(self, server: Server) -> bool:
        return self.tau == 0

    def server_send(self, server: Server, site: SiteId) -> Download:
        return Download(server.round, server.memory.get("models", {}).get(site) or dict(server.weights))

    async def client_fit(self, client: Client, download: Download) -> Upload:
        client.load(download.weights)
        await client.train()
        return client.upload()

    def server_merge(self, server: Server, uploads: Mapping[SiteId, Upload]) -> None:
        sent = {site: self.server_send(server, site).weights for site in uploads}
        super().server_merge(server, uploads)
        masks = {site: self.critical(server, sent[site], upload.weights) for site, upload in uploads.items()}
        everyone = self.partners(masks, server.round + 1)
        models: dict[SiteId, Weights] = server.memory.setdefault("models", {})
        known: dict[SiteId, Masks] = server.memory.setdefault("masks", {})
        for site in server.sites:
            if site in uploads:
                own = weighted_mean([(uploads[s].weights, uploads[s].num_examples) for s in everyone[site]])
                known[site] = masks[site]
            else:
                own = models.get(site, {})
            models[site] = merged(own, server.weights, known.get(site, {}))

    def critical(self, server: Server, before: Mapping[str, Tensor], after: Mapping[str, Tensor]) -> Masks:
        """M_i: the critical elements of each parameter."""
        masks = {}
        for name in server.weights:
            if name in server.layers.buffers:
                continue
            score = ((after[name].double() - before[name].double()) * after[name].double()).abs().flatten()
            mask = torch.zeros(len(score), dtype=torch.bool)
            mask[score.argsort(descending=True, stable=True)[: int(self.tau * len(score))]] = True
            masks[name] = mask.reshape(after[name].shape)
        return masks

    def partners(self, masks: Mapping[SiteId, Masks], round_: int) -> dict[SiteId, list[SiteId]]:
        """The sites whose critical weights are averaged with those of each site, itself included."""
        count = sum(int(mask.sum()) for mask in next(iter(masks.values())).values())
        overlaps = {
            (i, j): sum(int((masks[i][n] & masks[j][n]).sum()) for n in masks[i]) / count
            for i in masks
            for j in masks
            if i != j and count
        }
        if not overlaps or round_ > self.beta:
            return {site: [site] for site in masks}
        mean, most = sum(overlaps.values()) / len(overlaps), max(overlaps.values())
        least = min(most, mean + round_ / self.beta * (most - mean))
        return {i: [j for j in masks if i == j or overlaps[i, j] >= least] for i in masks}


def merged(own: Weights, common: Weights, mask: Masks) -> Weights:
    """The common weights, with a site's own where its mask is set."""
    return {name: torch.where(mask[name], own[name], w) if name in mask else w for name, w in common.items()}
