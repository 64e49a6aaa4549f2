"""handle: the only way work reaches a site, in one process or across institutions."""

from __future__ import annotations

import math
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal, TypeVar

from playerfl.algorithms import Algorithm, name_of
from playerfl.errors import note_place
from playerfl.federation.client import Client, Snapshot
from playerfl.federation.messages import Reply, Request, Score, ScoreStage, Upload
from playerfl.learning.confusion import Matrix
from playerfl.weights import Weights

EvalPoint = Literal["post_agg", "post_local"]
Selection = Literal["by_owner", "client_best", "round_best", "last"]
Result = TypeVar("Result")
SPLITS = ("validation", "test")
"""The parts of a site's data that models are scored on."""


@dataclass(frozen=True)
class EvaluationPlan:
    """When models are scored and which one a site keeps: the same for every site of a comparison."""

    eval_point: EvalPoint = "post_agg"
    """When models are scored: after the merge, with what the server sends back, or after local training."""
    selection: Selection = "by_owner"
    """Which round a site keeps: that with its lowest validation loss, the best over all sites, or the last. By owner:
    the best over all sites among the rounds after which they shared one model; if there are none, each site's own."""
    early_stopping: int | None = None
    """The run stops after this many rounds without a lower validation loss over all sites; None: never."""

    def one_round_for_all(self, *, common: bool) -> bool:
        """Whether all sites keep the model of one round; `common`: whether they ever shared one model."""
        return self.selection == "round_best" or (self.selection == "by_owner" and common)


async def handle(
    algorithm: Algorithm, client: Client, request: Request, seed: int, evaluation: EvaluationPlan
) -> Reply:
    """Does what a request asks of a site. The result depends only on the site's memory and the request.

    An exception that is raised gets a note with the site, the round and the algorithm.
    """
    download = request.download
    client.begin(seed, download.round)
    if client.candidate and client.candidate.round == request.best_round:
        client.kept, client.candidate = client.candidate, None
    upload = Upload(client.num_examples)
    scores: list[Score] = []
    confusions: dict[tuple[ScoreStage, int, str], Matrix] = {}

    async def score(stage: ScoreStage, round_: int) -> None:
        scores.extend(await _score(client, stage, round_, evaluation, request))
        confusions.update({(stage, round_, split): matrix for split, matrix in client.confusions.items()})

    failing = partial(failing_at, algorithm, client)
    for verb in request.verbs:
        if verb == "evaluate":
            with failing(f"evaluating the model of round {download.round}"):
                algorithm.client_model(client, download)
                await score("round", download.round)
        elif verb == "prepare":
            with failing("preparing for round 1"):
                upload = await algorithm.client_prepare(client, download)
        elif verb == "fit":
            round_ = download.round + 1
            with failing(f"training in round {round_}"):
                upload = await _with_fresh_optimizers(client, algorithm.client_fit(client, download))
            if client.train_loss is not None:
                scores.append(Score("round", round_, "train", "loss", client.train_loss))
            if evaluation.eval_point == "post_local":
                with failing(f"evaluating the model of round {round_}"):
                    await score("round", round_)
        elif algorithm.finishes:
            if evaluation.eval_point == "post_local":
                # What was kept is a site's own model, not a common one to continue from.
                client.kept = None
            with failing(f"finishing after round {download.round}"):
                await _with_fresh_optimizers(client, algorithm.client_finish(client, download))
                client.kept = None
                await score("finish", download.round)
    client.end()
    return Reply(upload, tuple(scores), confusions)


def scored(request: Request, evaluation: EvaluationPlan, *, finishes: bool) -> frozenset[tuple[ScoreStage, int, str]]:
    """Stage, round and split of all scores that `handle` returns for a request; `finishes` is the algorithm's.

    >>> from playerfl.federation.messages import Download
    >>> sorted(scored(Request(("evaluate", "fit"), Download(1)), EvaluationPlan(), finishes=False))
    [('round', 1, 'test'), ('round', 1, 'validation'), ('round', 2, 'train')]
    """
    round_, verbs = request.download.round, request.verbs
    models: list[tuple[ScoreStage, int]] = []
    if "evaluate" in verbs:
        models.append(("round", round_))
    if "fit" in verbs and evaluation.eval_point == "post_local":
        models.append(("round", round_ + 1))
    if "finish" in verbs and finishes:
        models.append(("finish", round_))
    places: set[tuple[ScoreStage, int, str]] = {(*model, split) for model in models for split in SPLITS}
    return frozenset(places | ({("round", round_ + 1, "train")} if "fit" in verbs else set()))


@contextmanager
def failing_at(algorithm: Algorithm, client: Client, doing: str) -> Iterator[None]:
    """Adds a note to an exception: what the site was doing."""
    try:
        yield
    except Exception as problem:
        note_place(problem, f"site {client.site!r} failed while {doing} of {name_of(algorithm)}")
        raise


async def _with_fresh_optimizers(client: Client, training: Coroutine[Any, Any, Result]) -> Result:
    """If every round starts with a fresh optimiser, drops its state before and after, so that it need not be stored."""
    reset = client.plan.optimizer_state == "reset"
    if reset:
        client.optimizers.clear()
    result = await training
    if reset:
        client.optimizers.clear()
    return result


async def _score(
    client: Client, stage: ScoreStage, round_: int, evaluation: EvaluationPlan, request: Request
) -> list[Score]:
    """Scores the loaded model, and keeps it if it is the best so far."""
    by_split = await client.evaluate()
    loss = by_split["validation"]["loss"]
    snapshot = Snapshot(round_, loss, client.weights())
    shared_before = request.best_round is not None or client.candidate is not None
    may_choose = evaluation.selection == "client_best" or (evaluation.selection == "by_owner" and not shared_before)
    if stage == "round" and evaluation.one_round_for_all(common=request.common):
        client.candidate = snapshot
    elif client.kept is None or evaluation.selection == "last" or (may_choose and _better(loss, client.kept)):
        client.kept = replace(snapshot, weights=_owned(snapshot.weights))
    return [
        Score(stage, round_, split, metric, value)
        for split, metrics in by_split.items()
        for metric, value in metrics.items()
    ]


def _owned(weights: Weights) -> Weights:
    """Copies of entries that are rows of a block of many models: a kept model must not keep the whole block alive."""
    return {name: entry if entry._base is None else entry.clone() for name, entry in weights.items()}


def _better(loss: float, kept: Snapshot) -> bool:
    # A diverged round (nan) never wins, and never blocks a later one.
    return math.isnan(kept.loss) or loss < kept.loss
