"""Runs that must give the same result, beyond the limit cases of `playerfl selftest`."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from federations import MODELS, assert_same, federate, largest_difference, plain_run, sites, task
from playerfl.algorithms import FedAvg, FedPer, Local, PLayerFL
from playerfl.layers.probe import MODES


def fixed(cut: int, **options: object) -> PLayerFL:
    return PLayerFL(rule="fixed", fixed_cut=cut, **options)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "measuring",
    [{"sensitivity_mode": mode} for mode in MODES] + [{"first_epoch": "restart"}],
    ids=lambda option: next(iter(option.values())),
)
def test_measuring_never_changes_the_run(measuring: dict[str, Any]) -> None:
    measured = federate(PLayerFL(**measuring), task("dropout"), rounds=2)
    assert measured.cut is not None
    expected = federate(FedPer(personal_layers=3 - measured.cut.index), task("dropout"), rounds=2)
    assert_same(measured, expected)


def test_another_seed_gives_another_run() -> None:
    assert largest_difference(plain_run("fedavg"), federate("fedavg", seed=6)) > 0


def test_local_does_not_depend_on_other_sites() -> None:
    alone = federate(Local(), task(count=1))
    together = federate(Local(), task(count=3))
    assert all(torch.equal(alone.weights["site-0"][name], w) for name, w in together.weights["site-0"].items())


def test_a_full_batch_round_of_fedavg_is_one_centralised_step() -> None:
    own = sites()
    whole = {site: {"train": data, "validation": data, "test": data} for site, data in own.items()}
    options = {"training.optimizer": "sgd", "training.learning_rate": 0.1, "training.batch_size": 1000}
    options |= {"data.accept_small_sites": True}
    federated = federate(FedAvg(), task(sites=whole), rounds=1, **options)

    inputs, targets = (torch.cat(parts) for parts in zip(*own.values(), strict=True))
    pooled = {"all": {"train": (inputs, targets), "validation": (inputs, targets), "test": (inputs, targets)}}
    central = federate(Local(), task(sites=pooled), rounds=1, **options)
    for name, weight in central.weights["all"].items():
        torch.testing.assert_close(federated.weights["site-0"][name], weight, atol=1e-6, rtol=0)


def test_equal_sites_average_to_their_own_model() -> None:
    data = sites(1)["site-0"]
    options = {"training.batch_size": 1000, "data.accept_small_sites": True}
    twins = federate(FedAvg(), task(sites={"a": data, "b": data}), rounds=1, **options)
    alone = federate(Local(), task(sites={"a": data}), rounds=1, **options)
    for name, weight in alone.weights["a"].items():
        torch.testing.assert_close(twins.weights["a"][name], weight, atol=1e-6, rtol=0)


@pytest.mark.slow
@pytest.mark.parametrize(
    "settings",
    [
        {"training.optimizer_state": "reset"},
        {"training.local_epochs": 2},
        {"training.optimizer": "sgd", "training.momentum": 0.9},
    ],
    ids=["fresh optimisers", "local epochs", "momentum"],
)
def test_settings_of_training_change_the_result_but_not_the_identities(settings: dict[str, Any]) -> None:
    fedavg = federate(FedAvg(), **settings)
    assert largest_difference(fedavg, federate(FedAvg())) > 0
    assert_same(federate(fixed(4), **settings), fedavg)
    assert_same(federate(fixed(0), **settings), federate(Local(), **settings))
    assert_same(federate(fixed(2), **settings), federate(FedPer(personal_layers=2), **settings))


def test_local_statistics_differ_between_sites_and_are_never_sent() -> None:
    follow = federate(FedAvg(), task("batch norm"))
    local = federate(FedAvg(), task("batch norm"), bn_stats="local")
    mean = "1.running_mean"
    assert torch.equal(follow.weights["site-0"][mean], follow.weights["site-1"][mean])
    assert not torch.equal(local.weights["site-0"][mean], local.weights["site-1"][mean])
    buffers = sum(b.numel() * b.element_size() for b in MODELS["batch norm"]().buffers())
    messages = 4  # three rounds and the last evaluation
    assert follow.traffic["down"].sum() - local.traffic["down"].sum() == messages * 3 * buffers
    assert_same(federate(fixed(3), task("batch norm"), bn_stats="local"), local)
