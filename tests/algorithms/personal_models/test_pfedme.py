"""pFedMe: a personal θ_c and a copy w_c of the common model, pulled together."""

from __future__ import annotations

import pytest
import torch

from algorithms.linear import FULL_BATCH, data, linear_model, linear_task, squared_error
from algorithms.recorder import distance, same_bits, watch
from federations import MODELS, build, federate, largest_difference, task
from playerfl.algorithms import FedAvg, PFedMe
from playerfl.errors import ConfigError
from playerfl.weights import Weights

SGD = {"training.optimizer": "sgd", "training.learning_rate": 0.05}


@pytest.mark.slow
@pytest.mark.parametrize("model", ["mlp", "dropout", "convolutional", "frozen first layer"])
def test_without_a_pull_the_common_model_never_moves(model: str) -> None:
    watched = watch(build(PFedMe(lam=0.0), task(model), **SGD))
    initial = watched.run.server.layers.travelling(watched.run.setup.initial)
    assert same_bits(watched.run.server.weights, initial)
    assert all(same_bits(m.down, initial) for m in watched.messages)


def gradient_descent(weights: Weights, site: str, steps: int, rate: float) -> Weights:
    model = linear_model()
    model.load_state_dict(weights)
    inputs, targets = data()[site]
    for _ in range(steps):
        gradients = torch.autograd.grad(squared_error(model(inputs), targets).mean(), list(model.parameters()))
        with torch.no_grad():
            for parameter, slope in zip(model.parameters(), gradients, strict=True):
                parameter -= rate * slope
    return dict(model.state_dict())


@pytest.mark.parametrize("inner_steps", [1, 5])
@pytest.mark.parametrize("rounds", [1, 3])
def test_without_a_pull_personal_models_descend_from_the_common_one_each_round(inner_steps: int, rounds: int) -> None:
    watched = watch(build(PFedMe(lam=0.0, inner_steps=inner_steps), linear_task(), rounds=rounds, **FULL_BATCH))
    for site in data():
        expected = gradient_descent(watched.run.setup.initial, site, steps=inner_steps, rate=0.1)
        for name, weight in watched.result.weights[site].items():
            torch.testing.assert_close(weight, expected[name], atol=1e-12, rtol=0)


@pytest.mark.parametrize("model", ["convolutional", "frozen first layer"])
def test_when_the_copy_follows_at_once_it_is_fedavg_with_plain_steps(model: str) -> None:
    """η_w·λ = 1, K = 1: every step starts at w_c, so the pull is 0 and w_c becomes θ."""
    like_fedavg = PFedMe(lam=20.0, local_learning_rate=0.05, inner_steps=1)
    found, expected = (watch(build(algorithm, task(model), **SGD)) for algorithm in (like_fedavg, FedAvg()))
    for name, weight in expected.run.server.weights.items():
        torch.testing.assert_close(found.run.server.weights[name], weight, atol=1e-6, rtol=0)
    assert distance(expected.run.server.weights, expected.run.setup.initial) > 0.01


def test_with_beta_zero_the_common_model_is_frozen_while_sites_learn() -> None:
    watched = watch(build(PFedMe(beta=0.0)))
    assert same_bits(watched.run.server.weights, watched.run.setup.initial)
    assert distance(watched.result.weights["site-0"], watched.run.setup.initial) > 0.01


@pytest.mark.slow
@pytest.mark.parametrize("model", MODELS)
def test_the_personal_model_is_reported_and_the_copy_is_uploaded(model: str) -> None:
    watched = watch(build(PFedMe(lam=5.0), task(model)))
    for site, client in watched.run.clients.items():
        uploaded, reported = watched.fits(site)[-1].up, watched.result.weights[site]
        assert same_bits(client.memory["personal"], reported)
        assert distance(uploaded, reported) > 1e-4


@pytest.mark.slow
@pytest.mark.parametrize("model", MODELS)
def test_the_personal_model_and_the_copy_share_no_storage(model: str) -> None:
    watched = watch(build(PFedMe(), task(model)))
    for site, client in watched.run.clients.items():
        uploaded = watched.fits(site)[-1].reply.upload.weights
        parameters = uploaded.keys() - watched.run.server.layers.buffers
        there = {uploaded[name].untyped_storage().data_ptr() for name in parameters}
        here = {client.memory["personal"][name].untyped_storage().data_ptr() for name in parameters}
        assert there
        assert not there & here


def test_the_reported_model_is_fresh_every_round() -> None:
    two, three = (federate(PFedMe(), rounds=rounds) for rounds in (2, 3))
    assert largest_difference(two, three) > 1e-4


def test_both_evaluation_points_report_the_personal_model() -> None:
    assert largest_difference(federate(PFedMe(), eval_point="post_local"), federate(PFedMe())) == 0


def test_its_plain_steps_do_not_depend_on_the_configured_optimiser() -> None:
    sgd = federate(PFedMe(), **{"training.optimizer": "sgd"})
    assert largest_difference(sgd, federate(PFedMe(), **{"training.optimizer": "adamw"})) == 0


@pytest.mark.parametrize(("lam", "local_rate"), [(15.0, 0.1), (0.1, 10.1), (49.0, 1 / 48)])
def test_a_local_rate_that_overshoots_is_refused_with_both_numbers(lam: float, local_rate: float) -> None:
    with pytest.raises(ConfigError) as caught:
        PFedMe(lam=lam, local_learning_rate=local_rate)
    for said in (f"local_learning_rate = {local_rate:g}", f"lam = {lam:g}", f"product is {lam * local_rate:g}", "0.1"):
        assert said in str(caught.value)


@pytest.mark.parametrize(("lam", "local_rate"), [(15.0, 1 / 15), (49.0, 1 / 49), (0.1, 10.0), (0.0, 100.0)])
def test_a_local_rate_that_just_reaches_the_personal_model_is_allowed(lam: float, local_rate: float) -> None:
    assert PFedMe(lam=lam, local_learning_rate=local_rate).training_notes(1e6) == ()


def test_a_training_rate_that_overshoots_is_noted_in_the_result() -> None:
    """Not refused: with the default lam it is what published studies tried."""
    loud, quiet = (
        federate(PFedMe(), rounds=1, **{"training.learning_rate": rate}).data["notes"] for rate in (0.1, 0.05)
    )
    (note,) = set(loud) - set(quiet)
    assert note.startswith("pFedMe: training.learning_rate = 0.1 with lam = 15 overshoots: their product is 1.5")


def test_the_copy_moves_towards_the_personal_model_and_not_all_the_way() -> None:
    watched = watch(build(PFedMe(lam=1.0, local_learning_rate=0.5), linear_task(), rounds=1, **FULL_BATCH))
    for site in data():
        start, copy = watched.fits(site)[0].down, watched.fits(site)[0].up
        personal = watched.result.weights[site]
        for name in start:
            halfway = start[name] - 0.5 * (start[name] - personal[name])
            torch.testing.assert_close(copy[name], halfway, atol=1e-12, rtol=0)
