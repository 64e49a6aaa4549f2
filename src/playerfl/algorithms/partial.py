"""PartialAlgorithm: the first layers are averaged, the others never leave their site."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass

from playerfl.algorithms.algorithm import Algorithm
from playerfl.federation.client import Client
from playerfl.federation.messages import ClientId, Download, Upload
from playerfl.federation.server import Server
from playerfl.layers.layer_map import LayerName


@dataclass(frozen=True)
class PartialAlgorithm(Algorithm):
    """Federates the first p layers and keeps the others. Subclasses say what p is, and may train differently."""

    @abstractmethod
    def cut(self, side: Client | Server) -> int:
        """The number of federated layers, which both sides know."""

    def federated(self, side: Client | Server) -> tuple[LayerName, ...]:
        return side.layers.names[: self.cut(side)]

    def personal(self, side: Client | Server) -> tuple[LayerName, ...]:
        return side.layers.names[self.cut(side) :]

    def server_send(self, server: Server, client_id: ClientId) -> Download:
        """The federated layers; to a site that is new, the whole initial model."""
        return server.download(self.federated(server) if client_id in server.greeted else None)

    async def client_fit(self, client: Client, download: Download) -> Upload:
        self.client_model(client, download)
        await self.client_train(client)
        return self.client_keep(client)

    async def client_train(self, client: Client) -> None:
        """One round's training of the model on the bench."""
        await client.train()

    def client_keep(self, client: Client) -> Upload:
        """Remembers the bench's personal layers and uploads the others."""
        client.memory["personal"] = client.weights(self.personal(client))
        return client.upload(self.federated(client))

    def client_model(self, client: Client, download: Download) -> None:
        client.load(client.memory.get("personal", {}), download.weights)
