"""LocalAdaptation: FedAvg, then every site fine-tunes the common model on its own data."""

from __future__ import annotations

from dataclasses import dataclass

from playerfl.algorithms.algorithm import Algorithm
from playerfl.algorithms.fine_tuning import tune
from playerfl.errors import at_least_zero
from playerfl.federation.client import Client
from playerfl.federation.messages import Download, Upload
from playerfl.federation.server import Server
from playerfl.layers.layer_map import LayerMap


@dataclass(frozen=True)
class LocalAdaptation(Algorithm):
    """FedAvg for all rounds; then θ_c ← w and some epochs at each site alone. The tuned model is reported.

    Paper: Yu et al. 2020, section 3.2 (fine-tuning), https://arxiv.org/abs/2002.04758
    Differs: one epoch (the paper: 100 to 200) from the model the site would select, with a fresh optimiser; no
    freezing, elastic weight consolidation or distillation.
    """

    adapt_epochs: int = 1
    """Epochs that each site trains alone after the last round."""
    adapt_learning_rate: float | None = None
    """Default: `training.learning_rate`."""

    def __post_init__(self) -> None:
        at_least_zero("adapt_epochs", self.adapt_epochs)

    def same_as(self, layers: LayerMap) -> str | None:
        return "FedAvg" if self.adapt_epochs == 0 else None

    @property
    def finishes(self) -> bool:
        return True

    def common_model(self, server: Server) -> bool:
        """Until the sites adapt it."""
        return True

    async def client_fit(self, client: Client, download: Download) -> Upload:
        client.load(download.weights)
        await client.train()
        return client.upload()

    async def client_finish(self, client: Client, download: Download) -> None:
        client.load(download.weights if client.kept is None else client.kept.weights)
        await tune(client, self.adapt_epochs, self.adapt_learning_rate)
