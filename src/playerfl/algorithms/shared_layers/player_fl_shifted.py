"""PLayer-FL with its cut moved by one layer: does the exact position matter?"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from playerfl.algorithms.shared_layers.player_fl import PLayerFL
from playerfl.federation.server import Server
from playerfl.layers.cut import Cut


@dataclass(frozen=True)
class _Shifted(PLayerFL):
    shift: ClassVar[int] = 0

    def final_cut(self, server: Server, measured: Cut) -> tuple[int, list[str]]:
        layers = len(measured.layers)
        index = min(max(measured.index + self.shift, 1), layers)
        if index == measured.index:
            return index, [f"the cut stays after {index} of {layers} layers: there is no room to move it"]
        return index, [f"the cut was measured after {measured.index} layers and moved to {index}"]


@dataclass(frozen=True)
class PLayerFLMinusOne(_Shifted):
    """PLayer-FL with one layer fewer shared than measured: p = max(p* - 1, 1).

    Paper: PLayer-FL, ablation PLayer-FL-1.
    Differs: the cut is measured at run time, as in PLayer-FL.
    """

    shift: ClassVar[int] = -1


@dataclass(frozen=True)
class PLayerFLPlusOne(_Shifted):
    """PLayer-FL with one layer more shared than measured: p = min(p* + 1, L); at L it is FedAvg.

    Paper: PLayer-FL, ablation PLayer-FL+1.
    Differs: the cut is measured at run time, as in PLayer-FL.
    """

    shift: ClassVar[int] = 1
