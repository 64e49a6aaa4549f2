"""Server: what an algorithm is given at the server: the common model and its memory."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

from torch import Tensor

from playerfl.federation.client import Memory
from playerfl.federation.merging import Merge
from playerfl.federation.messages import Download, Scalar, SiteId
from playerfl.layers.layer_map import LayerMap, LayerName
from playerfl.weights import Weights

MEAN = Merge()


class Server:
    """The common model, the sites, and what the algorithm remembers between rounds."""

    def __init__(
        self,
        weights: Weights,
        layers: LayerMap,
        sites: Iterable[SiteId],
        seed: int = 0,
        merge: Merge = MEAN,
    ) -> None:
        self.layers = layers
        self.merge = merge
        self.weights = layers.travelling(weights)
        self.sites = tuple(sorted(sites))
        self.seed = seed
        self.round = 0
        """Merges completed so far."""
        self.memory: Memory = {}
        self.initialised: set[SiteId] = set()
        """Sites that have trained in a round, and therefore have the initial model and their own private layers."""
        self.prepared = False
        self.best_round: int | None = None
        """The round with the lowest validation loss over all sites together, among those that are compared."""
        self.best_loss = math.inf
        self.common_rounds: list[int] = []
        """The rounds after which all sites predicted with one model."""
        self.lowest_loss = math.inf
        self.rounds_without_progress = 0
        """Since the validation loss over all sites was lowest."""
        self.stopped: str | None = None
        """Why no further round is trained, if a listener has ended the run (see `StopRun`)."""

    def merged(self, parts: Sequence[tuple[Mapping[str, Tensor], float]]) -> Weights:
        """One model from uploads and their weights, by the experiment's merge rule (default: the mean)."""
        return self.merge(parts, self.weights)

    def download(self, layers: Iterable[LayerName] | None = None, **info: Scalar | list[Scalar]) -> Download:
        """A message with the common weights of some layers (default: all) and small values."""
        return Download(self.round, self.layers.select(self.weights, layers), info)

    def state(self) -> Memory:
        """Everything the server needs to resume."""
        return {
            "weights": self.weights,
            "round": self.round,
            "memory": self.memory,
            "initialised": sorted(self.initialised),
            "prepared": self.prepared,
            "best_round": self.best_round,
            "best_loss": self.best_loss,
            "common_rounds": self.common_rounds,
            "lowest_loss": self.lowest_loss,
            "rounds_without_progress": self.rounds_without_progress,
            **({"stopped": self.stopped} if self.stopped is not None else {}),
        }

    def restore(self, state: Memory) -> None:
        """Continues from what `state` returned."""
        known = {name: (entry.shape, entry.dtype) for name, entry in self.weights.items()}
        if known != {name: (entry.shape, entry.dtype) for name, entry in state["weights"].items()}:
            raise ValueError("the weights belong to another model")
        self.weights = state["weights"]
        self.round = state["round"]
        self.memory = state["memory"]
        # Checkpoints of version 0.1 call it "greeted".
        self.initialised = set(state["initialised"] if "initialised" in state else state["greeted"])
        self.prepared = state["prepared"]
        self.best_round = state["best_round"]
        self.best_loss = state["best_loss"]
        # Checkpoints of version 0.1 have none of these, and no run of that time needs them.
        self.common_rounds = state.get("common_rounds", [])
        self.lowest_loss = state.get("lowest_loss", math.inf)
        self.rounds_without_progress = state.get("rounds_without_progress", 0)
        self.stopped = state.get("stopped")
