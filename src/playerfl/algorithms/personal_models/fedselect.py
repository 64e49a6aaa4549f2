"""FedSelect: the weights that change most at a site become its own, more of them in every round."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from playerfl.algorithms.algorithm import Algorithm
from playerfl.errors import ConfigError
from playerfl.federation.bit_masks import Masks, packed, packed_length, unpacked
from playerfl.federation.client import Client
from playerfl.federation.messages import Download, ExpectedUpload, SiteId, Upload, Verb
from playerfl.federation.server import Server
from playerfl.layers.layer_map import LayerMap
from playerfl.learning.coupled import Masked
from playerfl.weights import Weights


@dataclass(frozen=True)
class FedSelect(Algorithm):
    """A mask m_c, element by element, of the weights that are a site's own; it starts empty and grows.

    Each round:  the own weights train with the shared ones fixed, then the shared ones with the own ones fixed; each
    shared weight is averaged over the sites that share it; then in each tensor the share `rate` of the shared
    weights with the largest |θ_c - θ_c before the round| becomes own, until the share `limit` of the tensor is own.

    Paper: Tamirisa et al. 2024, https://arxiv.org/abs/2404.02478. rate = 0 is FedAvg.
    Differs: the mask grows in every round, by the change of that round (the authors' code: every third, by the change
    since it last grew); biases can become own, too (the code: only tensors called weight); a weight that has become own
    keeps the site's value (the code: starts from the average); averages are weighted by the sites' examples.
    """

    rate: float = 0.05
    """The share of the shared weights that becomes a site's own in each round."""
    limit: float = 0.5
    """The largest share of a tensor that can be a site's own."""

    def __post_init__(self) -> None:
        for name in ("rate", "limit"):
            if not 0 <= getattr(self, name) <= 1:
                raise ConfigError(f"{name} must be between 0 and 1, not {getattr(self, name)}")

    @property
    def averages(self) -> bool:
        return False

    def same_as(self, layers: LayerMap) -> str | None:
        return "FedAvg" if self.rate == 0 or self.limit == 0 else None

    def common_model(self, server: Server) -> bool:
        return self.same_as(server.layers) is not None

    def server_expects(self, server: Server, verbs: tuple[Verb, ...]) -> ExpectedUpload:
        if "fit" not in verbs:
            return ExpectedUpload()
        size = sum(w.numel() for name, w in server.weights.items() if name not in server.layers.buffers)
        return ExpectedUpload(server.layers.names, {"own": packed_length(size)})

    async def client_fit(self, client: Client, download: Download) -> Upload:
        self.client_model(client, download)
        before = client.weights()
        fixed = client.layers.buffers | client.layers.frozen
        empty = {n: torch.zeros_like(w, dtype=torch.bool) for n, w in before.items() if n not in fixed}
        own: Masks = client.memory.get("own", empty)
        await self._train(client, own)
        await self._train(client, {name: ~mask for name, mask in own.items()})
        after = client.weights()
        client.memory["own"] = {name: self._grown(mask, before[name], after[name]) for name, mask in own.items()}
        client.memory["personal"] = {name: after[name] for name in own}
        upload = client.upload(own=packed({name: own[name] for name in empty}))
        shared = {n: torch.where(mask, download.weights[n], after[n]) for n, mask in own.items()}
        return replace(upload, weights={**upload.weights, **shared})

    async def _train(self, client: Client, mask: Masks) -> None:
        """Trains the masked weights; if these are all weights, exactly as without a mask."""
        if all(bool(chosen.all()) for chosen in mask.values()):
            await client.train()
        elif any(bool(chosen.any()) for chosen in mask.values()):
            weights = client.weights()
            slots = {"mask": {name: chosen.to(weights[name].dtype) for name, chosen in mask.items()}}
            await client.train(optimizer=Masked(client.plan.optimizer), slots=slots)

    def _grown(self, mask: Tensor, before: Tensor, after: Tensor) -> Tensor:
        """The mask for the next round."""
        shared = int((~mask).sum())
        room = int(self.limit * mask.numel()) - (mask.numel() - shared)
        count = max(0, min(room, round(self.rate * shared)))
        change = (after.double() - before.double()).abs().masked_fill(mask, -1.0).flatten()
        grown = mask.flatten().clone()
        grown[change.argsort(descending=True, stable=True)[:count]] = True
        return grown.reshape(mask.shape)

    def server_merge(self, server: Server, uploads: Mapping[SiteId, Upload]) -> None:
        in_order = server.layers.select(server.weights)
        parameters = {n: w for n, w in in_order.items() if n not in server.layers.buffers}
        own = {site: unpacked(upload.numbers("own"), parameters) for site, upload in uploads.items()}
        super().server_merge(server, uploads)
        if not any(bool(mask.any()) for masks in own.values() for mask in masks.values()):
            return
        for name, weight in parameters.items():
            total = torch.zeros_like(weight, dtype=torch.float64)
            count = torch.zeros_like(total)
            for site, upload in uploads.items():
                share = (~own[site][name]).double() * upload.num_examples
                total += share * upload.weights[name].double()
                count += share
            mean = (total / count.clamp_min(1.0)).to(weight.dtype)
            server.weights[name] = torch.where(count > 0, mean, weight)

    def client_model(self, client: Client, download: Download) -> None:
        own: Masks = client.memory.get("own", {})
        personal: Weights = client.memory.get("personal", {})
        mixed = {name: torch.where(mask, personal[name], download.weights[name]) for name, mask in own.items()}
        client.load(download.weights, mixed)
