"""LocalAdaptation: FedAvg, then some epochs at each site alone."""

from __future__ import annotations

import pytest

from algorithms.recorder import assert_same_models, distance, same_bits, watch
from federations import MODELS, build, federate, task
from playerfl.algorithms import FedAvg, LocalAdaptation
from playerfl.engine.handle import handle
from playerfl.engine.scheduler import drive
from playerfl.federation.client import Client
from playerfl.federation.messages import Request
from playerfl.storage import tensor_tree

TOO_FAST = {"training.learning_rate": 0.3, "rounds": 4}
"""So fast that the last round is not the best one."""


@pytest.mark.parametrize("selection", ["client_best", "round_best"])
def test_adaptation_starts_from_the_selected_common_model(selection: str) -> None:
    adapted, selected = (
        federate(algorithm, selection=selection, **TOO_FAST)
        for algorithm in (LocalAdaptation(adapt_epochs=0), FedAvg())
    )
    assert min(selected.chosen_rounds.values()) < 4
    assert_same_models(adapted, selected)


@pytest.mark.parametrize("model", ["mlp", "dropout", "convolutional", "frozen first layer"])
def test_adapting_without_a_rate_leaves_the_common_model(model: str) -> None:
    watched = watch(build(LocalAdaptation(adapt_epochs=3, adapt_learning_rate=0.0), task(model)))
    common = watched.run.server.weights
    for site in watched.result.sites:
        assert all(same_bits({n: watched.result.weights[site][n]}, {n: w}) for n, w in common.items())


@pytest.mark.slow
@pytest.mark.parametrize("model", MODELS)
def test_adaptation_does_not_alter_the_common_model(model: str) -> None:
    adapted, plain = (watch(build(a, task(model))) for a in (LocalAdaptation(adapt_epochs=2), FedAvg()))
    assert same_bits(adapted.run.server.weights, plain.run.server.weights)


def test_adaptation_of_one_site_does_not_alter_another() -> None:
    watched = watch(build(LocalAdaptation()))
    run = watched.run
    before = {site: tensor_tree.encode(client.state()) for site, client in run.clients.items()}
    download = run.algorithm.server_send(run.server, "site-0")
    drive(handle(run.algorithm, run.clients["site-0"], Request(("evaluate", "finish"), download), 1, run.evaluation))
    after = {site: tensor_tree.encode(client.state()) for site, client in run.clients.items()}
    assert {site for site in before if after[site] != before[site]} == {"site-0"}


@pytest.mark.slow
@pytest.mark.parametrize("epochs", [1, 3])
@pytest.mark.parametrize("rate", [None, 0.05])
def test_every_site_trains_the_common_model_alone_with_a_fresh_optimiser(epochs: int, rate: float | None) -> None:
    settings = {"training.learning_rate": 0.01}
    watched = watch(build(LocalAdaptation(adapt_epochs=epochs, adapt_learning_rate=rate), **settings))
    fresh = build(FedAvg(), **{"training.learning_rate": rate or 0.01})
    for site, client in watched.run.clients.items():
        newcomer = Client(site, client.data, fresh.setup.learner, fresh.clients[site].plan, fresh.setup.initial)
        newcomer.begin(0, 3)
        newcomer.load(watched.run.server.weights)
        drive(newcomer.train(epochs))
        assert same_bits(newcomer.weights(), watched.result.weights[site])


@pytest.mark.parametrize("selection", ["client_best", "round_best", "last"])
def test_the_adapted_model_is_reported_even_if_it_is_worse(selection: str) -> None:
    ruined = watch(build(LocalAdaptation(adapt_learning_rate=50.0), selection=selection))
    for site in ruined.result.sites:
        assert distance(ruined.result.weights[site], ruined.run.server.weights) > 10
    losses = [scores["loss"] for scores in ruined.result.site_scores.values()]
    assert min(losses) > max(s["loss"] for s in federate(FedAvg(), selection=selection).site_scores.values())


@pytest.mark.parametrize("epochs", [0, 1, 4])
def test_all_epochs_are_those_of_the_rounds_and_those_of_adaptation(epochs: int) -> None:
    assert watch(build(LocalAdaptation(adapt_epochs=epochs), rounds=3)).epochs == 3 * (3 + epochs)


def test_every_site_is_scored_once_after_adaptation() -> None:
    scores = federate(LocalAdaptation()).scores
    finished = scores[(scores["stage"] == "finish") & (scores["split"] == "test") & (scores["metric"] == "accuracy")]
    assert sorted(finished["site"]) == ["site-0", "site-1", "site-2"]
