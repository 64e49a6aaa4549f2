"""PLayer-FL's cut combined with FedProx, Ditto and FedRep."""

from __future__ import annotations

from typing import Any

import pytest

from algorithms.linear import FULL_BATCH, data, linear_task
from algorithms.recorder import assert_same_models, distance, part_of, same_bits, watch
from federations import build, federate, largest_difference, task
from playerfl.algorithms import (
    Algorithm,
    FedAvg,
    FedPer,
    Local,
    PLayerFL,
    PLayerFLDitto,
    PLayerFLFedProx,
    PLayerFLFedRep,
)
from playerfl.errors import ConfigError

COMBINED = [PLayerFLFedProx, PLayerFLDitto, PLayerFLFedRep]
combinations = pytest.mark.parametrize("combined", COMBINED)


def at(combined: type[PLayerFL], cut: int, **options: Any) -> PLayerFL:
    return combined(rule="fixed", fixed_cut=cut, **options)


@pytest.mark.slow
@pytest.mark.parametrize(("combined", "options"), [(PLayerFLFedProx, {"mu": 100.0}), (PLayerFLDitto, {"lam": 100.0})])
def test_if_all_shared_layers_are_frozen_it_is_local(combined: type[PLayerFL], options: dict[str, Any]) -> None:
    own = task("frozen first layer")
    assert_same_models(federate(at(combined, 1, **options), own), federate(Local(), own))


# With a cut in the middle


@pytest.mark.slow
@pytest.mark.parametrize("lam", [0.0, 1.0, 50.0])
def test_with_ditto_the_personal_model_never_reaches_the_average(lam: float) -> None:
    found, expected = (watch(build(at(PLayerFLDitto, 2, lam=value))) for value in (lam, 0.1))
    for site in found.result.sites:
        pairs = zip(found.fits(site), expected.fits(site), strict=True)
        assert all(same_bits(a.up, b.up) and same_bits(a.down, b.down) for a, b in pairs)


@pytest.mark.slow
def test_a_strong_fedprox_holds_shared_layers_and_not_private_ones() -> None:
    rate = 1e-4
    options = {**FULL_BATCH, "training.learning_rate": rate, "training.local_epochs": 50}
    held = watch(build(at(PLayerFLFedProx, 1, mu=1 / rate), linear_task(), rounds=1, **options))
    free = watch(build(at(PLayerFLFedProx, 1, mu=0.0), linear_task(), rounds=1, **options))
    initial = held.run.setup.initial
    for site in data():
        assert distance(held.fits(site)[0].up, initial) < 0.05 * distance(free.fits(site)[0].up, initial)
        head, free_head = (part_of(w.result.weights[site], "1") for w in (held, free))
        assert distance(head, initial) > 0.9 * distance(free_head, initial)


def test_a_strong_ditto_brings_the_federated_part_of_personal_models_to_the_common_one() -> None:
    strong = at(PLayerFLDitto, 1, lam=1e6, personal_learning_rate=1e-6, personal_epochs=20)
    watched = watch(build(strong, linear_task(), **FULL_BATCH))
    for site in data():
        received = watched.fits(site)[-1].down
        assert received.keys() == {"0.weight"}
        assert distance(part_of(watched.result.weights[site], "0"), received) < 1e-5
        assert distance(watched.run.setup.initial, received | part_of(watched.run.setup.initial, "1")) > 1e-3


# The measured epoch comes first


@combinations
def test_the_measured_epoch_is_extra_and_leaves_no_trace(combined: type[PLayerFL]) -> None:
    base_epochs = {PLayerFLFedProx: 1, PLayerFLDitto: 2, PLayerFLFedRep: 2}[combined]
    watched = watch(build(at(combined, 2), rounds=3))
    assert watched.epochs == 3 * (1 + 3 * base_epochs)
    resting = watch(build(at(combined, 2), rounds=1, **{"training.learning_rate": 0.0}))
    assert all(same_bits(own, resting.run.setup.initial) for own in resting.result.weights.values())


@pytest.mark.slow
@combinations
def test_its_own_cut_is_that_of_player_fl(combined: type[PLayerFL]) -> None:
    found, expected = (federate(algorithm).cut for algorithm in (combined(), PLayerFL()))
    assert found is not None
    assert expected is not None
    assert (found.index, found.importance) == (expected.index, expected.importance)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("combined", "other"), [(PLayerFLFedProx, FedAvg()), (PLayerFLDitto, Local()), (PLayerFLFedRep, FedPer())]
)
def test_a_cut_in_the_middle_differs_from_the_base_method(combined: type[PLayerFL], other: Algorithm) -> None:
    assert largest_difference(federate(at(combined, 3)), federate(other)) > 1e-5


@combinations
def test_the_measured_epoch_cannot_count_as_the_first_round(combined: type[PLayerFL]) -> None:
    with pytest.raises(ConfigError, match="first_epoch"):
        combined(first_epoch="continue")
