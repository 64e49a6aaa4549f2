"""FedLAMA: layers that drift little are averaged less often."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import accumulate

from playerfl.algorithms.algorithm import Algorithm
from playerfl.errors import ConfigError, at_least_zero
from playerfl.federation.client import Client
from playerfl.federation.messages import Download, ExpectedUpload, SiteId, Upload, Verb
from playerfl.federation.server import Server
from playerfl.layers.layer_map import LayerName
from playerfl.weights import squared_distance


@dataclass(frozen=True)
class FedLAMA(Algorithm):
    """Layer l is averaged after round r if τ_l divides r; in between, each site keeps training its own copy.

    Discrepancy at an average u_l:  d_l = 1/C · Σ_c ‖u_l - θ_{c,l}‖² / (τ_l · P_l).  Every φτ rounds, layers in
    order of d_l get the long interval φτ until their share of Σ d·P exceeds the share of parameters still left.

    Paper: Lee et al. 2023, Algorithms 1 and 2, https://arxiv.org/abs/2110.10302. tau = phi = 1 is FedAvg.
    Differs: intervals count rounds (the paper: iterations), whole layers wait (its code: kernels only).
    """

    tau: int = 1
    """τ: rounds between two averages of a layer."""
    phi: int = 2
    """φ: how many times longer the interval of a layer that drifts little becomes."""
    warmup_rounds: int = 0
    """Rounds before intervals may grow."""

    def __post_init__(self) -> None:
        at_least_zero("warmup_rounds", self.warmup_rounds)
        if self.tau < 1 or self.phi < 1:
            raise ConfigError(f"tau and phi must be at least 1, not {self.tau} and {self.phi}")

    def intervals(self, side: Client | Server) -> dict[LayerName, int]:
        """τ_l of every layer, known at both ends."""
        known = side.memory.get("intervals") or [self.tau] * len(side.layers.names)
        return dict(zip(side.layers.names, known, strict=True))

    def due(self, side: Client | Server, round_: int) -> list[LayerName]:
        """The layers averaged after this round, counted from 1."""
        return [layer for layer, interval in self.intervals(side).items() if round_ % interval == 0]

    def common_model(self, server: Server) -> bool:
        """Only when all layers were averaged together; in between, some layers differ from site to site."""
        return len(self.due(server, server.round)) == len(server.layers.names)

    def server_send(self, server: Server, site: SiteId) -> Download:
        if "news" not in server.memory:
            return server.download()
        # The layers averaged since this site last trained, under the intervals in force then; all if the site is new.
        news = server.memory["news"][site]
        averaged = [layer for layer in server.layers.names if layer in news["averaged"]]
        layers = averaged if site in server.initialised else None
        if news["adjusted"]:
            return server.download(layers, intervals=server.memory["intervals"])
        return server.download(layers)

    def server_expects(self, server: Server, verbs: tuple[Verb, ...]) -> ExpectedUpload:
        return ExpectedUpload(tuple(self.due(server, server.round + 1)) if "fit" in verbs else ())

    async def client_fit(self, client: Client, download: Download) -> Upload:
        if "intervals" in download.info:
            client.memory["intervals"] = download.info["intervals"]
        self.client_model(client, download)
        await client.train()
        client.memory["local"] = client.weights()
        return client.upload(self.due(client, download.round + 1))

    def server_merge(self, server: Server, uploads: Mapping[SiteId, Upload]) -> None:
        round_ = server.round + 1
        due = self.due(server, round_)
        super().server_merge(server, uploads)
        news = server.memory.setdefault("news", {})
        for site in server.sites:
            if site in uploads or site not in news:
                news[site] = {"averaged": [], "adjusted": False}
            news[site]["averaged"] = [*news[site]["averaged"], *due]
        for layer in due:
            server.memory.setdefault("discrepancy", {})[layer] = self._discrepancy(server, uploads, layer)
        if self.phi > 1 and round_ % (self.phi * self.tau) == 0 and round_ > self.warmup_rounds:
            server.memory["intervals"] = self._adjusted(server)
            for site_news in news.values():
                site_news["adjusted"] = True

    def _discrepancy(self, server: Server, uploads: Mapping[SiteId, Upload], layer: LayerName) -> float:
        averaged = server.layers.select(server.weights, [layer])
        mean = {name: w for name, w in averaged.items() if name not in server.layers.buffers}
        drift = sum(squared_distance(mean, upload.weights) for upload in uploads.values()) / len(uploads)
        return drift / (self.intervals(server)[layer] * max(1, server.layers.num_parameters[layer]))

    def _adjusted(self, server: Server) -> list[int]:
        return adjusted_intervals(
            server.memory["discrepancy"], server.layers.num_parameters, self.tau, self.phi * self.tau
        )

    def client_model(self, client: Client, download: Download) -> None:
        client.load(client.memory.get("local", {}), download.weights)


def adjusted_intervals(
    discrepancy: Mapping[LayerName, float], sizes: Mapping[LayerName, int], short: int, long: int
) -> list[int]:
    """The interval of every layer, in the order of `sizes` (Algorithm 2).

    The small layer b drifts most, so the large layer a may wait:

    >>> adjusted_intervals({"a": 0.01, "b": 1.0, "c": 0.5}, {"a": 90, "b": 5, "c": 5}, short=1, long=2)
    [2, 1, 1]
    """
    order = sorted(sizes, key=lambda layer: (discrepancy[layer], list(sizes).index(layer)))
    drift = [discrepancy[layer] * sizes[layer] for layer in order]
    total_drift, total_size = sum(drift), sum(sizes.values())
    chosen = dict.fromkeys(sizes, short)
    if total_drift > 0:
        shares = zip(order, accumulate(drift), accumulate(sizes[layer] for layer in order), strict=True)
        for layer, drift_so_far, size_so_far in shares:
            chosen[layer] = long
            if drift_so_far / total_drift > 1 - size_so_far / total_size:
                break
    return list(chosen.values())
