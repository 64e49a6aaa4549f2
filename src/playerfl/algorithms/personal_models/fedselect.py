"""FedSelect: the weights that change most at a site become its own, more of them in every round."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from playerfl.algorithms.algorithm import Algorithm
from playerfl.errors import ConfigError
from playerfl.federation.client import Client
from playerfl.federation.messages import Download, ExpectedUpload, SiteId, Upload, Verb
from playerfl.federation.server import Server
from playerfl.learning.coupled import Masked
from playerfl.weights import Weights, weighted_mean

_BITS = 48
Masks = dict[str, Tensor]


@dataclass(frozen=True)
class FedSelect(Algorithm):
    """A mask m_c, element by element, of the weights that are a site's own; it starts empty and grows.

    Each round:  the own weights train with the shared ones fixed, then the shared ones with the own ones fixed; each
    shared weight is averaged over the sites that share it; then in each tensor the share `rate` of the shared
    weights with the largest |θ_c - θ_c before the round| becomes own, until the share `limit` of the tensor is own.

    Paper: Tamirisa et al. 2024, https://arxiv.org/abs/2404.02478. rate = 0 is FedAvg.
    Differs: biases can become own too (the code: only tensors called weight); a weight that has become own keeps the
    site's value (the code: starts from the average); averages are weighted by the sites' examples. Own weights are
    not uploaded: their place holds what was received.
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

    def common_model(self, server: Server) -> bool:
        return self.rate == 0 or self.limit == 0

    def server_expects(self, server: Server, verbs: tuple[Verb, ...]) -> ExpectedUpload:
        if "fit" not in verbs:
            return ExpectedUpload()
        size = sum(w.numel() for name, w in server.weights.items() if name not in server.layers.buffers)
        return ExpectedUpload(server.layers.names, {"own": -(-size // _BITS)})

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
        own = {site: unpacked(numbers_of(upload), parameters) for site, upload in uploads.items()}
        before = dict(server.weights)
        if not any(bool(mask.any()) for masks in own.values() for mask in masks.values()):
            super().server_merge(server, uploads)
            return
        buffers = [({n: u.weights[n] for n in before if n not in parameters}, u.num_examples) for u in uploads.values()]
        server.weights |= weighted_mean(buffers)
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


def numbers_of(upload: Upload) -> list[int]:
    values = upload.info["own"]
    return [int(value) for value in (values if isinstance(values, list) else [values])]


def packed(masks: Masks) -> list[int | float | str]:
    """Masks as a list of integers of 48 bits each, which every wire carries exactly.

    >>> packed({"w": torch.tensor([True, False, True])})
    [5]
    """
    bits = torch.cat([mask.flatten() for mask in masks.values()])
    bits = torch.cat([bits, bits.new_zeros(-len(bits) % _BITS)]).reshape(-1, _BITS)
    return list((bits.long() << torch.arange(_BITS)).sum(1).tolist())


def unpacked(numbers: list[int], like: Mapping[str, Tensor]) -> Masks:
    """The inverse of `packed`, for tensors of the same names and shapes in the same order."""
    bits = ((torch.tensor(numbers).unsqueeze(1) >> torch.arange(_BITS)) & 1).bool().flatten()
    masks, start = {}, 0
    for name, tensor in like.items():
        masks[name] = bits[start : start + tensor.numel()].reshape(tensor.shape)
        start += tensor.numel()
    return masks
