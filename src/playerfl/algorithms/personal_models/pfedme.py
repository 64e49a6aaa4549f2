"""pFedMe: personal models through Moreau envelopes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from playerfl.algorithms.algorithm import Algorithm
from playerfl.errors import ConfigError, at_least_zero
from playerfl.federation.client import Client
from playerfl.federation.messages import Download, SiteId, Upload
from playerfl.federation.server import Server
from playerfl.learning.optimizers import Moreau
from playerfl.weights import weighted_mean


@dataclass(frozen=True)
class PFedMe(Algorithm):
    """A personal model θ_c and a local copy w_c of the common one, pulled together. θ_c is reported.

    For each batch:  K times θ ← θ - η·(∇f_c(θ) + λ(θ - w_c)), then w_c ← w_c - η_w·λ·(w_c - θ);
    after the round:  w ← (1 - β)·w + β·Σ_c (n_c / Σ n)·w_c.

    Paper: T. Dinh et al. 2020, Algorithm 1, https://arxiv.org/abs/2006.08848
    Differs: an epoch of batches per round (the paper: 20 iterations), and averages are weighted by the sites'
    examples. Plain gradient steps whatever `training.optimizer` says, with `training.learning_rate` as η.
    """

    lam: float = 15.0
    """λ, the strength of the pull between the personal model and the local copy."""
    inner_steps: int = 5
    """K: gradient steps on one batch."""
    beta: float = 1.0
    """β: how far the common model moves towards the average of the local copies."""
    local_learning_rate: float | None = None
    """η_w; default: η. With η_w·λ > 1 every step of w_c overshoots θ, so such a value is refused."""
    weight_decay: float = 0.0
    """Weight decay of the personal model's steps."""

    def __post_init__(self) -> None:
        for name in ("lam", "beta", "weight_decay"):
            at_least_zero(name, getattr(self, name))
        if self.inner_steps < 1:
            raise ConfigError(f"inner_steps must be at least 1, not {self.inner_steps}")
        if self.local_learning_rate is not None:
            at_least_zero("local_learning_rate", self.local_learning_rate)
            if problem := self.overshoot("local_learning_rate", self.local_learning_rate):
                raise ConfigError(problem)

    def overshoot(self, name: str, local_rate: float) -> str | None:
        """What is wrong with a rate η_w, if its steps take w_c past θ; None if they do not."""
        product = local_rate * self.lam
        # Up to rounding: a product of 1, where w_c becomes θ, is allowed.
        if product <= 1 + 1e-12:
            return None
        return (
            f"{name} = {local_rate:g} with lam = {self.lam:g} overshoots: their product is {product:g}, and above 1 "
            "every step of the local copy goes past the personal model; "
            f"use a rate of at most {1 / self.lam:.3g}, or a smaller lam (the PLayer-FL authors: 0.1)"
        )

    def training_notes(self, learning_rate: float) -> tuple[str, ...]:
        """A rate merely inherited from `training.learning_rate` is not refused: published studies tried such rates."""
        followed = self.overshoot("training.learning_rate", learning_rate) if self.local_learning_rate is None else None
        return () if followed is None else (f"pFedMe: {followed}",)

    async def client_fit(self, client: Client, download: Download) -> Upload:
        client.load(download.weights)
        # θ and w_c both start each round from w.
        client.optimizers.clear()
        rate = client.plan.optimizer.learning_rate
        local_rate = rate if self.local_learning_rate is None else self.local_learning_rate
        await client.train(optimizer=Moreau(rate, local_rate, self.lam, self.inner_steps, self.weight_decay))
        client.memory["personal"] = client.weights()
        client.load(client.memory["personal"], client.optimizers.pop("main")["local"])
        upload = client.upload()
        client.load(client.memory["personal"])
        return upload

    def server_merge(self, server: Server, uploads: Mapping[SiteId, Upload]) -> None:
        before = dict(server.weights)
        super().server_merge(server, uploads)
        if self.beta != 1:
            server.weights = weighted_mean([(before, 1 - self.beta), (server.weights, self.beta)])

    def client_model(self, client: Client, download: Download) -> None:
        client.load(download.weights, client.memory.get("personal", {}))
