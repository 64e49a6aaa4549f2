"""Two sound algorithms unlike those of the package, written from the page for authors alone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from playerfl.algorithms import Algorithm
from playerfl.federation.client import Client
from playerfl.federation.messages import Download, ExpectedUpload, Upload, Verb
from playerfl.federation.server import Server
from playerfl.seeding import generator_for
from playerfl.weights import Weights, prefixed, unprefixed


@dataclass(frozen=True)
class FedNova(Algorithm):
    """Updates are divided by their numbers of steps before they are averaged, so that large sites do not dominate."""

    name = "an attribute that nothing reads is no hyper-parameter"

    def common_model(self, server: Server) -> bool:
        return True

    async def client_fit(self, client: Client, download: Download) -> Upload:
        client.load(download.weights)
        await client.train()
        steps = -(-client.num_examples // client.plan.batch_size) * client.plan.local_epochs
        return client.upload(steps=[steps])

    def server_expects(self, server: Server, verbs: tuple[Verb, ...]) -> ExpectedUpload:
        return ExpectedUpload(server.layers.names, {"steps": 1}) if "fit" in verbs else ExpectedUpload()

    def server_merge(self, server: Server, uploads: Mapping[str, Upload]) -> None:
        total = sum(upload.num_examples for upload in uploads.values())
        shares = {site: upload.num_examples / total for site, upload in uploads.items()}
        steps = {site: upload.numbers("steps")[0] for site, upload in uploads.items()}
        effective = sum(shares[site] * steps[site] for site in uploads)
        for name, weight in server.weights.items():
            if name not in server.layers.buffers:
                moved = torch.zeros_like(weight, dtype=torch.float64)
                for site, upload in uploads.items():
                    moved += shares[site] / steps[site] * (upload.weights[name].double() - weight.double())
                server.weights[name] = weight + effective * moved


@dataclass(frozen=True)
class Clusters(Algorithm):
    """Several models at the server; each site trains, and predicts with, the one that fits its validation data best."""

    clusters: int = 2

    def server_start(self, server: Server) -> None:
        rng = generator_for(server.seed, "clusters")
        fixed = server.layers.buffers
        server.memory["models"] = [
            {n: w if n in fixed else w + 0.05 * torch.randn(w.shape, generator=rng) for n, w in server.weights.items()}
            for _ in range(self.clusters)
        ]

    def server_send(self, server: Server, site: str) -> Download:
        sent: Weights = {}
        for number, model in enumerate(server.memory["models"]):
            sent |= prefixed(f"{number}/", model)
        return Download(server.round, sent)

    async def client_fit(self, client: Client, download: Download) -> Upload:
        losses = []
        for number in range(self.clusters):
            client.load(unprefixed(f"{number}/", download.weights))
            losses.append((await client.evaluate())["validation"]["loss"])
        client.memory["cluster"] = losses.index(min(losses))
        self.client_model(client, download)
        await client.train()
        return client.upload(cluster=[client.memory["cluster"]])

    def server_expects(self, server: Server, verbs: tuple[Verb, ...]) -> ExpectedUpload:
        return ExpectedUpload(server.layers.names, {"cluster": 1}) if "fit" in verbs else ExpectedUpload()

    def server_merge(self, server: Server, uploads: Mapping[str, Upload]) -> None:
        for number in range(self.clusters):
            members = [(u.weights, float(u.num_examples)) for u in uploads.values() if u.numbers("cluster") == [number]]
            if members:
                server.memory["models"][number] = server.merged(members)

    def client_model(self, client: Client, download: Download) -> None:
        client.load(unprefixed(f"{client.memory.get('cluster', 0)}/", download.weights))

    def server_join(self, server: Server, site: str) -> Download:
        return self.server_send(server, site)

    async def client_join(self, client: Client, download: Download, epochs: int) -> None:
        self.client_model(client, download)
        await client.train(epochs)
