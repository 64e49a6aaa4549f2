"""run_rounds: the only round loop."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Protocol

import torch

from playerfl.algorithms.algorithm import Algorithm
from playerfl.engine import worker
from playerfl.engine.transport import Traffic, Transport, traffic_of
from playerfl.federation.messages import ClientId, Download, Reply, Request, Score, Upload, Verb
from playerfl.federation.server import Server
from playerfl.seeding import generator_for


class Observer(Protocol):
    """Is told what happened, at moments at which the run could be taken up again."""

    def exchanged(self, scores: Mapping[ClientId, tuple[Score, ...]], traffic: list[Traffic], *, done: bool) -> None:
        """After each exchange, when all sites and the server are in step."""
        ...


async def run_rounds(
    algorithm: Algorithm,
    server: Server,
    transport: Transport,
    rounds: int,
    observer: Observer,
    protocol: worker.Protocol,
    participation: float = 1.0,
) -> None:
    """Prepare once, then fit and merge, each message carrying the evaluation of the merge before; finish once.

    Starts wherever `server` stands, so a resumed run goes through the same exchanges as an undisturbed one.
    """
    scored_apart: tuple[Verb, ...] = ("evaluate",) if protocol.eval_point == "post_agg" else ()

    async def exchange(verbs: Mapping[ClientId, tuple[Verb, ...]], *, weights: bool = True) -> dict[ClientId, Upload]:
        requests = {
            client: Request(
                verbs[client],
                algorithm.server_send(server, client) if weights else Download(server.round),
                server.best_round,
            )
            for client in sorted(verbs)
        }
        replies = dict(sorted((await transport.call(requests)).items()))
        server.greeted.update(replies)
        _note_best_round(server, replies)
        _merge_into(pending_scores, replies)
        pending_traffic.extend(traffic_of(client, requests[client], reply) for client, reply in replies.items())
        return {client: reply.upload for client, reply in replies.items()}

    pending_scores: dict[ClientId, list[Score]] = {client: [] for client in server.clients}
    pending_traffic: list[Traffic] = []

    def in_step(*, done: bool = False) -> None:
        observer.exchanged({c: tuple(s) for c, s in pending_scores.items()}, list(pending_traffic), done=done)
        pending_traffic.clear()
        for scores in pending_scores.values():
            scores.clear()

    if not server.prepared:
        algorithm.server_start(server)
        if algorithm.prepares:
            algorithm.server_prepare(server, await exchange(dict.fromkeys(server.clients, ("prepare",))))
        server.prepared = True
        in_step()
    while server.round < rounds:
        fitting = _participants(server, participation)
        before: tuple[Verb, ...] = scored_apart if server.round else ()
        verbs = {c: (*before, *(("fit",) if c in fitting else ())) for c in server.clients}
        uploads = await exchange({client: asked for client, asked in verbs.items() if asked})
        algorithm.server_merge(server, {client: uploads[client] for client in fitting})
        server.round += 1
        in_step()
    if scored_apart:
        await exchange(dict.fromkeys(server.clients, scored_apart))
    await exchange(dict.fromkeys(server.clients, ("finish",)), weights=False)
    in_step(done=True)


def _participants(server: Server, participation: float) -> list[ClientId]:
    """The sites that fit this round: all of them in the first, since everybody needs the initial model."""
    if participation >= 1.0 or server.round == 0:
        return list(server.clients)
    count = max(1, math.ceil(participation * len(server.clients)))
    drawn = torch.randperm(len(server.clients), generator=generator_for(server.seed, "participation", server.round))
    return sorted(server.clients[i] for i in drawn[:count].tolist())


def _note_best_round(server: Server, replies: Mapping[ClientId, Reply]) -> None:
    """Remembers the round with the lowest validation loss over all sites, weighted by their examples."""
    losses: dict[int, list[tuple[float, int]]] = {}
    for reply in replies.values():
        for score in reply.scores:
            if (score.stage, score.split, score.metric) == ("round", "validation", "loss"):
                losses.setdefault(score.round, []).append((score.value, reply.upload.num_examples))
    for round_, found in losses.items():
        mean = sum(loss * size for loss, size in found) / sum(size for _, size in found)
        if len(found) == len(server.clients) and mean < server.best_loss:
            server.best_loss, server.best_round = mean, round_


def _merge_into(pending: dict[ClientId, list[Score]], replies: Mapping[ClientId, Reply]) -> None:
    for client, reply in replies.items():
        pending[client].extend(reply.scores)
