"""Invalid hyper-parameters are refused by name, before anything runs."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest
from torch import nn

import playerfl
from federations import CLASSES, FEATURES, sites, task
from playerfl.algorithms import ALGORITHMS
from playerfl.algorithms.one_model.fedavg import FedAvg
from playerfl.errors import ConfigError
from playerfl.runs.experiment import Experiment, algorithm_options
from playerfl.tasks.task import own_task

INVALID: dict[str, list[dict[str, Any]]] = {
    "fedprox": [{"mu": -0.1}],
    "ditto": [{"lam": -1.0}, {"personal_epochs": -1}, {"anchor": "never"}],
    "fedbabu": [{"finetune_epochs": -1}, {"finetune": "tail"}],
    "fedlp": [{"keep": -0.1}, {"keep": 1.1}, {"keep": float("nan")}, {"weighting": "none"}],
    "fedlama": [{"tau": 0}, {"phi": 0}, {"warmup_rounds": -1}],
    "pfedla": [{"hyper_learning_rate": -1.0}, {"embedding": 0}, {"hidden": 0}],
    "apfl": [{"alpha": -0.1}, {"alpha": 1.1}, {"alpha_learning_rate": -1.0}],
    "fedala": [{"eta": -1.0}, {"rows": 0.0}, {"rows": 1.1}, {"settled": -0.1}, {"most_epochs": 0}],
    "feddbe": [{"kappa": -1.0}, {"momentum": 1.5}],
    "fedcac": [{"tau": -0.1}, {"tau": 1.1}, {"beta": -1}],
    "fedselect": [{"rate": -0.1}, {"rate": 1.1}, {"limit": 2.0}],
    "player_fl": [{"rule": "fixed"}, {"fixed_cut": 2}, {"first_epoch": "never"}],
    "player_fl_fedprox": [{"mu": -1.0}],
    "player_fl_ditto": [{"lam": -1.0}, {"anchor": "never"}, {"personal_epochs": -1}],
    "player_fl_fedrep": [{"head_epochs": -1}, {"body_epochs": -1}],
}


@pytest.mark.parametrize(("name", "invalid"), [(name, each) for name, cases in INVALID.items() for each in cases])
def test_an_invalid_hyperparameter_is_refused_by_name(name: str, invalid: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=next(iter(invalid))):
        ALGORITHMS[name](**invalid)


@pytest.mark.parametrize(
    "invalid",
    [
        {"server_optimizer": "sgd"},
        {"server_learning_rate": -1.0, "server_optimizer": "adam"},
        {"server_momentum": 1.0, "server_optimizer": "adam"},
        {"server_beta2": -0.1, "server_optimizer": "yogi"},
        {"server_tau": 0.0, "server_optimizer": "yogi"},
    ],
    ids=lambda invalid: next(iter(invalid)),
)
def test_an_invalid_server_optimiser_is_refused_by_name(invalid: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=next(iter(invalid))):
        Experiment.resolve({"task": "synthetic", "algorithm": {"name": "fedavg", **invalid}})


@pytest.mark.parametrize("name", ["local", "pfedla", "fedcac", "fedselect"])
def test_a_server_optimiser_is_refused_where_it_would_change_nothing(name: str) -> None:
    with pytest.raises(ConfigError, match="server_optimizer = 'adam' has no effect on"):
        Experiment.resolve({"task": "synthetic", "algorithm": {"name": name, "server_optimizer": "adam"}})


@pytest.mark.parametrize(("name", "layers"), [("lg_fedavg", "shared_layers"), ("fedala", "mixed_layers")])
@pytest.mark.parametrize("count", [-1, 5])
def test_layers_that_the_model_does_not_have_are_refused(name: str, layers: str, count: int) -> None:
    with pytest.raises(ConfigError, match=f"{layers} must be between 0 and 4"):
        playerfl.run(task(), ALGORITHMS[name](**{layers: count}), settings={"training.batch_size": 8})


def test_feddbe_refuses_a_last_layer_without_bias() -> None:
    own = own_task(headless, sites())
    with pytest.raises(ConfigError, match="FedDBE needs a linear last layer with a bias"):
        playerfl.run(own, "feddbe", settings={"training.batch_size": 8})


def headless() -> nn.Module:
    return nn.Sequential(nn.Linear(FEATURES, 8), nn.ReLU(), nn.Linear(8, CLASSES, bias=False))


def test_a_default_can_be_made_by_a_factory() -> None:
    @dataclass(frozen=True)
    class Scheduled(FedAvg):
        factors: list[float] = field(default_factory=lambda: [1.0, 0.5])

    assert algorithm_options(Scheduled)["factors"][1] == [1.0, 0.5]
