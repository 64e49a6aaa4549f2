"""FedRep: trains the head with the body fixed, then the body with the head fixed."""

from __future__ import annotations

from dataclasses import dataclass

from playerfl.algorithms.partial import PartialAlgorithm, all_but_last
from playerfl.errors import at_least_zero
from playerfl.federation.client import Client
from playerfl.federation.server import Server
from playerfl.layers.layer_map import LayerMap
from playerfl.weights import Weights


@dataclass(frozen=True)
class FedRep(PartialAlgorithm):
    """The private head trains with the body fixed, then the body with the head fixed; only the body is averaged.

    Paper: Collins et al. 2021, Algorithm 1, https://arxiv.org/abs/2102.07078
    Differs: one epoch each by default (the paper's scripts: 10 and 1 to 5), so twice FedAvg's computation;
    no extra tuning of the heads after the last round.
    """

    personal_layers: int = 1
    """How many of the last layers, the head, are private."""
    head_epochs: int = 1
    """Epochs of the head per round, with the body fixed."""
    body_epochs: int = 1
    """Epochs of the body per round, with the head fixed."""

    def __post_init__(self) -> None:
        at_least_zero("head_epochs", self.head_epochs)
        at_least_zero("body_epochs", self.body_epochs)

    def check_layers(self, layers: LayerMap) -> None:
        all_but_last(layers, self.personal_layers)

    def cut(self, side: Client | Server) -> int:
        return all_but_last(side.layers, self.personal_layers)

    async def client_train(self, client: Client, received: Weights) -> None:
        await client.train(self.head_epochs, only=self.personal(client))
        await client.train(self.body_epochs, only=self.federated(client))
