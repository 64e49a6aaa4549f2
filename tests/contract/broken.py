"""Algorithms that are each broken in one way, as a stranger might break them."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch

from playerfl.algorithms import Algorithm
from playerfl.federation.client import Client
from playerfl.federation.messages import Download, Upload
from playerfl.federation.server import Server
from playerfl.weights import Weights


@dataclass(frozen=True)
class Sound(Algorithm):
    """FedAvg, from which the others depart."""

    async def client_fit(self, client: Client, download: Download) -> Upload:
        self.client_model(client, download)
        await client.train()
        return client.upload()


@dataclass(frozen=True)
class RemembersInTheClass(Sound):
    """Each site's model lives in a dict of the class."""

    models: ClassVar[dict[str, Weights]] = {}

    async def client_fit(self, client: Client, download: Download) -> Upload:
        upload = await super().client_fit(client, download)
        self.models[client.site] = client.weights()
        return upload

    def client_model(self, client: Client, download: Download) -> None:
        client.load(download.weights, self.models.get(client.site, {}) if download.round else {})


@dataclass(frozen=True)
class DrawsFromTheGlobalGenerator(Sound):
    """Noise from Python's own generator."""

    async def client_fit(self, client: Client, download: Download) -> Upload:
        await super().client_fit(client, download)
        client.load({name: w + 0.01 * random.random() for name, w in client.weights().items()})
        return client.upload()


@dataclass(frozen=True)
class WritesIntoTheDownload(Sound):
    """Decays the weights in place."""

    async def client_fit(self, client: Client, download: Download) -> Upload:
        for weight in download.weights.values():
            if weight.is_floating_point():
                weight.mul_(0.99)
        return await super().client_fit(client, download)


@dataclass(frozen=True)
class UploadsMoreThanItAnnounces(Sound):
    """Sends its loss, which server_expects does not mention."""

    async def client_fit(self, client: Client, download: Download) -> Upload:
        await super().client_fit(client, download)
        return client.upload(loss=client.train_loss or 0.0)


@dataclass(frozen=True)
class TakesTheFirstUpload(Sound):
    """Keeps the model of whichever site comes first."""

    def server_merge(self, server: Server, uploads: Mapping[str, Upload]) -> None:
        first = next(iter(uploads.values()))
        server.weights |= {name: first.weights[name] for name in server.weights}


@dataclass(frozen=True)
class CountsWhatItSends(Sound):
    """server_send writes to memory."""

    def server_send(self, server: Server, site: str) -> Download:
        server.memory["sent"] = server.memory.get("sent", 0) + 1
        return super().server_send(server, site)


@dataclass(frozen=True)
class RemembersByNumber(Sound):
    """Integers as keys become strings in a checkpoint."""

    async def client_fit(self, client: Client, download: Download) -> Upload:
        client.memory.setdefault("by_round", {})[download.round] = 1.0
        return await super().client_fit(client, download)


@dataclass(frozen=True)
class ClaimsACommonModel(Sound):
    """Sites predict with their own models, but common_model says otherwise."""

    def common_model(self, server: Server) -> bool:
        return True

    async def client_fit(self, client: Client, download: Download) -> Upload:
        upload = await super().client_fit(client, download)
        client.memory["own"] = client.weights()
        return upload

    def client_model(self, client: Client, download: Download) -> None:
        client.load(download.weights, client.memory.get("own", {}))


@dataclass(frozen=True)
class NeedsEverySite(Sound):
    """Fails when a site is away."""

    def server_merge(self, server: Server, uploads: Mapping[str, Upload]) -> None:
        stacked = [uploads[site].weights for site in server.sites]
        server.weights |= {
            n: torch.stack([weights[n] for weights in stacked]).double().mean(0).to(w.dtype)
            for n, w in server.weights.items()
        }


@dataclass(frozen=True)
class Crashes(Sound):
    """Fails in the second round."""

    async def client_fit(self, client: Client, download: Download) -> Upload:
        if download.round:
            raise RuntimeError("no second round")
        return await super().client_fit(client, download)
