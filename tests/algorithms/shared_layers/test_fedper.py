"""FedPer: the last layers are private. Its limit cases are in selftest."""

from __future__ import annotations

import pytest

from algorithms.recorder import LAYERS, entries_of, part_of, same_bits, watch
from federations import assert_same, build, federate
from playerfl.algorithms import FedPer
from playerfl.errors import ConfigError

cuts = pytest.mark.parametrize("personal", [0, 1, 2, 3, 4])


@cuts
def test_exactly_the_first_layers_are_sent(personal: int) -> None:
    watched = watch(build(FedPer(personal_layers=personal)))
    body = entries_of(watched.run, LAYERS[: 4 - personal])
    for site in watched.result.sites:
        first, *later = watched.to(site)
        assert same_bits(first.down, watched.run.setup.initial)
        assert all(m.down.keys() == body for m in later)
        assert all(m.up.keys() == body for m in watched.fits(site))


@pytest.mark.parametrize("personal", [1, 2, 3])
def test_bodies_are_common_and_heads_are_not(personal: int) -> None:
    watched = watch(build(FedPer(personal_layers=personal)))
    body, head = LAYERS[: 4 - personal], LAYERS[4 - personal :]
    models = watched.result.weights
    for site in models:
        assert same_bits(part_of(models[site], *body), part_of(watched.run.server.weights, *body))
    for layer in head:
        assert not same_bits(part_of(models["site-0"], layer), part_of(models["site-1"], layer))


def test_heads_start_from_the_common_initial_model() -> None:
    resting = watch(build(FedPer(), **{"training.learning_rate": 0.0}))
    for site in resting.result.sites:
        assert same_bits(resting.result.weights[site], resting.run.setup.initial)


def test_all_layers_train_the_head_too() -> None:
    watched = watch(build(FedPer(), rounds=1))
    for layer in LAYERS:
        before, after = watched.run.setup.initial, watched.result.weights["site-0"]
        assert not same_bits(part_of(after, layer), part_of(before, layer))


def test_by_default_the_last_layer_is_private() -> None:
    assert_same(federate("fedper"), federate(FedPer(personal_layers=1)))


@pytest.mark.parametrize("personal", [-1, 5])
def test_more_private_layers_than_the_model_has_are_refused(personal: int) -> None:
    with pytest.raises(ConfigError, match="personal_layers"):
        federate(FedPer(personal_layers=personal))
