"""run_rounds: the only round loop."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from typing import Protocol

import torch

from playerfl.algorithms.algorithm import Algorithm
from playerfl.engine.transport import Traffic, Transport, traffic_of
from playerfl.engine.worker import EvaluationPlan
from playerfl.federation.messages import Download, Reply, Request, Score, SiteId, Upload, Verb
from playerfl.federation.server import Server
from playerfl.seeding import generator_for


class Observer(Protocol):
    """Is told what happened, at moments at which the run could be taken up again."""

    def exchanged(self, scores: Mapping[SiteId, tuple[Score, ...]], traffic: list[Traffic], *, done: bool) -> None:
        """After each exchange, when all sites and the server are in step."""
        ...


async def run_rounds(
    algorithm: Algorithm,
    server: Server,
    transport: Transport,
    rounds: int,
    observer: Observer,
    evaluation: EvaluationPlan,
    participation: float = 1.0,
) -> None:
    """Prepare once, then fit and merge, each message carrying the evaluation of the merge before; finish once.

    A transport may leave out sites that did not answer: what they missed is theirs to catch up with later.
    Starts wherever `server` stands, so a resumed run goes through the same exchanges as an undisturbed one.
    """
    everyone = server.sites
    evaluate: tuple[Verb, ...] = ("evaluate",) if evaluation.eval_point == "post_agg" else ()
    post = _Post(algorithm, server, transport, observer)

    if not server.prepared:
        algorithm.server_start(server)
        if algorithm.prepares:
            algorithm.server_prepare(server, await post.exchange(dict.fromkeys(everyone, ("prepare",))))
        server.prepared = True
        post.in_step()
    while server.round < rounds:
        fitting = _participants(server, participation)
        before = evaluate if server.round else ()
        verbs: dict[SiteId, tuple[Verb, ...]] = {c: (*before, *(("fit",) if c in fitting else ())) for c in everyone}
        # Named nowhere, so that uploads are gone when they have been merged.
        algorithm.server_merge(server, await post.exchange({c: asked for c, asked in verbs.items() if asked}, fitting))
        server.round += 1
        post.in_step()
    if evaluate and evaluation.selection == "round_best":
        # Which round was best for all is known only when the last one has been scored.
        await post.exchange(dict.fromkeys(everyone, evaluate))
        evaluate = ()
    # A site that was away in every round has nothing to finish.
    last = {site: (*evaluate, *(("finish",) if site in server.initialised else ())) for site in everyone}
    await post.exchange({site: asked for site, asked in last.items() if asked})
    post.in_step(done=True)


class _Post:
    """Sends requests, and holds what came back until server and sites are in step."""

    def __init__(self, algorithm: Algorithm, server: Server, transport: Transport, observer: Observer) -> None:
        self.algorithm = algorithm
        self.server = server
        self.transport = transport
        self.observer = observer
        self.scores: dict[SiteId, list[Score]] = {site: [] for site in server.sites}
        self.traffic: list[Traffic] = []

    async def exchange(
        self, verbs: Mapping[SiteId, tuple[Verb, ...]], fitting: Collection[SiteId] | None = None
    ) -> dict[SiteId, Upload]:
        """One message to each of these sites and its answer, in the order of their names: of all, or who is fitting."""
        requests = {
            site: Request(verbs[site], self._download(site, verbs[site]), self.server.best_round)
            for site in sorted(verbs)
        }
        replies = dict(sorted((await self.transport.call(requests)).items()))
        self.server.initialised.update(site for site in replies if "fit" in verbs[site])
        _note_best_round(self.server, replies)
        for site, reply in replies.items():
            self.scores[site].extend(reply.scores)
            self.traffic.append(traffic_of(site, requests[site], reply))
        return {site: reply.upload for site, reply in replies.items() if fitting is None or site in fitting}

    def _download(self, site: SiteId, verbs: tuple[Verb, ...]) -> Download:
        if verbs == ("finish",) and not self.algorithm.finishes:
            return Download(self.server.round)
        return self.algorithm.server_send(self.server, site)

    def in_step(self, *, done: bool = False) -> None:
        self.observer.exchanged({c: tuple(own) for c, own in self.scores.items()}, self.traffic, done=done)
        self.traffic = []
        for own in self.scores.values():
            own.clear()


def _participants(server: Server, participation: float) -> frozenset[SiteId]:
    """The sites that fit this round: all of them in the first, since everybody needs the initial model."""
    if participation >= 1.0 or server.round == 0:
        return frozenset(server.sites)
    count = max(1, math.ceil(participation * len(server.sites)))
    drawn = torch.randperm(len(server.sites), generator=generator_for(server.seed, "participation", server.round))
    return frozenset(server.sites[i] for i in drawn[:count].tolist())


def _note_best_round(server: Server, replies: Mapping[SiteId, Reply]) -> None:
    """Remembers the round with the lowest validation loss over all sites, weighted by their examples."""
    losses: dict[int, list[tuple[float, int]]] = {}
    for reply in replies.values():
        for score in reply.scores:
            if (score.stage, score.split, score.metric) == ("round", "validation", "loss"):
                losses.setdefault(score.round, []).append((score.value, reply.upload.num_examples))
    for round_, found in losses.items():
        mean = sum(loss * size for loss, size in found) / sum(size for _, size in found)
        if len(found) == len(server.sites) and (
            server.best_round is None or math.isnan(server.best_loss) or mean < server.best_loss
        ):
            server.best_loss, server.best_round = mean, round_
