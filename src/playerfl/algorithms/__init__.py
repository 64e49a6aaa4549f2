"""Every federated method by name: an explicit table, one file each."""

from __future__ import annotations

from playerfl.algorithms.algorithm import Algorithm
from playerfl.algorithms.ditto import Ditto
from playerfl.algorithms.fedavg import FedAvg
from playerfl.algorithms.fedbabu import FedBABU
from playerfl.algorithms.fedlama import FedLAMA
from playerfl.algorithms.fedlp import FedLP
from playerfl.algorithms.fedper import FedPer
from playerfl.algorithms.fedprox import FedProx
from playerfl.algorithms.fedrep import FedRep
from playerfl.algorithms.local import Local
from playerfl.algorithms.local_adaptation import LocalAdaptation
from playerfl.algorithms.partial import PartialAlgorithm
from playerfl.algorithms.pfedla import PFedLA
from playerfl.algorithms.pfedme import PFedMe
from playerfl.algorithms.player_fl import PLayerFL
from playerfl.algorithms.player_fl_random import PLayerFLRandom
from playerfl.algorithms.player_fl_shifted import PLayerFLMinusOne, PLayerFLPlusOne
from playerfl.algorithms.player_fl_with import PLayerFLDitto, PLayerFLFedProx, PLayerFLFedRep

ALGORITHMS: dict[str, type[Algorithm]] = {
    "local": Local,
    "fedavg": FedAvg,
    "fedprox": FedProx,
    "pfedme": PFedMe,
    "ditto": Ditto,
    "local_adaptation": LocalAdaptation,
    "fedper": FedPer,
    "fedrep": FedRep,
    "fedbabu": FedBABU,
    "fedlp": FedLP,
    "fedlama": FedLAMA,
    "pfedla": PFedLA,
    "player_fl": PLayerFL,
    "player_fl_random": PLayerFLRandom,
    "player_fl_minus_1": PLayerFLMinusOne,
    "player_fl_plus_1": PLayerFLPlusOne,
    "player_fl_fedprox": PLayerFLFedProx,
    "player_fl_ditto": PLayerFLDitto,
    "player_fl_fedrep": PLayerFLFedRep,
}

__all__ = [
    "ALGORITHMS",
    "Algorithm",
    "Ditto",
    "FedAvg",
    "FedBABU",
    "FedLAMA",
    "FedLP",
    "FedPer",
    "FedProx",
    "FedRep",
    "Local",
    "LocalAdaptation",
    "PFedLA",
    "PFedMe",
    "PLayerFL",
    "PLayerFLDitto",
    "PLayerFLFedProx",
    "PLayerFLFedRep",
    "PLayerFLMinusOne",
    "PLayerFLPlusOne",
    "PLayerFLRandom",
    "PartialAlgorithm",
]
