"""Local: every site trains alone."""

from __future__ import annotations

from dataclasses import dataclass

from playerfl.algorithms.algorithm import Algorithm
from playerfl.federation.client import Client
from playerfl.federation.messages import Download, ExpectedUpload, SiteId, Upload, Verb
from playerfl.federation.server import Server


@dataclass(frozen=True)
class Local(Algorithm):
    """Each site trains alone, from the common initial model, for as many epochs as in other methods.

    Paper: the baseline of every comparison.
    Differs: nothing is exchanged after the initial model.
    """

    @property
    def averages(self) -> bool:
        return False

    def server_send(self, server: Server, site: SiteId) -> Download:
        return server.download(() if site in server.initialised else None)

    def server_expects(self, server: Server, verbs: tuple[Verb, ...]) -> ExpectedUpload:
        return ExpectedUpload()

    async def client_fit(self, client: Client, download: Download) -> Upload:
        self.client_model(client, download)
        await client.train()
        client.memory["personal"] = client.weights()
        return client.upload(())

    def client_model(self, client: Client, download: Download) -> None:
        client.load(download.weights, client.memory.get("personal", {}))
