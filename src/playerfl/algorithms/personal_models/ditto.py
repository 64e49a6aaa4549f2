"""Ditto: a personal model alongside the common one, pulled towards it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from playerfl.algorithms.partial import PartialAlgorithm
from playerfl.errors import ConfigError, at_least_zero, one_of
from playerfl.federation.client import Client
from playerfl.federation.messages import Download, Upload
from playerfl.federation.server import Server
from playerfl.learning.job import Pull
from playerfl.learning.optimizers import with_rate


@dataclass(frozen=True)
class Ditto(PartialAlgorithm):
    """FedAvg, and at each site a personal model:  v_c ← step of f_c(v) + λ/2 · ‖v - w‖².  v_c is reported.

    Paper: Li et al. 2021, Algorithm 1, https://arxiv.org/abs/2012.04221. lam = 0 gives v = Local.
    Differs: both models train for whole epochs in turn (the paper's code interleaves batches), and averages are
    weighted by the sites' examples. `anchor="post_agg"` pulls towards the merged model of the same round instead of
    the received one; the last personal step then comes after the last round.
    """

    lam: float = 0.1
    """λ, the strength of the personal model's pull towards the common one."""
    personal_epochs: int = 1
    """Epochs of the personal model per round."""
    anchor: Literal["round_start", "post_agg"] = "round_start"
    """Pulls towards the model received at the start of the round, or the one merged at its end."""
    personal_learning_rate: float | None = None
    """The personal model's learning rate; default: `training.learning_rate`."""

    def __post_init__(self) -> None:
        at_least_zero("lam", self.lam)
        at_least_zero("personal_epochs", self.personal_epochs)
        if self.anchor not in ("round_start", "post_agg"):
            raise ConfigError(one_of(self.anchor, ("round_start", "post_agg"), "anchor"))

    @property
    def finishes(self) -> bool:
        return self.anchor == "post_agg"

    def common_model(self, server: Server) -> bool:
        """Sites predict with their personal models."""
        return False

    async def client_fit(self, client: Client, download: Download) -> Upload:
        first = "own" not in client.memory
        if first:
            self.client_assemble(client, download)
            client.memory["own"] = client.weights()
        # With post_agg, what arrives now is the anchor of the previous round, so the first round has none.
        if self.anchor == "round_start" or not first:
            await self.client_train_personal(client, download)
        self.client_assemble(client, download)
        await client.train(stream="aux")
        upload = self.client_keep(client)
        client.load(client.memory["own"])
        return upload

    async def client_train_personal(self, client: Client, download: Download) -> None:
        """Trains the personal model, which has its own statistics and optimiser."""
        client.load(client.memory["own"])
        optimizer = with_rate(client.plan.optimizer, self.personal_learning_rate)
        pull = Pull(self.received(client, download), self.lam)
        # With post_agg this is the last round's personal step, which had to wait for the merge.
        round_ = download.round - 1 if self.anchor == "post_agg" else None
        await client.train(self.personal_epochs, pull=pull, optimizer=optimizer, round_=round_)
        client.memory["own"] = client.weights()

    async def client_finish(self, client: Client, download: Download) -> None:
        await self.client_train_personal(client, download)

    def client_model(self, client: Client, download: Download) -> None:
        if "own" in client.memory:
            client.load(client.memory["own"])
        else:
            self.client_assemble(client, download)
