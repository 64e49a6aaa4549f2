"""Runs a federation and keeps every message, so that a test can look at what travelled and when."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from federations import settings_of, setup_of, task
from playerfl.algorithms import Algorithm
from playerfl.engine.loop import run_rounds
from playerfl.engine.scheduler import drive, run_jobs
from playerfl.engine.transport import InProcess
from playerfl.federation.messages import Reply, Request, SiteId
from playerfl.learning.job import Job, TrainJob
from playerfl.runs.experiment import Experiment
from playerfl.runs.result import RunResult
from playerfl.runs.run import Run
from playerfl.tasks.task import Task
from playerfl.weights import Weights

LAYERS = ("0", "2", "4", "6")
"""The layers of the plain `mlp` of `federations`."""


@dataclass(frozen=True)
class Message:
    """One message and its reply; the weights are copies made when it was sent."""

    client: SiteId
    request: Request
    reply: Reply
    down: Weights
    up: Weights


class Watched:
    """A run, its result, and everything that was sent."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self.messages: list[Message] = []
        self.epochs = 0
        """Training epochs of all sites together."""
        self._inside = InProcess(run.algorithm, run.clients, run.experiment.seed, run.evaluation)
        experiment = run.experiment
        rounds = run_rounds(
            run.algorithm, run.server, self, experiment.rounds, run, run.evaluation, experiment.participation
        )
        drive(rounds, self._run_and_count)
        self.result: RunResult = run._result()

    def _run_and_count(self, jobs: Sequence[Job]) -> list[Any]:
        self.epochs += sum(job.epochs for job in jobs if isinstance(job, TrainJob))
        return run_jobs(jobs)

    async def call(self, requests: Mapping[SiteId, Request]) -> dict[SiteId, Reply]:
        sent = {client: copied(request.download.weights) for client, request in requests.items()}
        replies = await self._inside.call(requests)
        for client, reply in replies.items():
            message = Message(client, requests[client], reply, sent[client], copied(reply.upload.weights))
            self.messages.append(message)
        return replies

    def fits(self, client: SiteId) -> list[Message]:
        """A site's messages that asked it to train, one per round."""
        return [m for m in self.messages if m.client == client and "fit" in m.request.verbs]

    def to(self, client: SiteId) -> list[Message]:
        return [m for m in self.messages if m.client == client]


watch = Watched


def build_own(algorithm: Algorithm, a_task: Task | None = None, rounds: int = 3, **settings: Any) -> Run:
    """Like `build`, for an algorithm that is not in the table: a test's own subclass."""
    own = a_task or task()
    experiment = Experiment.resolve(settings_of("fedavg", {"rounds": rounds, **settings}), own)
    return Run(experiment, setup_of(experiment, own), algorithm=algorithm)


def copied(weights: Weights) -> Weights:
    return {name: tensor.clone() for name, tensor in weights.items()}


def entries_of(run: Run, layers: Iterable[str]) -> set[str]:
    return {entry for layer in layers for entry in run.server.layers.entries[layer]}


def same_bits(left: Weights, right: Weights) -> bool:
    return left.keys() == right.keys() and all(torch.equal(left[name], right[name]) for name in left)


def part_of(weights: Weights, *layers: str) -> Weights:
    """The entries of some layers of an `nn.Sequential`."""
    return {name: w for name, w in weights.items() if name.partition(".")[0] in layers}


def assert_same_models(left: RunResult, right: RunResult) -> None:
    """The same model at every site, bit for bit, and the same reported scores, whatever was scored along the way."""
    assert left.sites == right.sites
    for site in left.sites:
        for name, tensor in left.weights[site].items():
            assert torch.equal(tensor, right.weights[site][name]), f"{site} differs in {name}"
    assert left.site_scores == right.site_scores


def distance(left: Weights, right: Weights) -> float:
    """‖left - right‖ over the entries of `left`."""
    return sum(float((w.double() - right[name].double()).square().sum()) for name, w in left.items()) ** 0.5
