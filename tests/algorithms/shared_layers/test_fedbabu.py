"""FedBABU: only the body learns, on a head that stays as it was; the head is tuned at the end."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from algorithms.recorder import assert_same_models, build_own, distance, part_of, same_bits, watch
from federations import build, federate, task
from playerfl.algorithms import FedBABU, FedPer
from playerfl.engine.scheduler import drive
from playerfl.federation.client import Client
from playerfl.weights import Weights

BODY, HEAD = ("0", "2", "4"), "6"
HEADS = {"mlp": "6", "batch norm": "6", "dropout": "5", "convolutional": "6", "frozen first layer": "6"}
DECAY = [
    {"training.optimizer": "adamw", "training.weight_decay": 0.5},
    {"training.optimizer": "sgd", "training.momentum": 0.9, "training.weight_decay": 0.5},
]


@dataclass(frozen=True)
class Noted(FedBABU):
    """Keeps a site's head as it is after every round."""

    async def client_train(self, client: Client, received: Weights) -> None:
        await super().client_train(client, received)
        client.memory.setdefault("heads", []).append(client.weights(self.personal(client)))


@pytest.mark.slow
@pytest.mark.parametrize("optimizer", DECAY, ids=["adamw", "sgd"])
@pytest.mark.parametrize("model", HEADS)
def test_the_head_is_the_initial_one_after_every_round(model: str, optimizer: dict[str, object]) -> None:
    watched = watch(build_own(Noted(), task(model), **optimizer))
    initial = part_of(watched.run.setup.initial, HEADS[model])
    assert initial
    for client in watched.run.clients.values():
        assert len(client.memory["heads"]) == 3
        assert all(same_bits(head, initial) for head in client.memory["heads"])


def test_the_initial_head_is_the_same_at_all_sites() -> None:
    watched = watch(build(FedBABU(finetune_epochs=0)))
    heads = [part_of(weights, HEAD) for weights in watched.result.weights.values()]
    assert all(same_bits(head, heads[0]) for head in heads)
    assert all(same_bits(watched.to(s)[0].down, watched.run.setup.initial) for s in watched.result.sites)


@pytest.mark.parametrize("finetune", ["head", "full", "body"])
def test_without_tuning_the_head_stays_as_it_was(finetune: str) -> None:
    watched = watch(build(FedBABU(finetune=finetune, finetune_epochs=0)))  # type: ignore[arg-type]
    for weights in watched.result.weights.values():
        assert same_bits(part_of(weights, HEAD), part_of(watched.run.setup.initial, HEAD))
        assert same_bits(part_of(weights, *BODY), part_of(watched.run.server.weights, *BODY))
    assert distance(part_of(watched.run.server.weights, *BODY), watched.run.setup.initial) > 0.01


@dataclass(frozen=True)
class FedPerWithoutHead(FedPer):
    """FedPer with the head taken out of the optimiser."""

    async def client_train(self, client: Client, received: Weights) -> None:
        await client.train(only=client.layers.names[:-1])


@pytest.mark.slow
@pytest.mark.parametrize("model", HEADS)
def test_before_tuning_it_is_fedper_with_the_head_out_of_the_optimiser(model: str) -> None:
    expected = watch(build_own(FedPerWithoutHead(), task(model))).result
    assert_same_models(federate(FedBABU(finetune_epochs=0), task(model)), expected)


@pytest.mark.parametrize("epochs", [1, 3])
def test_tuning_the_head_leaves_the_bits_of_the_body(epochs: int) -> None:
    watched = watch(build(FedBABU(finetune="head", finetune_epochs=epochs), **DECAY[0]))
    for weights in watched.result.weights.values():
        assert same_bits(part_of(weights, *BODY), part_of(watched.run.server.weights, *BODY))
        assert not same_bits(part_of(weights, HEAD), part_of(watched.run.setup.initial, HEAD))


def test_tuning_the_body_leaves_the_bits_of_the_head() -> None:
    watched = watch(build(FedBABU(finetune="body"), **DECAY[0]))
    for weights in watched.result.weights.values():
        assert same_bits(part_of(weights, HEAD), part_of(watched.run.setup.initial, HEAD))
        assert not same_bits(part_of(weights, *BODY), part_of(watched.run.server.weights, *BODY))


def test_tuning_everything_moves_both() -> None:
    watched = watch(build(FedBABU(finetune="full", finetune_epochs=5)))
    for weights in watched.result.weights.values():
        assert not same_bits(part_of(weights, HEAD), part_of(watched.run.setup.initial, HEAD))
        assert not same_bits(part_of(weights, *BODY), part_of(watched.run.server.weights, *BODY))


@pytest.mark.parametrize("rate", [None, 0.05])
def test_tuning_starts_from_the_last_body_with_a_fresh_optimiser(rate: float | None) -> None:
    tuned = watch(build(FedBABU(finetune="full", finetune_epochs=2, finetune_learning_rate=rate)))
    fresh = build(FedBABU(), **{"training.learning_rate": rate or 0.01})
    for site, newcomer in fresh.clients.items():
        newcomer.begin(0, 3)
        newcomer.load(tuned.run.setup.initial, part_of(tuned.run.server.weights, *BODY))
        drive(newcomer.train(2))
        assert same_bits(newcomer.weights(), tuned.result.weights[site])


@pytest.mark.parametrize("selection", ["client_best", "round_best", "last"])
def test_models_with_the_random_head_do_not_compete(selection: str) -> None:
    """Even where tuning ruins everything, the tuned model of the last body is what is reported."""
    ruined = watch(build(FedBABU(finetune_learning_rate=50.0), selection=selection))
    for weights in ruined.result.weights.values():
        assert same_bits(part_of(weights, *BODY), part_of(ruined.run.server.weights, *BODY))
        assert distance(part_of(weights, HEAD), ruined.run.setup.initial) > 10


@pytest.mark.parametrize("epochs", [0, 1, 5])
def test_all_epochs_are_those_of_the_rounds_and_those_of_tuning(epochs: int) -> None:
    assert watch(build(FedBABU(finetune_epochs=epochs), rounds=3)).epochs == 3 * (3 + epochs)
