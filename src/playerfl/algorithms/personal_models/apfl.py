"""APFL: each site predicts with a mixture of the common model and one of its own."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from playerfl.algorithms.algorithm import Algorithm
from playerfl.errors import ConfigError, at_least_zero
from playerfl.federation.client import Client
from playerfl.federation.messages import Download, Upload
from playerfl.federation.server import Server
from playerfl.learning.coupled import Mixture
from playerfl.weights import Weights


@dataclass(frozen=True)
class APFL(Algorithm):
    """A personal model v_c alongside the site's copy w_c of the common one. The mixture α·v_c + (1 - α)·w is reported.

    For each batch:  w_c ← w_c - η·∇f(w_c),  v_c ← v_c - η·α·∇f(α·v_c + (1 - α)·w_c), both from the values before;
    after the round  α ← clip(α - η_α·Σ ⟨v_c - w_c, ∇f(α·v_c + (1 - α)·w_c)⟩, 0, 1), the sum over the round's batches.

    Paper: Deng et al. 2020, Algorithm 1, https://arxiv.org/abs/2003.13461. alpha = 0 is FedAvg, alpha = 1
    Local.
    Differs: α is fixed by default (`alpha_learning_rate` makes it adaptive, at each site, once per round); any
    optimiser instead of plain steps; batch-norm statistics are those of the common model.
    """

    alpha: float = 0.5
    """α: the share of the personal model in the mixture."""
    alpha_learning_rate: float = 0.0
    """η_α; 0 keeps α fixed."""

    def __post_init__(self) -> None:
        at_least_zero("alpha_learning_rate", self.alpha_learning_rate)
        if not 0 <= self.alpha <= 1:
            raise ConfigError(f"alpha must be between 0 and 1, not {self.alpha}")

    def common_model(self, server: Server) -> bool:
        return self.alpha == 0 and self.alpha_learning_rate == 0

    async def client_fit(self, client: Client, download: Download) -> Upload:
        client.load(download.weights)
        fixed = client.layers.buffers | client.layers.frozen
        start = {name: w for name, w in client.weights().items() if name not in fixed}
        personal: Weights = client.memory.get("personal", start)
        alpha = float(client.memory.get("alpha", self.alpha))
        adaptive = self.alpha_learning_rate > 0
        slots: dict[str, Weights] = {"local": start, "personal": personal}
        if adaptive:
            slots["slope"] = {name: torch.zeros_like(w) for name, w in start.items()}
        trained = await client.train(optimizer=Mixture(client.plan.optimizer, alpha, adaptive), slots=slots)
        client.memory["personal"] = trained.slots["personal"]
        if adaptive:
            slope = sum(float(w.double().sum()) for w in trained.slots["slope"].values())
            client.memory["alpha"] = min(1.0, max(0.0, alpha - self.alpha_learning_rate * slope))
        upload = client.upload()
        self._mix(client, client.weights())
        return upload

    def client_model(self, client: Client, download: Download) -> None:
        client.load(download.weights)
        self._mix(client, client.weights())

    def _mix(self, client: Client, common: Weights) -> None:
        """Loads the mixture of the site's own model with the common one."""
        alpha = float(client.memory.get("alpha", self.alpha))
        personal: Weights = client.memory.get("personal", {})
        mixed = {name: alpha * own + (1 - alpha) * common[name] for name, own in personal.items()}
        client.load(common, mixed)
