"""FedRep: the head with the body fixed, then the body with the head fixed (see test_by_hand for their order)."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from algorithms.recorder import build_own, part_of, same_bits, watch
from federations import build, federate, task
from playerfl.algorithms import FedRep
from playerfl.federation.client import Client
from playerfl.weights import Weights

BODIES = {
    "mlp": ("0", "2", "4"),
    "batch norm": ("0", "1", "3", "4"),
    "dropout": ("0", "3"),
    "convolutional": ("1", "3"),
}
HEADS = {"mlp": "6", "batch norm": "6", "dropout": "5", "convolutional": "6"}
optimisers = pytest.mark.parametrize(
    "optimizer",
    [
        {"training.optimizer": "adamw", "training.weight_decay": 0.5},
        {"training.optimizer": "sgd", "training.momentum": 0.9, "training.weight_decay": 0.5},
    ],
    ids=["adamw", "sgd"],
)


@optimisers
@pytest.mark.parametrize("model", BODIES)
def test_the_head_phase_leaves_the_bits_of_the_body(model: str, optimizer: dict[str, object]) -> None:
    """Including its batch norms' statistics; decay and momentum would move a part that merely gets no gradient."""
    watched = watch(build(FedRep(head_epochs=2, body_epochs=0), task(model), **optimizer))
    initial = watched.run.setup.initial
    for site, own in watched.result.weights.items():
        assert same_bits(part_of(own, *BODIES[model]), part_of(initial, *BODIES[model])), site
        assert not same_bits(part_of(own, HEADS[model]), part_of(initial, HEADS[model]))


@optimisers
@pytest.mark.parametrize("model", BODIES)
def test_the_body_phase_leaves_the_bits_of_the_head(model: str, optimizer: dict[str, object]) -> None:
    watched = watch(build(FedRep(head_epochs=0, body_epochs=2), task(model), **optimizer))
    initial = watched.run.setup.initial
    for site, own in watched.result.weights.items():
        assert same_bits(part_of(own, HEADS[model]), part_of(initial, HEADS[model])), site
        assert not same_bits(part_of(own, BODIES[model][0]), part_of(initial, BODIES[model][0]))


@dataclass(frozen=True)
class WithNotes(FedRep):
    """Records both parts between the phases."""

    async def client_train(self, client: Client, received: Weights) -> None:
        await client.train(self.head_epochs, only=self.personal(client))
        client.memory["head after its phase"] = client.weights(self.personal(client))
        client.memory["body before its phase"] = client.weights(self.federated(client))
        await client.train(self.body_epochs, only=self.federated(client))


@optimisers
def test_within_a_round_each_phase_moves_its_own_part_only(optimizer: dict[str, object]) -> None:
    """After earlier rounds, when both parts have momentum that could be applied by mistake."""
    watched = watch(build_own(WithNotes(), **optimizer))
    for site, client in watched.run.clients.items():
        last = watched.fits(site)[-1]
        assert same_bits(client.memory["head after its phase"], part_of(watched.result.weights[site], "6"))
        assert same_bits(client.memory["body before its phase"], last.down)
        assert not same_bits(last.up, last.down)


@pytest.mark.parametrize(("head", "body"), [(1, 1), (3, 1), (0, 2)])
def test_epochs_are_those_of_both_phases(head: int, body: int) -> None:
    assert watch(build(FedRep(head_epochs=head, body_epochs=body))).epochs == 3 * 3 * (head + body)


@pytest.mark.parametrize("fedrep", [FedRep(body_epochs=0), FedRep(head_epochs=0), FedRep(personal_layers=4)])
def test_the_training_loss_is_a_number_where_one_phase_is_empty(fedrep: FedRep) -> None:
    scores = federate(fedrep).scores
    assert scores[scores["split"] == "train"]["value"].notna().all()
