"""What passes between sites and server: announced, unmodified, and sent without side effects."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from playerfl.engine.handle import handle
from playerfl.engine.scheduler import drive
from playerfl.engine.transport import InProcess
from playerfl.federation.messages import Reply, Request, SiteId
from playerfl.runs.run import Run
from playerfl.selftest.subject import BrokenError, Subject, finished
from playerfl.selftest.watched import Watched
from playerfl.storage import tensor_tree


def writes_nothing_into_tensors(subject: Subject) -> None:
    """What was sent and received is not modified."""
    for model in ("mlp", "batch norm"):
        run = subject.started(model, trainer="loop")
        transport = Watched(run)
        finished(run, lambda _, way=transport: way)  # type: ignore[misc]
        transport.check_server()


def sends_without_side_effects(subject: Subject) -> None:
    """Sending and predicting change nothing."""
    ended = subject.run()
    server, clients = ended.server, ended.clients
    for site in server.sites:
        for sending in (ended.algorithm.server_send, ended.algorithm.server_join):
            before = tensor_tree.encode(server.state())
            download = sending(server, site)
            if tensor_tree.encode(server.state()) != before:
                raise BrokenError(
                    f"{sending.__name__} changed the server when it sent to {site}; it is called more than once per "
                    "round, so change weights and memory only in server_start, server_prepare and server_merge"
                )
        download = ended.algorithm.server_send(server, site)
        # The run may have ended with an optimiser that was already dropped.
        clients[site].optimizers["another model's"] = {"step": {"weight": torch.ones(1)}}
        held = {name: tensor_tree.encode({name: getattr(clients[site], name)}) for name in ("memory", "optimizers")}
        drive(handle(ended.algorithm, clients[site], Request(("evaluate",), download), 0, ended.evaluation))
        for name, before in held.items():
            if tensor_tree.encode({name: getattr(clients[site], name)}) != before:
                raise BrokenError(
                    f"client_model changed client.{name} of {site}; a model may be scored any number of times, so "
                    "change it only in client_prepare, client_fit and client_finish"
                )


def uploads_what_it_announces(subject: Subject) -> None:
    """Uploads are what server_expects announces."""
    for model, statistics in (("mlp", "follow"), ("batch norm", "local"), ("low-rank adapters", "follow")):
        subject.run(model, transport=_Announced, bn_stats=statistics)


class _Announced(InProcess):
    """Compares every upload with what the server expects."""

    def __init__(self, run: Run) -> None:
        super().__init__(run.algorithm, run.clients, run.experiment.seed, run.evaluation)
        self.run = run

    async def call(self, requests: Mapping[SiteId, Request]) -> dict[SiteId, Reply]:
        replies = await super().call(requests)
        server = self.run.server
        for site, reply in replies.items():
            verbs = requests[site].verbs
            expected = self.algorithm.server_expects(server, verbs)
            what = expected.differs(reply.upload, server.layers, self.run.setup.initial)
            if what:
                raise BrokenError(
                    f"the upload of {site} in reply to {'+'.join(verbs)} after round {server.round} {what}; across "
                    "institutions it would be refused, so make server_expects and the upload agree"
                )
            for name, info in (("download", requests[site].download.info), ("upload", reply.upload.info)):
                if wrong := _not_plain(info):
                    raise BrokenError(
                        f"info[{wrong!r}] in the {name} of {site} cannot be sent; info holds numbers, strings and "
                        "lists of them"
                    )
        return replies


def _not_plain(info: Mapping[str, Any]) -> str | None:
    for key, value in info.items():
        if not all(type(one) in (int, float, str) for one in (value if isinstance(value, list) else [value])):
            return key
    return None
