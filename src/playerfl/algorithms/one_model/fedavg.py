"""FedAvg: every site trains the whole model, the server averages."""

from __future__ import annotations

from dataclasses import dataclass

from playerfl.algorithms.algorithm import Algorithm
from playerfl.federation.client import Client
from playerfl.federation.messages import Download, Upload
from playerfl.federation.server import Server


@dataclass(frozen=True)
class FedAvg(Algorithm):
    """Federated averaging: θ_c ← w, E epochs of local steps, w ← Σ_c (n_c / Σ n) · θ_c.

    Paper: McMahan et al. 2017, Algorithm 1, https://arxiv.org/abs/1602.05629
    Differs: every site takes part in every round (cross-silo), and sites keep their optimiser's state.
    """

    def common_model(self, server: Server) -> bool:
        return True

    async def client_fit(self, client: Client, download: Download) -> Upload:
        client.load(download.weights)
        await client.train()
        return client.upload()
