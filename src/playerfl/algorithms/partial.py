"""PartialAlgorithm: the first layers are shared (averaged), the others are private: they never leave their site."""

from __future__ import annotations

from dataclasses import dataclass

from playerfl.algorithms.algorithm import Algorithm
from playerfl.errors import ConfigError
from playerfl.federation.client import Client
from playerfl.federation.messages import Download, ExpectedUpload, SiteId, Upload, Verb
from playerfl.federation.server import Server
from playerfl.layers.layer_map import LayerMap, LayerName
from playerfl.weights import Weights


@dataclass(frozen=True)
class PartialAlgorithm(Algorithm):
    """Shares the first p layers, keeps the others private. Subclasses define p in `cut`, and may train differently."""

    def cut(self, side: Client | Server) -> int:
        """p, which both the client and the server know. Default: all layers."""
        return len(side.layers.names)

    def federated(self, side: Client | Server) -> tuple[LayerName, ...]:
        """The shared layers."""
        return side.layers.names[: self.cut(side)]

    def personal(self, side: Client | Server) -> tuple[LayerName, ...]:
        """The private layers."""
        return side.layers.names[self.cut(side) :]

    def common_model(self, server: Server) -> bool:
        return not self.personal(server)

    def server_send(self, server: Server, site: SiteId) -> Download:
        """The shared layers; the whole initial model to a site that is new."""
        return server.download(self.federated(server) if site in server.initialised else None)

    def server_expects(self, server: Server, verbs: tuple[Verb, ...]) -> ExpectedUpload:
        return ExpectedUpload(self.federated(server) if "fit" in verbs else ())

    async def client_fit(self, client: Client, download: Download) -> Upload:
        self.client_assemble(client, download)
        await self.client_train(client, self.received(client, download))
        return self.client_keep(client)

    def client_assemble(self, client: Client, download: Download) -> None:
        """Loads the model to train: this site's private layers, then what the server sent, which takes precedence."""
        client.load(client.memory.get("personal", {}), download.weights)

    def received(self, client: Client, download: Download) -> Weights:
        """The shared layers a site was sent."""
        return client.layers.select(download.weights, self.federated(client))

    async def client_train(self, client: Client, received: Weights) -> None:
        """One round's training of the loaded model."""
        await client.train()

    def client_keep(self, client: Client) -> Upload:
        """Remembers the loaded model's private layers and uploads the others."""
        client.memory["personal"] = client.weights(self.personal(client))
        return client.upload(self.federated(client))

    async def client_join(self, client: Client, download: Download, epochs: int) -> None:
        """Tunes the private layers under the shared ones; all layers if none are private."""
        client.load(download.weights)
        await client.train(epochs, only=self.personal(client) or None)

    def client_model(self, client: Client, download: Download) -> None:
        self.client_assemble(client, download)


def simpler(shared: int, layers: LayerMap) -> str | None:
    """The simpler method that only dividing the layers amounts to, if all or none of them are shared."""
    return "FedAvg" if shared == len(layers.names) else "Local" if shared == 0 else None


def all_but_last(layers: LayerMap, personal_layers: int) -> int:
    """The cut that keeps the last `personal_layers` layers private."""
    count = len(layers.names)
    if not 0 <= personal_layers <= count:
        raise ConfigError(f"personal_layers must be between 0 and {count}, the number of layers, not {personal_layers}")
    return count - personal_layers
