"""FedBABU: only the body learns, under a head that stays random; the head is tuned at the end."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from playerfl.algorithms.fine_tuning import tune
from playerfl.algorithms.partial import PartialAlgorithm, all_but_last
from playerfl.errors import ConfigError, at_least_zero, one_of
from playerfl.federation.client import Client
from playerfl.federation.messages import Download
from playerfl.federation.server import Server
from playerfl.layers.layer_map import LayerMap
from playerfl.weights import Weights


@dataclass(frozen=True)
class FedBABU(PartialAlgorithm):
    """The body is trained and averaged under the fixed initial head h_0; each site then tunes the `finetune` part.

    Paper: Oh et al. 2022, Algorithm 1, https://arxiv.org/abs/2106.06042
    Differs: only the head is tuned, for one epoch (the paper tunes everything for 5 epochs: `finetune="full"`,
    `finetune_epochs=5`); averages are weighted by the sites' examples.
    """

    personal_layers: int = 1
    """How many of the last layers are the head, which stays as initialised until it is tuned."""
    finetune: Literal["head", "full", "body"] = "head"
    """What each site tunes after the last round."""
    finetune_epochs: int = 1
    """Epochs of that tuning."""
    finetune_learning_rate: float | None = None
    """Default: `training.learning_rate`."""

    def __post_init__(self) -> None:
        at_least_zero("finetune_epochs", self.finetune_epochs)
        if self.finetune not in ("head", "full", "body"):
            raise ConfigError(one_of(self.finetune, ("head", "full", "body"), "finetune"))

    @property
    def finishes(self) -> bool:
        return True

    def check_layers(self, layers: LayerMap) -> None:
        all_but_last(layers, self.personal_layers)

    def cut(self, side: Client | Server) -> int:
        return all_but_last(side.layers, self.personal_layers)

    def common_model(self, server: Server) -> bool:
        """Until the sites tune it: no site's head has changed."""
        return True

    async def client_train(self, client: Client, received: Weights) -> None:
        await client.train(only=self.federated(client))

    async def client_finish(self, client: Client, download: Download) -> None:
        # Starts from the last model: how a body scores under a random head does not show which body is best.
        self.client_assemble(client, download)
        only = {"head": self.personal(client), "body": self.federated(client), "full": None}[self.finetune]
        await tune(client, self.finetune_epochs, self.finetune_learning_rate, only)
