"""PLayer-FL with the private layers pulled towards their average, as in the authors' early code."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from algorithms.linear import FULL_BATCH, ROWS, data, linear_model, linear_task, squared_error
from algorithms.recorder import LAYERS, entries_of, part_of, same_bits, watch
from federations import assert_same, build, double_task, federate, largest_difference, sites, task
from playerfl.algorithms import PLayerFL, PLayerFLFedProx, PLayerFLMinusOne, PLayerFLRandom
from playerfl.errors import ConfigError
from playerfl.runs.experiment import Experiment
from playerfl.weights import Weights, num_bytes, weighted_mean

STARTS = ["continue", "restart"]


def pulled(strength: float, cut: int = 2, first_epoch: str = "continue") -> PLayerFL:
    return PLayerFL(rule="fixed", fixed_cut=cut, first_epoch=first_epoch, private_pull=strength)  # type: ignore[arg-type]


@pytest.mark.parametrize("first_epoch", STARTS)
@pytest.mark.parametrize("rounds", [1, 2, 4])
def test_the_private_layer_descends_the_loss_plus_the_pull(rounds: int, first_epoch: str) -> None:
    """Two linear layers, the second private: w ← w - η·∂(f + c·‖w - average‖²)/∂w, by autograd."""
    strength, rate = 0.3, 0.1
    run = build(pulled(strength, 1, first_epoch), linear_task(), rounds=rounds, **FULL_BATCH)
    watched = watch(run)
    models: dict[str, Weights] = {site: dict(run.setup.initial) for site in data()}
    average: Weights = {}
    for number in range(rounds):
        for site, (inputs, targets) in data().items():
            model = linear_model()
            model.load_state_dict(models[site])
            objective = squared_error(model(inputs), targets).mean()
            if number > 0:
                objective = objective + strength * (model[1].weight - average["1.weight"]).square().sum()  # type: ignore[index]
            objective.backward()  # type: ignore[no-untyped-call]
            models[site] = {name: p.detach() - rate * p.grad for name, p in model.named_parameters()}  # type: ignore[operator]
        average = weighted_mean([(models[site], ROWS[site]) for site in models])
        for site in models:
            models[site]["0.weight"] = average["0.weight"]
    for site in models:
        for name, expected in models[site].items():
            torch.testing.assert_close(watched.result.weights[site][name], expected, atol=1e-12, rtol=0)
    torch.testing.assert_close(run.server.weights["1.weight"], average["1.weight"], atol=1e-12, rtol=0)


@pytest.mark.parametrize("first_epoch", STARTS)
def test_a_pull_of_zero_changes_no_bit_and_is_not_written(first_epoch: str) -> None:
    given = {"rule": "fixed", "fixed_cut": 2, "first_epoch": first_epoch}
    assert_same(federate(pulled(0.0, 2, first_epoch)), federate(PLayerFL(**given)))  # type: ignore[arg-type]
    own = task()
    without, zero, some = (
        Experiment.resolve({"algorithm": {"name": "player_fl", **given, **extra}}, own)
        for extra in ({}, {"private_pull": 0.0}, {"private_pull": 0.1})
    )
    assert without == zero
    assert "private_pull" not in without.to_toml()
    assert "private_pull = 0.1" in some.to_toml()


@pytest.mark.slow
@pytest.mark.parametrize("trainer", ["loop", "stacked"])
def test_a_weak_pull_hardly_matters_and_a_stronger_one_brings_sites_together(trainer: str) -> None:
    # Plain steps: under AdamW the pull passes through its scaling.
    sgd = {"training.optimizer": "sgd", "training.learning_rate": 0.1, "trainer": trainer}

    def run(strength: float) -> Any:
        return federate(pulled(strength), rounds=4, **sgd)

    def apart(result: Any) -> float:
        one, other = (part_of(result.weights[site], *LAYERS[2:]) for site in ("site-0", "site-1"))
        return sum(float((one[name] - other[name]).square().sum()) for name in one)

    none, weak, strong = run(0.0), run(1e-9), run(2.0)
    assert largest_difference(none, weak) < 1e-6
    assert apart(strong) < 0.5 * apart(none)


@pytest.mark.parametrize(
    "algorithm", [pulled(0.1), PLayerFLMinusOne(private_pull=0.1), PLayerFLRandom(private_pull=0.1)]
)
def test_both_trainers_agree(algorithm: PLayerFL) -> None:
    stacked, loop = (federate(algorithm, double_task(), trainer=trainer) for trainer in ("stacked", "loop"))
    assert (stacked.data["trainer"], loop.data["trainer"]) == ("stacked", "loop")
    assert largest_difference(stacked, loop) < 1e-10


@pytest.mark.parametrize("first_epoch", STARTS)
@pytest.mark.parametrize("cut", [0, 2, 4])
def test_private_layers_travel_are_counted_and_stay_each_sites_own(cut: int, first_epoch: str) -> None:
    watched = watch(build(pulled(0.1, cut, first_epoch)))
    everything = entries_of(watched.run, LAYERS)
    for site, client in watched.run.clients.items():
        first, *later = watched.fits(site)
        assert all(m.up.keys() == everything for m in (first, *later))
        assert all(m.down.keys() == everything for m in later)
        assert later[-1].reply.upload.num_bytes == num_bytes(watched.run.setup.initial)
        assert same_bits(part_of(watched.result.weights[site], *LAYERS[cut:]), client.memory["personal"])
        assert same_bits(
            part_of(watched.result.weights[site], *LAYERS[:cut]), part_of(watched.run.server.weights, *LAYERS[:cut])
        )


def test_sites_that_join_late_take_part() -> None:
    watched = watch(build(pulled(0.1), rounds=4, participation=0.5))
    assert watched.result.sites == sorted(sites())


def test_it_is_refused_under_another_method_and_below_zero() -> None:
    with pytest.raises(ConfigError, match=r"private_pull = 0\.1 works only in PLayer-FL itself"):
        PLayerFLFedProx(private_pull=0.1)
    with pytest.raises(ConfigError, match="private_pull must be at least 0"):
        PLayerFL(private_pull=-0.1)
