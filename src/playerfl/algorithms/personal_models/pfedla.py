"""pFedLA: for every site and layer, a learned mix of all sites' layers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from playerfl.algorithms.algorithm import Algorithm
from playerfl.errors import ConfigError, at_least_zero
from playerfl.federation.client import Client
from playerfl.federation.messages import Download, SiteId, Upload
from playerfl.federation.server import Server
from playerfl.layers.layer_map import LayerName
from playerfl.seeding import generator_for
from playerfl.weights import Weights, weighted_mean


@dataclass(frozen=True)
class PFedLA(Algorithm):
    """Site i receives, layer by layer, Σ_j α_i^l[j] · θ_j^l; the weights α_i come from its hypernetwork at the server.

    H_i: embedding v_i → hidden layer → softmax over sites, for each layer. After site i has trained from agg_i to
    θ_i', the change agg_i - θ_i' takes the place of a gradient:  φ_i ← φ_i - η_h · (∂agg_i/∂φ_i)ᵀ (agg_i - θ_i').

    Paper: Ma et al. 2022, Algorithm 1, https://arxiv.org/abs/2205.03993
    Differs: all sites train in every round; one hidden layer; mixes start out uniform; the step has the sign that
    reduces the loss (public code has the opposite sign). The server keeps every site's latest model, unlike in other
    methods, which matters for privacy.
    """

    embedding: int = 100
    """The length of each site's embedding, the input of its hypernetwork."""
    hidden: int = 100
    """The width of the hypernetwork's hidden layer."""
    hyper_learning_rate: float = 5e-3
    """η_h, the step size of the hypernetworks."""

    def __post_init__(self) -> None:
        at_least_zero("hyper_learning_rate", self.hyper_learning_rate)
        if self.embedding < 1 or self.hidden < 1:
            raise ConfigError(f"embedding and hidden must be at least 1, not {self.embedding} and {self.hidden}")

    @property
    def averages(self) -> bool:
        return False

    def server_start(self, server: Server) -> None:
        server.memory["models"] = {site: dict(server.weights) for site in server.sites}
        server.memory["mixers"] = {site: self.fresh_mixer(server, site) for site in server.sites}

    def fresh_mixer(self, server: Server, site: SiteId) -> Weights:
        """A hypernetwork with zero output weights: initially all sites count equally."""
        rng = generator_for(server.seed, "hyper", site)
        outputs = len(server.layers.names) * len(server.sites)
        bound = self.embedding**-0.5
        return {
            "embedding": torch.randn(self.embedding, generator=rng),
            "hidden.weight": torch.empty(self.hidden, self.embedding).uniform_(-bound, bound, generator=rng),
            "hidden.bias": torch.empty(self.hidden).uniform_(-bound, bound, generator=rng),
            "output.weight": torch.zeros(outputs, self.hidden),
            "output.bias": torch.zeros(outputs),
        }

    def mix_of(self, server: Server, mixer: Mapping[str, Tensor]) -> Tensor:
        """α_i: a row for each layer, a column for each site, rows sum to 1."""
        hidden = F.linear(mixer["embedding"], mixer["hidden.weight"], mixer["hidden.bias"]).relu()
        output = F.linear(hidden, mixer["output.weight"], mixer["output.bias"])
        return output.reshape(len(server.layers.names), len(server.sites)).softmax(dim=1)

    def server_send(self, server: Server, site: SiteId) -> Download:
        return Download(server.round, self.mixed(server, site))

    def mixed(self, server: Server, site: SiteId) -> Weights:
        """agg_i: what one site receives."""
        mix = self.mix_of(server, server.memory["mixers"][site]).tolist()
        models = server.memory["models"]
        received: Weights = {}
        for layer, row in zip(server.layers.names, mix, strict=True):
            parts = [
                (server.layers.select(models[other], [layer]), share)
                for other, share in zip(server.sites, row, strict=True)
                if share != 0
            ]
            received |= weighted_mean(parts)
        return received

    async def client_fit(self, client: Client, download: Download) -> Upload:
        client.load(download.weights)
        await client.train()
        return client.upload()

    def server_merge(self, server: Server, uploads: Mapping[SiteId, Upload]) -> None:
        # All hypernetworks learn from the models at the start of the round, whatever the order of the sites.
        mixers = {site: self.learned(server, site, upload.weights) for site, upload in uploads.items()}
        server.memory["mixers"] |= mixers
        server.memory["models"] |= {site: dict(upload.weights) for site, upload in uploads.items()}
        super().server_merge(server, uploads)

    def learned(self, server: Server, site: SiteId, trained: Mapping[str, Tensor]) -> Weights:
        """One step of a site's hypernetwork; ∂agg/∂α is linear, so only ⟨θ_j^l, agg^l - θ'^l⟩ is needed."""
        mixer = server.memory["mixers"][site]
        if self.hyper_learning_rate == 0:
            return dict(mixer)
        before = self.mixed(server, site)
        models = [server.memory["models"][other] for other in server.sites]
        slope = torch.tensor(
            [
                [self._product(server, layer, model, before, trained) for model in models]
                for layer in server.layers.names
            ]
        )
        leaves = {name: tensor.clone().requires_grad_() for name, tensor in mixer.items()}
        objective = (self.mix_of(server, leaves) * slope).sum()
        gradients = torch.autograd.grad(objective, list(leaves.values()))
        return {
            name: (leaf - self.hyper_learning_rate * gradient).detach()
            for (name, leaf), gradient in zip(leaves.items(), gradients, strict=True)
        }

    def _product(
        self, server: Server, layer: LayerName, model: Weights, before: Weights, after: Mapping[str, Tensor]
    ) -> float:
        return sum(
            float((model[name].double() * (before[name].double() - after[name].double())).sum())
            for name in server.layers.select(after, [layer])
            if name not in server.layers.buffers
        )
