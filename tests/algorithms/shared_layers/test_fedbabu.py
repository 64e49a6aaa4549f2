"""FedBABU: only the body learns, under a head that stays as it was; the head is tuned at the end."""

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


@pytest.mark.parametrize(
    ("finetune", "epochs", "moved"),
    [*((part, 0, "nothing") for part in ("head", "full", "body")), ("head", 1, "head"), ("head", 3, "head"),
     ("body", 1, "body"), ("full", 5, "head and body")],
)  # fmt: skip
def test_tuning_moves_its_part_and_leaves_the_bits_of_the_other(finetune: str, epochs: int, moved: str) -> None:
    watched = watch(build(FedBABU(finetune=finetune, finetune_epochs=epochs), **DECAY[0]))  # type: ignore[arg-type]
    initial, common = watched.run.setup.initial, watched.run.server.weights
    for weights in watched.result.weights.values():
        assert same_bits(part_of(weights, HEAD), part_of(initial, HEAD)) == ("head" not in moved)
        assert same_bits(part_of(weights, *BODY), part_of(common, *BODY)) == ("body" not in moved)
    assert distance(part_of(common, *BODY), initial) > 0.01


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
