"""PLayer-FL's cut combined with another method: the cut decides which layers are shared, not how sites train."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from playerfl.algorithms.one_model.fedprox import FedProx
from playerfl.algorithms.personal_models.ditto import Ditto
from playerfl.algorithms.shared_layers.fedrep import FedRep
from playerfl.algorithms.shared_layers.player_fl import PLayerFL
from playerfl.errors import ConfigError


@dataclass(frozen=True)
class _Restarted(PLayerFL):
    """The measured epoch is plain training, so it cannot count as the other method's first round."""

    first_epoch: Literal["continue", "restart"] = "restart"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.first_epoch != "restart":
            raise ConfigError("first_epoch must be 'restart' here: the other method starts with a known cut")
        if self.private_pull:
            raise ConfigError(f"private_pull = {self.private_pull:g} works only in PLayer-FL itself; leave it out")


@dataclass(frozen=True)
class PLayerFLFedProx(_Restarted, FedProx):
    """FedProx on the layers that PLayer-FL shares: those are pulled, the private ones are not.

    Paper: PLayer-FL ("can be used together with other methods") with FedProx.
    Differs: one measured epoch comes before the first round.
    """


@dataclass(frozen=True)
class PLayerFLDitto(_Restarted, Ditto):
    """Ditto whose common model is averaged up to PLayer-FL's cut; personal models are pulled towards that part.

    Paper: PLayer-FL with Ditto.
    Differs: one measured epoch comes before the first round.
    """


@dataclass(frozen=True)
class PLayerFLFedRep(_Restarted, FedRep):
    """FedRep whose head begins at PLayer-FL's cut: first the head is trained with the body fixed, then the body.

    Paper: PLayer-FL with FedRep.
    Differs: one measured epoch comes before the first round; `personal_layers` is not used.
    """
