"""PLayer-FL with a random cut: is measuring better than chance?"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from playerfl.algorithms.shared_layers.player_fl import PLayerFL
from playerfl.errors import ConfigError
from playerfl.federation.messages import Download, SiteId
from playerfl.federation.server import Server
from playerfl.layers.cut import Cut
from playerfl.layers.layer_map import LayerMap
from playerfl.seeding import generator_for


@dataclass(frozen=True)
class PLayerFLRandom(PLayerFL):
    """PLayer-FL with p drawn once from 1 … L-1, the same for all sites, and never the measured p*.

    Paper: PLayer-FL, baseline PLayer-FL-Random ("a randomly selected layer").
    Differs: with `reference_cut`, p* is given and nothing is measured; otherwise p* is measured in the first epoch.
    """

    reference_cut: int | None = None
    """p*, if it is known; it is then not measured."""
    exclude_reference: bool = True
    """Whether p* is never drawn. If it may be drawn, nothing is measured."""

    def check_layers(self, layers: LayerMap) -> None:
        super().check_layers(layers)
        if self.reference_cut is not None and not 1 <= self.reference_cut <= len(layers.names):
            raise ConfigError(f"reference_cut must be between 1 and {len(layers.names)}, not {self.reference_cut}")

    @property
    def prepares(self) -> bool:
        return self.reference_cut is None and self.exclude_reference

    def server_start(self, server: Server) -> None:
        if not self.prepares:
            index, notes = self.draw(server, self.reference_cut)
            drawn = Cut(index, server.layers.names, "random", None, (), f"the cut was drawn: {index}", tuple(notes))
            server.memory["cut"] = index
            server.memory["decision"] = drawn.to_json()

    def final_cut(self, server: Server, measured: Cut) -> tuple[int, list[str]]:
        return self.draw(server, measured.index)

    def draw(self, server: Server, reference: int | None) -> tuple[int, list[str]]:
        """One of the remaining cuts, drawn from the run's own random stream."""
        excluded = reference if self.exclude_reference else None
        candidates = [p for p in range(1, len(server.layers.names)) if p != excluded]
        if not candidates:
            fallback = reference or len(server.layers.names)
            return fallback, [f"{fallback} is the only possible cut, so it is used"]
        drawn = torch.randint(len(candidates), (), generator=generator_for(server.seed, "random_split"))
        return candidates[int(drawn)], [f"the cut was drawn from {candidates}"]

    def server_send(self, server: Server, site: SiteId) -> Download:
        if self.prepares or site in server.initialised:
            return super().server_send(server, site)
        return server.download(cut=server.memory["cut"])
