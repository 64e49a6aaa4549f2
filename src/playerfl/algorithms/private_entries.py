"""PrivateEntries: all layers are shared, except some of their entries, which never leave their site."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

from torch import Tensor

from playerfl.algorithms.algorithm import Algorithm
from playerfl.federation.client import Client
from playerfl.federation.messages import Download, ExpectedUpload, SiteId, Upload, Verb
from playerfl.federation.server import Server
from playerfl.layers.layer_map import LayerMap
from playerfl.weights import Weights


@dataclass(frozen=True)
class PrivateEntries(Algorithm):
    """FedAvg over the other entries. Subclasses say in `private` which ones stay, and may train differently."""

    remembered: ClassVar[str] = "private"
    """Where a site's memory has them."""

    def private(self, layers: LayerMap) -> frozenset[str]:
        """The entries that stay at their site once it has the initial model."""
        return frozenset()

    def common_model(self, server: Server) -> bool:
        return not self.private(server.layers)

    def server_send(self, server: Server, site: SiteId) -> Download:
        """The shared entries; the whole initial model to a site that is new."""
        download = server.download()
        if site not in server.initialised:
            return download
        return replace(download, weights=self._shared(server.layers, download.weights))

    def server_expects(self, server: Server, verbs: tuple[Verb, ...]) -> ExpectedUpload:
        if "fit" not in verbs:
            return ExpectedUpload()
        shared = self._shared(server.layers, server.weights)
        layers = tuple(name for name, entries in server.layers.entries.items() if not shared.keys().isdisjoint(entries))
        return ExpectedUpload(layers, without=self.private(server.layers))

    async def client_fit(self, client: Client, download: Download) -> Upload:
        self.client_model(client, download)
        await self.client_train(client)
        private = self.private(client.layers)
        client.memory[self.remembered] = {n: w for n, w in client.weights().items() if n in private}
        upload = client.upload()
        return replace(upload, weights=self._shared(client.layers, upload.weights))

    async def client_train(self, client: Client) -> None:
        """One round's training of the loaded model."""
        await client.train()

    def client_model(self, client: Client, download: Download) -> None:
        client.load(download.weights, client.memory.get(self.remembered, {}))

    def _shared(self, layers: LayerMap, weights: Mapping[str, Tensor]) -> Weights:
        private = self.private(layers)
        return {name: w for name, w in weights.items() if name not in private}
