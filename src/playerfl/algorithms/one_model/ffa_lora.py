"""FFA-LoRA: the A matrices of LoRA stay as initialised, only B is trained and averaged."""

from __future__ import annotations

from dataclasses import dataclass

from playerfl.algorithms.private_entries import PrivateEntries
from playerfl.federation.client import Client
from playerfl.federation.messages import Download
from playerfl.federation.server import Server
from playerfl.layers.adapters import must_be_lora
from playerfl.layers.layer_map import LayerMap


@dataclass(frozen=True)
class FFALoRA(PrivateEntries):
    """FedAvg with A fixed at its random start: B̄ ← Σ_c (n_c / Σ n) · B_c, so that B̄·A_0 is exactly the average update.

    With A and B both averaged, the product of the averages is not the average of the products.

    Paper: Sun et al. 2024, https://arxiv.org/abs/2403.12313. Without LoRA it is FedAvg.
    Differs: averages are weighted by the sites' examples. Everything else that trains (the head, DoRA's magnitude) is
    trained and averaged, too.
    """

    def private(self, layers: LayerMap) -> frozenset[str]:
        """A_0, which all sites have from the initial model: it is not sent again."""
        return must_be_lora(layers.all_entries, layers.all_entries, "ffa_lora freezes") - layers.frozen

    def check_layers(self, layers: LayerMap) -> None:
        self.private(layers)

    def same_as(self, layers: LayerMap) -> str | None:
        return None if self.private(layers) else "FedAvg"

    def common_model(self, server: Server) -> bool:
        return True

    async def client_train(self, client: Client) -> None:
        await client.train(without=self.private(client.layers))

    async def client_join(self, client: Client, download: Download, epochs: int) -> None:
        client.load(download.weights)
        await client.train(epochs, without=self.private(client.layers))
