"""Transport: how requests reach sites. Traffic is counted here and nowhere else."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple, Protocol

from playerfl.algorithms.algorithm import Algorithm
from playerfl.engine import worker
from playerfl.engine.scheduler import Work, gather
from playerfl.engine.spool import Spool
from playerfl.engine.worker import handle
from playerfl.federation.client import Client
from playerfl.federation.messages import ClientId, Reply, Request


class Traffic(NamedTuple):
    """What one message and its answer weighed, in bytes of tensors and values, without names or framing."""

    round: int
    client: ClientId
    verbs: str
    down: int
    up: int


def traffic_of(client: ClientId, request: Request, reply: Reply) -> Traffic:
    return Traffic(
        request.download.round,
        client,
        "+".join(request.verbs),
        request.download.num_bytes,
        reply.upload.num_bytes,
    )


class Transport(Protocol):
    """One method: send each site its request, bring back the replies, at least one of them."""

    async def call(self, requests: Mapping[ClientId, Request]) -> dict[ClientId, Reply]: ...


class InProcess:
    """All sites in this process: side by side where their jobs can be stacked, else one after the other."""

    def __init__(
        self,
        algorithm: Algorithm,
        clients: Mapping[ClientId, Client],
        seed: int,
        protocol: worker.Protocol,
    ) -> None:
        self.algorithm = algorithm
        self.clients = dict(clients)
        self.seed = seed
        self.protocol = protocol

    async def call(self, requests: Mapping[ClientId, Request]) -> dict[ClientId, Reply]:
        if any(self.clients[client].stacked for client in requests):
            works = [self._handle(client, request) for client, request in requests.items()]
            return dict(zip(requests, await gather(works), strict=True))
        spool = Spool()
        return {client: spool.keep(await self._handle(client, request)) for client, request in requests.items()}

    def _handle(self, client: ClientId, request: Request) -> Work[Reply]:
        return handle(self.algorithm, self.clients[client], request, self.seed, self.protocol)
