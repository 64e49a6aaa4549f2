"""Every method by name: an explicit table, one file per method."""

from __future__ import annotations

from playerfl.algorithms.algorithm import Algorithm
from playerfl.algorithms.one_model.fedavg import FedAvg
from playerfl.algorithms.one_model.fedlama import FedLAMA
from playerfl.algorithms.one_model.fedlp import FedLP
from playerfl.algorithms.one_model.fedprox import FedProx
from playerfl.algorithms.one_model.scaffold import Scaffold
from playerfl.algorithms.partial import PartialAlgorithm
from playerfl.algorithms.personal_models.apfl import APFL
from playerfl.algorithms.personal_models.ditto import Ditto
from playerfl.algorithms.personal_models.fedala import FedALA
from playerfl.algorithms.personal_models.fedcac import FedCAC
from playerfl.algorithms.personal_models.feddbe import FedDBE
from playerfl.algorithms.personal_models.fedselect import FedSelect
from playerfl.algorithms.personal_models.local import Local
from playerfl.algorithms.personal_models.local_adaptation import LocalAdaptation
from playerfl.algorithms.personal_models.pfedla import PFedLA
from playerfl.algorithms.personal_models.pfedme import PFedMe
from playerfl.algorithms.shared_layers.fedbabu import FedBABU
from playerfl.algorithms.shared_layers.fedbn import FedBN
from playerfl.algorithms.shared_layers.fedper import FedPer
from playerfl.algorithms.shared_layers.fedrep import FedRep
from playerfl.algorithms.shared_layers.lg_fedavg import LGFedAvg
from playerfl.algorithms.shared_layers.player_fl import PLayerFL
from playerfl.algorithms.shared_layers.player_fl_random import PLayerFLRandom
from playerfl.algorithms.shared_layers.player_fl_shifted import PLayerFLMinusOne, PLayerFLPlusOne
from playerfl.algorithms.shared_layers.player_fl_with import PLayerFLDitto, PLayerFLFedProx, PLayerFLFedRep

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
    "scaffold": Scaffold,
    "fedbn": FedBN,
    "lg_fedavg": LGFedAvg,
    "apfl": APFL,
    "fedala": FedALA,
    "feddbe": FedDBE,
    "fedcac": FedCAC,
    "fedselect": FedSelect,
    "player_fl": PLayerFL,
    "player_fl_random": PLayerFLRandom,
    "player_fl_minus_1": PLayerFLMinusOne,
    "player_fl_plus_1": PLayerFLPlusOne,
    "player_fl_fedprox": PLayerFLFedProx,
    "player_fl_ditto": PLayerFLDitto,
    "player_fl_fedrep": PLayerFLFedRep,
}


def name_of(algorithm: Algorithm) -> str:
    """An algorithm's name in the table, or the name of its class.

    >>> name_of(FedAvg())
    'fedavg'
    """
    return next((name for name, kind in ALGORITHMS.items() if type(algorithm) is kind), type(algorithm).__name__)


__all__ = [
    "ALGORITHMS",
    "APFL",
    "Algorithm",
    "Ditto",
    "FedALA",
    "FedAvg",
    "FedBABU",
    "FedBN",
    "FedCAC",
    "FedDBE",
    "FedLAMA",
    "FedLP",
    "FedPer",
    "FedProx",
    "FedRep",
    "FedSelect",
    "LGFedAvg",
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
    "Scaffold",
    "name_of",
]
