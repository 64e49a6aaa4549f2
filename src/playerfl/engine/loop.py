"""run_rounds: the only round loop."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Protocol

import torch

from playerfl.algorithms import Algorithm, name_of
from playerfl.engine.handle import EvaluationPlan
from playerfl.engine.transport import Traffic, Transport, traffic_of
from playerfl.errors import LayerError, PlayerflError, note_place
from playerfl.federation.messages import ConfusionKey, Download, Reply, Request, Score, SiteId, Upload, Verb
from playerfl.federation.server import Server
from playerfl.learning.confusion import Matrix
from playerfl.seeding import generator_for

Verbs = Mapping[SiteId, tuple[Verb, ...]]


@dataclass(frozen=True)
class Measurements:
    """What is recorded of one exchange with the sites, apart from their uploads."""

    scores: dict[SiteId, tuple[Score, ...]]
    traffic: list[Traffic] = field(default_factory=list)
    confusions: dict[ConfusionKey, Matrix] = field(default_factory=dict)
    """Those of the sites in this process; others do not send them."""

    def followed_by(self, later: Measurements) -> Measurements:
        """Both, of the same sites, as if they were of one exchange."""
        scores = {site: of_site + later.scores[site] for site, of_site in self.scores.items()}
        return Measurements(scores, self.traffic + later.traffic, self.confusions | later.confusions)


class Observer(Protocol):
    """Records a run at the points from which it could be resumed."""

    def exchanged(self, measurements: Measurements, *, done: bool) -> None:
        """Called after each exchange, when the server and all sites are in step."""
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
    """Prepare once, then fit and merge round by round, then finish once.

    The evaluation of a merge travels with the next message. A transport may leave out sites that did not answer; they
    catch up later. The loop starts at `server.round`, so a resumed run makes the same exchanges as an undisturbed one.
    """
    sites = server.sites
    evaluate: tuple[Verb, ...] = ("evaluate",) if evaluation.eval_point == "post_agg" else ()

    # Prepare.
    if not server.prepared:
        measurements = Measurements(dict.fromkeys(sites, ()))
        with _failing(algorithm, "preparing for round 1"):
            algorithm.server_start(server)
        if algorithm.prepares:
            preparing: Verbs = dict.fromkeys(sites, ("prepare",))
            uploads, measurements = await _exchange(algorithm, server, transport, preparing, evaluation)
            with _failing(algorithm, "preparing for round 1"):
                algorithm.server_prepare(server, uploads)
            del uploads
        server.prepared = True
        observer.exchanged(measurements, done=False)

    while server.round < rounds and not _stops_early(server, evaluation):
        # Choose participants. A site that sits this round out is still evaluated.
        fitting = _participants(server, participation)
        before: tuple[Verb, ...] = evaluate if server.round > 0 else ()
        verbs: Verbs = {site: (*before, "fit") if site in fitting else before for site in sites}

        # Send and receive.
        uploads, measurements = await _exchange(algorithm, server, transport, verbs, evaluation)

        # Merge. The uploads are freed here, not after the next round's training.
        with _failing(algorithm, f"merging round {server.round + 1}"):
            algorithm.server_merge(server, uploads)
        del uploads
        if wrong := server.conform():
            raise LayerError(
                f"after {name_of(algorithm)} merged round {server.round + 1}, server.weights {wrong}; merge only what "
                "has the model's names and shapes, and keep anything else in server.memory"
            )
        server.round += 1
        if evaluate and algorithm.common_model(server) and not server.layers.local_statistics:
            server.common_rounds.append(server.round)

        # Record.
        observer.exchanged(measurements, done=False)

    # Finish. A site that was absent in every round has nothing to finish.
    finish: Verbs = {site: ("finish",) if site in server.initialised else () for site in sites}
    if evaluate and evaluation.one_round_for_all(common=bool(server.common_rounds)):
        # Which round was best over all sites is known only once the last one has been scored.
        last: Verbs = dict.fromkeys(sites, evaluate)
        _, of_the_last_merge = await _exchange(algorithm, server, transport, last, evaluation)
        _, of_finishing = await _exchange(algorithm, server, transport, finish, evaluation)
        measurements = of_the_last_merge.followed_by(of_finishing)
    else:
        verbs = {site: evaluate + finish[site] for site in sites}
        _, measurements = await _exchange(algorithm, server, transport, verbs, evaluation)
    observer.exchanged(measurements, done=True)


async def _exchange(
    algorithm: Algorithm, server: Server, transport: Transport, verbs: Verbs, evaluation: EvaluationPlan
) -> tuple[dict[SiteId, Upload], Measurements]:
    """Sends one message to each site that has something to do, and collects the replies in the order of their names.

    Returns the uploads of the sites that prepared or fitted, and the measurements, with the scores of all sites.
    """
    common = server.round in server.common_rounds
    requests = {
        site: Request(verbs[site], _download(algorithm, server, site, verbs[site]), server.best_round, common)
        for site in sorted(verbs)
        if verbs[site]
    }
    replies = dict(sorted((await transport.call(requests)).items()))
    server.initialised.update(site for site in replies if "fit" in verbs[site])
    _note_losses(server, replies, evaluation)
    uploads = {site: reply.upload for site, reply in replies.items() if {"prepare", "fit"} & set(verbs[site])}
    scores = {site: replies[site].scores if site in replies else () for site in server.sites}
    traffic = [traffic_of(site, requests[site], reply) for site, reply in replies.items()]
    confusions: dict[ConfusionKey, Matrix] = {
        (stage, round_, site, split): matrix
        for site, reply in replies.items()
        for (stage, round_, split), matrix in reply.confusions.items()
    }
    return uploads, Measurements(scores, traffic, confusions)


def _download(algorithm: Algorithm, server: Server, site: SiteId, verbs: tuple[Verb, ...]) -> Download:
    if verbs == ("finish",) and not algorithm.finishes:
        return Download(server.round)
    with _failing(algorithm, f"preparing a message to site {site!r} after round {server.round}"):
        return algorithm.server_send(server, site)


@contextmanager
def _failing(algorithm: Algorithm, doing: str) -> Iterator[None]:
    """Adds a note to an exception: what the server was doing. An error about bad input needs no note."""
    try:
        yield
    except PlayerflError:
        raise
    except Exception as problem:
        note_place(problem, f"the server failed while {doing} of {name_of(algorithm)}")
        raise


def fitting_sites(sites: int, participation: float) -> int:
    """How many of all sites fit in a round after the first."""
    return max(1, math.ceil(participation * sites))


def _participants(server: Server, participation: float) -> frozenset[SiteId]:
    """The sites that fit in this round. In the first round these are all sites, since each needs the initial model."""
    if participation >= 1.0 or server.round == 0:
        return frozenset(server.sites)
    count = fitting_sites(len(server.sites), participation)
    drawn = torch.randperm(len(server.sites), generator=generator_for(server.seed, "participation", server.round))
    return frozenset(server.sites[i] for i in drawn[:count].tolist())


def _stops_early(server: Server, evaluation: EvaluationPlan) -> bool:
    if server.stopped is not None:
        # Not before the first merge: until then there is no result, and PLayer-FL's sites have no model to score.
        return server.round > 0
    return evaluation.early_stopping is not None and server.rounds_without_progress >= evaluation.early_stopping


def _note_losses(server: Server, replies: Mapping[SiteId, Reply], evaluation: EvaluationPlan) -> None:
    """Remembers the round with the lowest validation loss over all sites, weighted by their examples."""
    losses: dict[int, list[tuple[float, int]]] = {}
    for reply in replies.values():
        for score in reply.scores:
            if (score.stage, score.split, score.metric) == ("round", "validation", "loss"):
                losses.setdefault(score.round, []).append((score.value, reply.upload.num_examples))
    for round_, by_site in losses.items():
        if len(by_site) < len(server.sites):
            continue
        mean = sum(loss * size for loss, size in by_site) / sum(size for _, size in by_site)
        compared = evaluation.selection != "by_owner" or round_ in server.common_rounds
        if compared and (server.best_round is None or math.isnan(server.best_loss) or mean < server.best_loss):
            server.best_loss, server.best_round = mean, round_
        server.rounds_without_progress += 1
        if mean < server.lowest_loss:
            server.lowest_loss, server.rounds_without_progress = mean, 0
