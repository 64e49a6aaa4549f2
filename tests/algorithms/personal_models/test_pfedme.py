"""pFedMe: a personal θ_c and a copy w_c of the common model, pulled together."""

from __future__ import annotations

import pytest
import torch

from algorithms.recorder import distance, same_bits, watch
from federations import MODELS, build, federate, largest_difference, task
from playerfl.algorithms import FedAvg, PFedMe
from playerfl.errors import ConfigError

SGD = {"training.optimizer": "sgd", "training.learning_rate": 0.05}


@pytest.mark.slow
@pytest.mark.parametrize("model", ["mlp", "dropout", "convolutional", "frozen first layer"])
def test_without_a_pull_the_common_model_never_moves(model: str) -> None:
    watched = watch(build(PFedMe(lam=0.0), task(model), **SGD))
    initial = watched.run.server.layers.travelling(watched.run.setup.initial)
    assert same_bits(watched.run.server.weights, initial)
    assert all(same_bits(m.down, initial) for m in watched.messages)


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


@pytest.mark.slow
def test_both_evaluation_points_report_the_personal_model() -> None:
    assert largest_difference(federate(PFedMe(), eval_point="post_local"), federate(PFedMe())) == 0


@pytest.mark.slow
def test_its_plain_steps_do_not_depend_on_the_configured_optimiser() -> None:
    sgd = federate(PFedMe(), **{"training.optimizer": "sgd"})
    assert largest_difference(sgd, federate(PFedMe(), **{"training.optimizer": "adamw"})) == 0


@pytest.mark.parametrize(("lam", "local_rate"), [(15.0, 0.1), (0.1, 10.1), (49.0, 1 / 48)])
def test_a_local_rate_that_overshoots_is_refused_with_both_numbers(lam: float, local_rate: float) -> None:
    with pytest.raises(ConfigError) as caught:
        PFedMe(lam=lam, local_learning_rate=local_rate)
    for text in (f"local_learning_rate = {local_rate:g}", f"lam = {lam:g}", f"product is {lam * local_rate:g}", "0.1"):
        assert text in str(caught.value)


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
