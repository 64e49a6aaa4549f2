"""FedPer: the last layers are private."""

from __future__ import annotations

from dataclasses import dataclass

from playerfl.algorithms.partial import PartialAlgorithm, all_but_last, simpler
from playerfl.federation.client import Client
from playerfl.federation.server import Server
from playerfl.layers.layer_map import LayerMap


@dataclass(frozen=True)
class FedPer(PartialAlgorithm):
    """All layers train together; all but the last `personal_layers` are averaged.

    Paper: Arivazhagan et al. 2019, https://arxiv.org/abs/1912.00818
    Differs: heads start from the common initial model.
    """

    personal_layers: int = 1
    """How many of the last layers are private."""

    def check_layers(self, layers: LayerMap) -> None:
        all_but_last(layers, self.personal_layers)

    def same_as(self, layers: LayerMap) -> str | None:
        return simpler(all_but_last(layers, self.personal_layers), layers)

    def cut(self, side: Client | Server) -> int:
        return all_but_last(side.layers, self.personal_layers)
