"""FedSA-LoRA: the A matrices of LoRA are shared, everything else is private."""

from __future__ import annotations

from dataclasses import dataclass

from playerfl.algorithms.private_entries import PrivateEntries
from playerfl.federation.client import Client
from playerfl.federation.messages import Download
from playerfl.layers.adapters import must_be_lora
from playerfl.layers.layer_map import LayerMap


@dataclass(frozen=True)
class FedSALoRA(PrivateEntries):
    """Sites train A and B of every adapter W_0 + B·A and average A alone: B, which is specific to a site, stays there.

    (A_c, B_c) ← E epochs from (Ā, B_c);  Ā ← Σ_c (n_c / Σ n) · A_c.

    Paper: Guo et al. 2025, figure 1c, https://arxiv.org/abs/2410.01463. Without LoRA it is FedAvg.
    Differs: averages are weighted by the sites' examples. The head stays at its site, as in the authors' settings; so
    does DoRA's magnitude, which the paper does not use. In VeRA the shared vector is d, and b stays.
    """

    def private(self, layers: LayerMap) -> frozenset[str]:
        shared = self.shared(layers)
        return frozenset(layers.all_entries) - layers.frozen - shared if shared else frozenset()

    def shared(self, layers: LayerMap) -> frozenset[str]:
        """The A matrices that train."""
        return must_be_lora(layers.trained, layers.all_entries, "fedsa_lora shares")

    def check_layers(self, layers: LayerMap) -> None:
        self.shared(layers)

    def same_as(self, layers: LayerMap) -> str | None:
        return None if self.shared(layers) else "FedAvg"

    async def client_join(self, client: Client, download: Download, epochs: int) -> None:
        """Tunes what is private under the shared A."""
        client.load(download.weights)
        await client.train(epochs, without=self.shared(client.layers))
