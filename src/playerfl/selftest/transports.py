"""Transports as harsh as real ones: everything is serialised, sites forget what they did not store, some are away."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from playerfl.engine.handle import handle
from playerfl.engine.scheduler import drive
from playerfl.engine.transport import InProcess
from playerfl.federation.client import Client
from playerfl.federation.messages import Download, Reply, Request, Score, SiteId, Upload
from playerfl.runs.run import Run
from playerfl.storage import tensor_tree


def over_the_wire(tree: object) -> dict[str, Any]:
    """What is left of a tree of tensors and values after it was written and read."""
    return tensor_tree.decode(tensor_tree.encode(tree))  # type: ignore[no-any-return]


class WireTransport:
    """Keeps only bytes between calls: sites are rebuilt for each message, and work in reverse order."""

    def __init__(self, run: Run, new_process: Callable[[], AbstractContextManager[None]] = nullcontext) -> None:
        """`new_process`: enters the state in which a new process finds the algorithm's file."""
        self.run = run
        self.new_process = new_process
        self.stored = {name: tensor_tree.encode(client.state()) for name, client in run.clients.items()}
        self.uploads: list[tuple[tuple[str, ...], SiteId, Upload]] = []

    async def call(self, requests: Mapping[SiteId, Request]) -> dict[SiteId, Reply]:
        return {name: self._answer(name, requests[name]) for name in reversed(list(requests))}

    def _answer(self, name: SiteId, request: Request) -> Reply:
        sent = over_the_wire({"weights": request.download.weights, "info": dict(request.download.info)})
        arrived = Request(request.verbs, Download(request.download.round, **sent), request.best_round, request.common)
        run = self.run
        client = Client(name, run.clients[name].data, run.setup.learner, run.clients[name].plan, run.setup.initial)
        client.restore(tensor_tree.decode(self.stored[name]))
        with self.new_process():
            reply = drive(handle(run.algorithm, client, arrived, run.experiment.seed, run.evaluation))
        self.stored[name] = tensor_tree.encode(client.state())
        run.clients[name].restore(tensor_tree.decode(self.stored[name]))
        answer = over_the_wire(
            {
                "upload": {
                    "num_examples": reply.upload.num_examples,
                    "weights": dict(reply.upload.weights),
                    "info": dict(reply.upload.info),
                },
                "scores": [list(score) for score in reply.scores],
            }
        )
        upload = Upload(**answer["upload"])
        self.uploads.append((request.verbs, name, upload))
        return Reply(upload, tuple(Score(*score) for score in answer["scores"]))


class Absent(InProcess):
    """In one process, but one site does not answer the first messages."""

    def __init__(self, run: Run, site: SiteId, messages: int) -> None:
        super().__init__(run.algorithm, run.clients, run.experiment.seed, run.evaluation)
        self.site = site
        self.left = messages

    async def call(self, requests: Mapping[SiteId, Request]) -> dict[SiteId, Reply]:
        away = self.left > 0
        self.left -= 1
        return await super().call({s: request for s, request in requests.items() if not (away and s == self.site)})
