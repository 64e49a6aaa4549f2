"""LG-FedAvg: the last layers are shared, the first ones are private."""

from __future__ import annotations

from dataclasses import dataclass

from playerfl.algorithms.partial import PartialAlgorithm
from playerfl.errors import ConfigError
from playerfl.federation.client import Client
from playerfl.federation.server import Server
from playerfl.layers.layer_map import LayerMap, LayerName


@dataclass(frozen=True)
class LGFedAvg(PartialAlgorithm):
    """Each site learns its own representation; only the last `shared_layers` layers, which read it, are averaged.

    Paper: Liang et al. 2020, Algorithm 1, https://arxiv.org/abs/2001.01523
    Differs: private layers start from the common initial model (the paper's experiments start from one that FedAvg
    has trained); no adversarial loss for fair representations.
    """

    shared_layers: int = 1
    """How many layers, from the last, are averaged."""

    def check_layers(self, layers: LayerMap) -> None:
        if not 0 <= self.shared_layers <= len(layers.names):
            raise ConfigError(
                f"shared_layers must be between 0 and {len(layers.names)}, the number of layers, "
                f"not {self.shared_layers}"
            )

    def cut(self, side: Client | Server) -> int:
        """Here the private layers come first."""
        self.check_layers(side.layers)
        return len(side.layers.names) - self.shared_layers

    def federated(self, side: Client | Server) -> tuple[LayerName, ...]:
        return side.layers.names[self.cut(side) :]

    def personal(self, side: Client | Server) -> tuple[LayerName, ...]:
        return side.layers.names[: self.cut(side)]
