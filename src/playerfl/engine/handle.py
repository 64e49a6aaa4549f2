"""handle: the only way work reaches a site, in one process or across institutions."""

from __future__ import annotations

import math
from collections.abc import Coroutine
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeVar

from playerfl.algorithms.algorithm import Algorithm
from playerfl.federation.client import Client, Snapshot
from playerfl.federation.messages import Reply, Request, Score, Stage, Upload
from playerfl.weights import Weights

EvalPoint = Literal["post_agg", "post_local"]
Selection = Literal["client_best", "round_best", "last"]
Result = TypeVar("Result")


@dataclass(frozen=True)
class EvaluationPlan:
    """When models are scored and which one a site keeps: the same for every site of a comparison."""

    eval_point: EvalPoint = "post_agg"
    """After the site has what the server sent back, or after local training."""
    selection: Selection = "client_best"
    """The round with the site's lowest validation loss, the one best for all, or the last."""


async def handle(
    algorithm: Algorithm, client: Client, request: Request, seed: int, evaluation: EvaluationPlan
) -> Reply:
    """Does what a request asks of a site. Its result depends on the site's memory and the request alone."""
    download = request.download
    client.begin(seed, download.round)
    if client.candidate and client.candidate.round == request.best_round:
        client.kept, client.candidate = client.candidate, None
    upload = Upload(client.num_examples)
    scores: list[Score] = []
    for verb in request.verbs:
        if verb == "evaluate":
            algorithm.client_model(client, download)
            scores += await _score(client, "round", download.round, evaluation)
        elif verb == "prepare":
            upload = await algorithm.client_prepare(client, download)
        elif verb == "fit":
            upload = await _afresh(client, algorithm.client_fit(client, download))
            if client.train_loss is not None:
                scores.append(Score("round", download.round + 1, "train", "loss", client.train_loss))
            if evaluation.eval_point == "post_local":
                scores += await _score(client, "round", download.round + 1, evaluation)
        elif algorithm.finishes:
            if evaluation.eval_point == "post_local":
                # What was kept is a site's own model, not a common one to go on from.
                client.kept = None
            await _afresh(client, algorithm.client_finish(client, download))
            client.kept = None
            scores += await _score(client, "finish", download.round, evaluation)
    client.end()
    return Reply(upload, tuple(scores))


async def _afresh(client: Client, training: Coroutine[Any, Any, Result]) -> Result:
    """Where optimisers start afresh each time, what they know is dropped before and after: nobody needs it between."""
    reset = client.plan.optimizer_state == "reset"
    if reset:
        client.optimizers.clear()
    result = await training
    if reset:
        client.optimizers.clear()
    return result


async def _score(client: Client, stage: Stage, round_: int, evaluation: EvaluationPlan) -> list[Score]:
    """Scores the bench, and keeps the model on it if it is the best so far."""
    found = await client.evaluate()
    loss = found["validation"]["loss"]
    snapshot = Snapshot(round_, loss, client.weights())
    first = client.kept is None
    if evaluation.selection == "round_best" and stage == "round":
        client.candidate = snapshot
    elif first or evaluation.selection == "last" or _better(loss, client.kept):
        client.kept = replace(snapshot, weights=_own(snapshot.weights))
    return [
        Score(stage, round_, split, metric, value)
        for split, metrics in found.items()
        for metric, value in metrics.items()
    ]


def _own(weights: Weights) -> Weights:
    """What is kept for long shall not hold on to the matrix of many models that it may be a row of."""
    return {name: entry if entry._base is None else entry.clone() for name, entry in weights.items()}


def _better(loss: float, kept: Snapshot | None) -> bool:
    # A diverged round (nan) never wins, and never stands in the way.
    return kept is None or math.isnan(kept.loss) or loss < kept.loss
