"""Transport: how requests reach sites. Traffic is counted here and nowhere else."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple, Protocol

from playerfl.algorithms.algorithm import Algorithm
from playerfl.engine import worker
from playerfl.engine.scheduler import gather
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
    """All sites in this process; their jobs go to the trainer together."""

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
        works = [
            handle(self.algorithm, self.clients[client], request, self.seed, self.protocol)
            for client, request in requests.items()
        ]
        return dict(zip(requests, await gather(works), strict=True))
