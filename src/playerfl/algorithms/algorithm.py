"""Algorithm: the verbs every federated method is written in, with their defaults."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from playerfl.federation.client import Client
from playerfl.federation.messages import Download, ExpectedUpload, SiteId, Upload, Verb
from playerfl.federation.server import Server
from playerfl.layers.layer_map import LayerMap

ADDED = MappingProxyType({"added": True})
"""Metadata for a hyper-parameter that was added after runs had been saved without it. It is not written while it has
its default value, so that finished runs are still found by their keys. Its default must never change."""


@dataclass(frozen=True)
class Algorithm:
    """Send everything, train, average the uploads, predict with what was sent.

    Subclasses are frozen dataclasses of hyper-parameters and override what they change. They hold no state:
    what lasts is in `client.memory` and `server.memory`.
    """

    def __post_init__(self) -> None:
        """Rejects invalid hyper-parameters."""

    def check_layers(self, layers: LayerMap) -> None:
        """Rejects hyper-parameters that do not fit the model, before anything is written or trained."""

    def training_notes(self, learning_rate: float) -> tuple[str, ...]:
        """What a reader of the results should know about these hyper-parameters with this learning rate."""
        return ()

    @property
    def prepares(self) -> bool:
        """Whether sites do something once before the first round."""
        return False

    @property
    def finishes(self) -> bool:
        """Whether sites do something once after the last round; only its result is then reported."""
        return False

    def server_start(self, server: Server) -> None:
        """Once, before anything is sent."""

    async def client_prepare(self, client: Client, download: Download) -> Upload:
        """Once, before the first round, if `prepares` is set."""
        return Upload(client.num_examples)

    def server_prepare(self, server: Server, uploads: Mapping[SiteId, Upload]) -> None:
        """Reads what `client_prepare` uploaded."""

    def server_send(self, server: Server, site: SiteId) -> Download:
        """What one site gets now. Must not change anything."""
        return server.download()

    async def client_fit(self, client: Client, download: Download) -> Upload:
        """One round at one site. Leaves loaded the model that the site would predict with."""
        raise TypeError(f"{type(self).__name__} must define client_fit")

    def server_expects(self, server: Server, verbs: tuple[Verb, ...]) -> ExpectedUpload:
        """What sites upload in reply to these verbs, so that anything else can be refused."""
        return ExpectedUpload(server.layers.names if "fit" in verbs else ())

    def server_merge(self, server: Server, uploads: Mapping[SiteId, Upload]) -> None:
        """Averages the uploads: w ← Σ_c (n_c / Σ n) · θ_c, entry by entry over the sites that sent it."""
        server.weights |= server.merged([(upload.weights, upload.num_examples) for upload in uploads.values()])

    def common_model(self, server: Server) -> bool:
        """Whether all sites predict with one model after the merges so far; `selection = "by_owner"` depends on it."""
        return False

    async def client_finish(self, client: Client, download: Download) -> None:
        """Once, after the last round, if `finishes` is set. Leaves the finished model loaded."""

    def client_model(self, client: Client, download: Download) -> None:
        """Loads what this site predicts with. Must not write to memory."""
        client.load(download.weights)
