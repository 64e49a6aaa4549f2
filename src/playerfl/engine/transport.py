"""Transport: how requests reach sites. Traffic is counted here and nowhere else."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple, Protocol

from playerfl.algorithms.algorithm import Algorithm
from playerfl.engine.handle import EvaluationPlan, handle
from playerfl.engine.scheduler import Work, gather
from playerfl.engine.spool import Spool
from playerfl.federation.client import Client
from playerfl.federation.messages import Reply, Request, SiteId


class Traffic(NamedTuple):
    """The size of one message and its reply, in bytes of tensors and values, without names or framing."""

    round: int
    site: SiteId
    verbs: str
    down: int
    up: int


def traffic_of(site: SiteId, request: Request, reply: Reply) -> Traffic:
    return Traffic(
        request.download.round,
        site,
        "+".join(request.verbs),
        request.download.num_bytes,
        reply.upload.num_bytes,
    )


class Transport(Protocol):
    """Sends each site its request and brings back the replies, at least one of them."""

    async def call(self, requests: Mapping[SiteId, Request]) -> dict[SiteId, Reply]: ...


class InProcess:
    """All sites in this process: side by side if their jobs can be stacked, else one after the other."""

    def __init__(
        self,
        algorithm: Algorithm,
        clients: Mapping[SiteId, Client],
        seed: int,
        evaluation: EvaluationPlan,
    ) -> None:
        self.algorithm = algorithm
        self.clients = dict(clients)
        self.seed = seed
        self.evaluation = evaluation

    async def call(self, requests: Mapping[SiteId, Request]) -> dict[SiteId, Reply]:
        if any(self.clients[site].stacked for site in requests):
            works = [self._handle(site, request) for site, request in requests.items()]
            return dict(zip(requests, await gather(works), strict=True))
        spool = Spool()
        return {site: spool.keep(await self._handle(site, request)) for site, request in requests.items()}

    def _handle(self, site: SiteId, request: Request) -> Work[Reply]:
        return handle(self.algorithm, self.clients[site], request, self.seed, self.evaluation)
