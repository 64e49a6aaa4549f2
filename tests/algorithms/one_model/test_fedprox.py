"""FedProx: FedAvg with a pull of μ/2 · ‖θ - w‖² towards the start of the round."""

from __future__ import annotations

import pytest
import torch

from algorithms.linear import FULL_BATCH, data, linear_model, linear_task, squared_error
from algorithms.recorder import distance, watch
from federations import assert_same, build, federate, largest_difference
from playerfl.algorithms import FedAvg, FedProx
from playerfl.weights import Weights

ONE_STEP = {"training.batch_size": 1000, "data.accept_small_sites": True}


@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
def test_the_first_step_of_every_round_feels_no_pull(optimizer: str) -> None:
    """With one step per round it is FedAvg, bit for bit, however strong the pull: the anchor is what was received."""
    options = {**ONE_STEP, "training.optimizer": optimizer}
    assert_same(federate(FedProx(mu=1e6), **options), federate(FedAvg(), **options))


def test_the_anchor_lasts_the_whole_round() -> None:
    """If it were reset every epoch, one full batch per epoch would never be pulled."""
    options = {**ONE_STEP, "training.local_epochs": 2}
    assert largest_difference(federate(FedProx(mu=10.0), **options), federate(FedAvg(), **options)) > 1e-5


def gradient_norm(weights: Weights, site: str) -> float:
    model = linear_model()
    model.load_state_dict(weights)
    inputs, targets = data()[site]
    squared_error(model(inputs), targets).mean().backward()
    return sum(float(p.grad.square().sum()) for p in model.parameters()) ** 0.5  # type: ignore[union-attr]


def test_a_strong_pull_keeps_sites_within_one_gradient_of_what_they_received() -> None:
    mu = 1e6
    options = {**FULL_BATCH, "training.learning_rate": 1 / mu, "training.local_epochs": 5}
    pulled = watch(build(FedProx(mu=mu), linear_task(), **options))
    free = watch(build(FedAvg(), linear_task(), **options))
    for site in data():
        for fit in pulled.fits(site):
            reach = gradient_norm(fit.down, site) / mu
            assert distance(fit.up, fit.down) == pytest.approx(reach, rel=1e-3)
        first = free.fits(site)[0]
        assert distance(first.up, first.down) > 4 * gradient_norm(first.down, site) / mu


@pytest.mark.parametrize("mu", [0.5, 1.0, 2.0])
def test_the_norm_is_squared(mu: float) -> None:
    """If it is, the second step differs from FedAvg's by exactly rate · μ · (first step)."""
    options = {**FULL_BATCH, "training.local_epochs": 2}
    one = watch(build(FedAvg(), linear_task(), rounds=1, **FULL_BATCH))
    two = watch(build(FedAvg(), linear_task(), rounds=1, **options))
    pulled = watch(build(FedProx(mu=mu), linear_task(), rounds=1, **options))
    for site in data():
        start, after_one = one.fits(site)[0].down, one.fits(site)[0].up
        after_two, held_back = two.fits(site)[0].up, pulled.fits(site)[0].up
        for name in start:
            expected = after_two[name] - 0.1 * mu * (after_one[name] - start[name])
            torch.testing.assert_close(held_back[name], expected, atol=1e-12, rtol=0)
