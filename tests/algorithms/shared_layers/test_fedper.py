"""FedPer: the last layers are private. Its limit cases are in selftest."""

from __future__ import annotations

import pytest

from algorithms.recorder import LAYERS, part_of, same_bits, watch
from federations import assert_same, build, federate
from playerfl.algorithms import FedPer
from playerfl.errors import ConfigError


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
