"""Every federated method by name: an explicit table, one file each."""

from __future__ import annotations

from playerfl.algorithms.algorithm import Algorithm
from playerfl.algorithms.fedavg import FedAvg
from playerfl.algorithms.fedper import FedPer
from playerfl.algorithms.local import Local
from playerfl.algorithms.partial import PartialAlgorithm
from playerfl.algorithms.player_fl import PLayerFL

ALGORITHMS: dict[str, type[Algorithm]] = {
    "local": Local,
    "fedavg": FedAvg,
    "fedper": FedPer,
    "player_fl": PLayerFL,
}

__all__ = ["ALGORITHMS", "Algorithm", "FedAvg", "FedPer", "Local", "PLayerFL", "PartialAlgorithm"]
