"""Algorithms that are each broken in one way, as a stranger might break them."""

from __future__ import annotations

import random
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from time import monotonic
from typing import ClassVar

import numpy as np
import torch

from playerfl.algorithms import Algorithm
from playerfl.federation.client import Client
from playerfl.federation.messages import Download, Upload
from playerfl.federation.server import Server
from playerfl.learning.job import Pull
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


@dataclass(frozen=True)
class ZeroesWhatItUploaded(Sound):
    """Clears the loaded model once it is uploaded; the upload has the same tensors."""

    async def client_fit(self, client: Client, download: Download) -> Upload:
        upload = await super().client_fit(client, download)
        for weight in client.weights().values():
            weight.zero_()
        return upload


@dataclass(frozen=True)
class SumsIntoAnUpload(Sound):
    """Adds up the uploads in the first one, which its site still has."""

    def server_merge(self, server: Server, uploads: Mapping[str, Upload]) -> None:
        first, *others = uploads.values()
        for name in server.weights:
            total = first.weights[name]
            for other in others:
                total += other.weights[name]
            server.weights[name] = total / len(uploads)


@dataclass(frozen=True)
class DecaysTheCommonModelInPlace(Sound):
    """The server writes into weights that sites have as the model they keep."""

    def server_merge(self, server: Server, uploads: Mapping[str, Upload]) -> None:
        for weight in server.weights.values():
            if weight.is_floating_point():
                weight.mul_(0.9)
        super().server_merge(server, uploads)


@dataclass(frozen=True)
class MergesInTheOrderOfASet(Sound):
    """A set of strings has another order in every process."""

    def server_merge(self, server: Server, uploads: Mapping[str, Upload]) -> None:
        total = dict.fromkeys(server.weights, torch.zeros(()))
        for site in set(uploads):
            total = {name: 0.5 * (w + uploads[site].weights[name]) for name, w in total.items()}
        server.weights |= total


@dataclass(frozen=True)
class FavoursASite(Sound):
    """One site, known by its name, counts twice."""

    def server_merge(self, server: Server, uploads: Mapping[str, Upload]) -> None:
        counted = {
            site: replace(u, num_examples=u.num_examples * (1 + (site == "site-0"))) for site, u in uploads.items()
        }
        super().server_merge(server, counted)


@dataclass(frozen=True)
class FavoursTheFirst(Sound):
    """Whoever is first in the alphabet trains twice."""

    def server_send(self, server: Server, site: str) -> Download:
        return server.download(epochs=2 if site == server.sites[0] else 1)

    async def client_fit(self, client: Client, download: Download) -> Upload:
        self.client_model(client, download)
        await client.train(int(str(download.info["epochs"])))
        return client.upload()


@dataclass(frozen=True)
class NeverTrains(Sound):
    """Forgets to train."""

    async def client_fit(self, client: Client, download: Download) -> Upload:
        self.client_model(client, download)
        return client.upload()


@dataclass(frozen=True)
class NeverMerges(Sound):
    """Sites train and upload, but the server keeps its model."""

    async def client_fit(self, client: Client, download: Download) -> Upload:
        upload = await super().client_fit(client, download)
        client.memory["own"] = client.weights()
        return upload

    def server_merge(self, server: Server, uploads: Mapping[str, Upload]) -> None:
        pass

    def client_model(self, client: Client, download: Download) -> None:
        client.load(download.weights, client.memory.get("own", {}))


@dataclass(frozen=True)
class ForgetsItsOptimisersWhenScored(Sound):
    def client_model(self, client: Client, download: Download) -> None:
        super().client_model(client, download)
        client.optimizers.clear()


ROUNDS_SO_FAR = [0]
FIRST: dict[str, Weights] = {}
AGREED: dict[str, float] = {}


@dataclass(frozen=True)
class CountsInAGlobal(Sound):
    """Weights shrink with the rounds of all runs so far."""

    def server_merge(self, server: Server, uploads: Mapping[str, Upload]) -> None:
        ROUNDS_SO_FAR[0] += 1
        super().server_merge(server, uploads)
        server.weights |= {name: w * (1 - 0.01 * ROUNDS_SO_FAR[0]) for name, w in server.weights.items()}


@dataclass(frozen=True)
class RemembersTheFirstRun(Sound):
    """What the first run of a process merged is used for ever."""

    def server_merge(self, server: Server, uploads: Mapping[str, Upload]) -> None:
        super().server_merge(server, uploads)
        server.weights |= FIRST.setdefault(str(sorted(server.weights)), dict(server.weights))


@dataclass(frozen=True)
class TellsSitesThroughAGlobal(Sound):
    """The server writes what sites read, which works only in one process."""

    def server_start(self, server: Server) -> None:
        AGREED["factor"] = 0.5

    async def client_fit(self, client: Client, download: Download) -> Upload:
        self.client_model(client, download)
        await client.train()
        client.load({name: w * AGREED.get("factor", 1.0) for name, w in client.weights().items()})
        return client.upload()


@dataclass(frozen=True)
class ChangesItself(Sound):
    """Writes to itself behind the back of the frozen dataclass."""

    mu: float = 0.9

    def server_merge(self, server: Server, uploads: Mapping[str, Upload]) -> None:
        super().server_merge(server, uploads)
        object.__setattr__(self, "mu", self.mu * 0.9)
        server.weights |= {name: w * self.mu for name, w in server.weights.items()}


@dataclass(frozen=True)
class DrawsFromNumpy(Sound):
    """Noise from NumPy's global generator, even if seeded."""

    async def client_fit(self, client: Client, download: Download) -> Upload:
        await super().client_fit(client, download)
        np.random.seed(0)  # noqa: NPY002
        client.load({name: w + 0.01 * np.random.rand() for name, w in client.weights().items()})  # noqa: NPY002
        return client.upload()


@dataclass(frozen=True)
class DrawsFromTorch(Sound):
    """Noise from torch's global generator."""

    def server_merge(self, server: Server, uploads: Mapping[str, Upload]) -> None:
        super().server_merge(server, uploads)
        server.weights |= {name: w + 0.01 * torch.rand(()) for name, w in server.weights.items()}


@dataclass(frozen=True)
class ReadsTheClock(Sound):
    """A step that depends on the time of day."""

    async def client_fit(self, client: Client, download: Download) -> Upload:
        await super().client_fit(client, download)
        client.load({name: w * (0.9 + time.time() / 1e11) for name, w in client.weights().items()})
        return client.upload()


@dataclass(frozen=True)
class TimesItself(Sound):
    """Reads the clock and does nothing with it."""

    async def client_fit(self, client: Client, download: Download) -> Upload:
        monotonic()
        return await super().client_fit(client, download)


@dataclass(frozen=True)
class UploadsAnUnknownTensor(Sound):
    """Sends something along under a name that the model does not have."""

    async def client_fit(self, client: Client, download: Download) -> Upload:
        upload = await super().client_fit(client, download)
        return replace(upload, weights={**upload.weights, "momentum": torch.zeros(3)})


@dataclass(frozen=True)
class UploadsDoubles(Sound):
    """In float64, to be on the safe side."""

    async def client_fit(self, client: Client, download: Download) -> Upload:
        upload = await super().client_fit(client, download)
        return replace(upload, weights={name: w.double() for name, w in upload.weights.items()})


@dataclass(frozen=True)
class LoadsOtherShapes(Sound):
    """One number for each tensor, which would be stretched to its shape."""

    async def client_fit(self, client: Client, download: Download) -> Upload:
        await super().client_fit(client, download)
        client.load({name: w.mean().reshape(1) if w.is_floating_point() else w for name, w in client.weights().items()})
        return client.upload()


@dataclass(frozen=True)
class ForgetsToDeclare(Sound):
    """Reads a hyper-parameter that nobody can set."""

    async def client_fit(self, client: Client, download: Download) -> Upload:
        self.client_model(client, download)
        await client.train(getattr(self, "inner_epochs", 1))
        return client.upload()


@dataclass(frozen=True)
class ForgetsTheType(Sound):
    """An attribute without a type is no field of a dataclass."""

    inner_epochs = 2

    async def client_fit(self, client: Client, download: Download) -> Upload:
        self.client_model(client, download)
        await client.train(self.inner_epochs)
        return client.upload()


class ForgetsTheDecorator(Sound):
    """Without @dataclass of its own, the field is not read."""

    inner_epochs: int = 2


@dataclass(frozen=True)
class ReadsWhatIsNotThere(Sound):
    """A misspelt hyper-parameter."""

    strength: float = 0.1

    async def client_fit(self, client: Client, download: Download) -> Upload:
        self.client_model(client, download)
        await client.train(pull=Pull(download.weights, self.strenght))  # type: ignore[attr-defined]
        return client.upload()


@dataclass(frozen=True)
class NeverEnds(Sound):
    """Waits for a loss that does not come."""

    async def client_fit(self, client: Client, download: Download) -> Upload:
        upload = await super().client_fit(client, download)
        while client.train_loss != 0.0:
            pass
        return upload


@dataclass(frozen=True)
class TrainsOnTestData(Sound):
    """Learns from what it is scored on."""

    async def client_fit(self, client: Client, download: Download) -> Upload:
        self.client_model(client, download)
        await client.train(examples=client.data.test)
        return client.upload()


@dataclass(frozen=True)
class ForgetsLateSites(Sound):
    """server_send knows only the sites that took part."""

    def server_start(self, server: Server) -> None:
        server.memory["models"] = {site: dict(server.weights) for site in server.sites}

    def server_join(self, server: Server, site: str) -> Download:
        return Download(server.round, server.memory["models"][site])
