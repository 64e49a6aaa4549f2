"""Ditto: FedAvg, plus a personal model v_c pulled towards the common one."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch

from algorithms.linear import FULL_BATCH, data, linear_task
from algorithms.recorder import assert_same_models, build_own, distance, same_bits, watch
from federations import build, federate, task
from playerfl.algorithms import Ditto, FedAvg, Local
from playerfl.engine.handle import handle
from playerfl.engine.scheduler import drive
from playerfl.federation.client import Client
from playerfl.federation.messages import Download, Request, Upload
from playerfl.learning.job import Pull


@dataclass(frozen=True)
class FedAvgOnAux(FedAvg):
    """FedAvg whose sites draw batches and dropout from the stream of a second model."""

    async def client_fit(self, client: Client, download: Download) -> Upload:
        client.load(download.weights)
        await client.train(stream="aux")
        return client.upload()


@pytest.mark.parametrize("model", ["dropout", "batch norm"])
@pytest.mark.parametrize(
    "ditto",
    [
        Ditto(lam=0.0),
        Ditto(lam=2.0),
        Ditto(lam=1.0, personal_epochs=3, personal_learning_rate=0.1),
        Ditto(lam=1.0, anchor="post_agg"),
    ],
)
def test_the_common_model_is_that_of_fedavg_whatever_the_personal_ones_do(model: str, ditto: Ditto) -> None:
    """Every upload and every download, so nothing of v_c ever leaves a site."""
    found, expected = watch(build(ditto, task(model))), watch(build_own(FedAvgOnAux(), task(model)))
    for site in found.result.sites:
        pairs = list(zip(found.to(site), expected.to(site), strict=True))
        assert len(pairs) == 4
        assert all(same_bits(a.down, b.down) and same_bits(a.up, b.up) for a, b in pairs)
    assert same_bits(found.run.server.weights, expected.run.server.weights)


def test_the_personal_model_is_reported() -> None:
    watched = watch(build(Ditto()))
    for site, client in watched.run.clients.items():
        assert same_bits(watched.result.weights[site], client.memory["own"])
        assert not same_bits(watched.result.weights[site], watched.run.server.weights)


@pytest.mark.parametrize(("anchor", "message"), [("round_start", -2), ("post_agg", -1)])
def test_a_strong_pull_brings_personal_models_to_the_anchor(anchor: str, message: int) -> None:
    """To the model received when the last round began, or to the one merged after it."""
    ditto = Ditto(lam=1e6, personal_learning_rate=1e-6, anchor=anchor)  # type: ignore[arg-type]
    watched = watch(build(ditto, linear_task(), **FULL_BATCH))
    for site in data():
        received = [m.down for m in watched.to(site)]
        assert distance(watched.result.weights[site], received[message]) < 1e-5
        assert distance(received[-1], received[-2]) > 1e-3


def test_with_no_rate_personal_models_stay_at_the_initial_model() -> None:
    watched = watch(build(Ditto(lam=1.0, personal_learning_rate=0.0)))
    assert same_bits(watched.result.weights["site-0"], watched.run.setup.initial)
    assert distance(watched.run.server.weights, watched.run.setup.initial) > 0.01


@pytest.mark.parametrize("optimizer", [{}, {"training.optimizer": "sgd", "training.momentum": 0.9}])
def test_the_two_models_have_separate_optimisers(optimizer: dict[str, object]) -> None:
    watched = watch(build(Ditto(), **optimizer))
    slot = "momentum" if optimizer else "exp_avg"
    for client in watched.run.clients.values():
        assert set(client.optimizers) == {"main", "aux"}
        main, aux = client.optimizers["main"][slot], client.optimizers["aux"][slot]
        assert main.keys() == aux.keys()
        for name in main:
            assert main[name].untyped_storage().data_ptr() != aux[name].untyped_storage().data_ptr()
            assert not torch.equal(main[name], aux[name])


@pytest.mark.slow
def test_it_trains_twice_as_many_epochs_as_fedavg() -> None:
    assert watch(build(Ditto())).epochs == 2 * watch(build(FedAvg())).epochs
    assert watch(build(Ditto(anchor="post_agg"))).epochs == 2 * watch(build(FedAvg())).epochs
    assert watch(build(Ditto(personal_epochs=3))).epochs == (1 + 3) * watch(build(FedAvg())).epochs


def test_the_first_round_has_no_pull_yet() -> None:
    """v_c and the anchor are both the initial model, so one step is Local's whatever lam is."""
    one_step = {"training.batch_size": 1000, "data.accept_small_sites": True}
    assert_same_models(federate(Ditto(lam=1e6), rounds=1, **one_step), federate(Local(), rounds=1, **one_step))


@pytest.mark.parametrize("state", ["persistent", "reset"])
def test_the_last_personal_epoch_after_the_merge_follows_the_optimiser_policy(state: str) -> None:
    """With anchor="post_agg" it comes after the last round; "reset" means a fresh optimiser there as in every round."""
    options = {**FULL_BATCH, "training.momentum": 0.9, "training.optimizer_state": state}
    run = build(Ditto(lam=0.5, anchor="post_agg"), linear_task(), **options)
    watched = watch(build(Ditto(lam=0.5, anchor="post_agg"), linear_task(), **options))
    for site, client in run.clients.items():
        for fit in watched.fits(site):
            drive(handle(run.algorithm, client, Request(("fit",), fit.request.download), 0, run.evaluation))
        if state == "reset":
            client.optimizers.clear()
        client.load(client.memory["own"])
        drive(client.train(pull=Pull(watched.to(site)[-1].down, 0.5)))
        assert distance(client.weights(), watched.result.weights[site]) < 1e-12
