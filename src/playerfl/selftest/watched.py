"""Sites that are watched: what they hand out must not be written to, and what they load must fit the model."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor

from playerfl.engine.handle import handle
from playerfl.engine.transport import InProcess
from playerfl.federation.client import Client
from playerfl.federation.messages import Reply, Request, Scalar, SiteId, Upload
from playerfl.layers.layer_map import LayerName
from playerfl.learning.job import Trained
from playerfl.runs.run import Run
from playerfl.seeding import generator_for
from playerfl.selftest.subject import BrokenError
from playerfl.weights import Weights, raw

_NEW_ONES = "make new ones: w + 1 instead of w.add_(1)"


class Ledger:
    """Tensors that several parties hold, with a copy of each to compare it with later."""

    def __init__(self) -> None:
        self._seen: dict[int, tuple[Tensor, Tensor, str]] = {}

    def add(self, tensors: Mapping[str, Tensor], what: str) -> None:
        for tensor in tensors.values():
            self._seen.setdefault(id(tensor), (tensor, tensor.clone(), what))

    def written(self) -> str | None:
        """What has been written to, in words; None if nothing was."""
        for tensor, copy, what in self._seen.values():
            if tensor.shape != copy.shape or (not torch.equal(tensor, copy) and raw(tensor) != raw(copy)):
                return what
        return None


class WatchedClient(Client):
    """A site that notes in a ledger what it hands out and what it is given."""

    def __init__(self, client: Client, run: Run, ledger: Ledger) -> None:
        super().__init__(client.site, client.data, run.setup.learner, client.plan, run.setup.initial)
        self.ledger = ledger

    def load(self, *parts: Mapping[str, Tensor]) -> None:
        super().load(*parts)
        for part in parts:
            self.ledger.add(part, "the tensors it had loaded")

    def weights(self, layers: Iterable[LayerName] | None = None) -> Weights:
        weights = super().weights(layers)
        self.ledger.add(weights, "what client.weights() returned")
        return weights

    async def train(self, epochs: int | None = None, **options: Any) -> Trained:
        trained = await super().train(epochs, **options)
        self.ledger.add(trained.weights, "the weights it had trained")
        return trained

    def upload(self, layers: Iterable[LayerName] | None = None, **info: Scalar | list[Scalar]) -> Upload:
        upload = super().upload(layers, **info)
        self.ledger.add(upload.weights, "its upload, after client.upload()")
        return upload


class Watched(InProcess):
    """In one process; notices when the algorithm writes into tensors that others hold as well."""

    def __init__(self, run: Run) -> None:
        self.ledger = Ledger()
        self.run = run
        run.clients = {site: WatchedClient(client, run, self.ledger) for site, client in run.clients.items()}
        super().__init__(run.algorithm, run.clients, run.experiment.seed, run.evaluation)

    async def call(self, requests: Mapping[SiteId, Request]) -> dict[SiteId, Reply]:
        self.check_server()
        for request in requests.values():
            self.ledger.add(request.download.weights, "the tensors it was sent")
        self.ledger.add(self.run.setup.initial, "the initial model")
        return await super().call(requests)

    async def _handle(self, site: SiteId, request: Request) -> Reply:
        reply = await handle(self.algorithm, self.clients[site], request, self.seed, self.evaluation)
        if what := self.ledger.written():
            raise BrokenError(
                f"{site} wrote into {what} ({'+'.join(request.verbs)} after round {request.download.round}), which "
                f"messages, memory, the kept model or other sites share; {_NEW_ONES}"
            )
        self.ledger.add(reply.upload.weights, "its upload")
        return reply

    def check_server(self) -> None:
        """Whether the server's side has written into anything since the last message."""
        if what := self.ledger.written():
            raise BrokenError(
                f"the server wrote into {what.replace('it was sent', 'that sites were sent')} in or before round "
                f"{self.run.server.round}, which sites still hold; {_NEW_ONES}"
            )


class RenamedClient(Client):
    """A site under another name that draws the random numbers it would draw under its own."""

    def __init__(self, client: Client, run: Run, name: SiteId) -> None:
        super().__init__(name, client.data, run.setup.learner, client.plan, run.setup.initial)
        self.before = client.site

    def stream(self, purpose: str, round_: int | None = None) -> torch.Generator:
        seed, now = self._stream_parts
        key = (purpose, now if round_ is None else round_)
        if key not in self._streams:
            self._streams[key] = generator_for(seed, key[0], self.before, key[1])
        return self._streams[key]
