"""FedProx: FedAvg with a pull towards the common model."""

from __future__ import annotations

from dataclasses import dataclass

from playerfl.algorithms.partial import PartialAlgorithm
from playerfl.errors import at_least_zero
from playerfl.federation.client import Client
from playerfl.layers.layer_map import LayerMap
from playerfl.learning.job import Pull
from playerfl.weights import Weights


@dataclass(frozen=True)
class FedProx(PartialAlgorithm):
    """FedAvg with a pull towards what the site received:  min f_c(θ) + μ/2 · ‖θ - w‖².

    Paper: Li et al. 2020, equation 2, https://arxiv.org/abs/1812.06127. mu = 0 is FedAvg.
    Differs: every site does the same number of epochs; under AdamW the pull passes through its scaling.
    """

    mu: float = 0.1
    """μ, the strength of the pull towards the received model."""

    def __post_init__(self) -> None:
        at_least_zero("mu", self.mu)

    def same_as(self, layers: LayerMap) -> str | None:
        return "FedAvg" if self.mu == 0 else None

    async def client_train(self, client: Client, received: Weights) -> None:
        await client.train(pull=Pull(received, self.mu))
