"""pFedLA: for every site and layer, a learned mix of all sites' layers."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import pytest
import torch
from torch import nn

from algorithms.recorder import LAYERS, Watched, build_own, distance, same_bits, watch
from federations import build, federate, largest_difference, sites, task
from playerfl.algorithms import FedAvg, Local, PFedLA
from playerfl.federation.messages import Upload
from playerfl.federation.server import Server
from playerfl.layers.layer_map import LayerMap
from playerfl.selftest.identities import BySize
from playerfl.weights import Weights

PARTS = {"embedding", "hidden.weight", "hidden.bias", "output.weight", "output.bias"}


def mixes(watched: Watched) -> dict[str, torch.Tensor]:
    """α_i of every site: a row for each layer, a column for each site."""
    algorithm, server = watched.run.algorithm, watched.run.server
    assert isinstance(algorithm, PFedLA)
    return {site: algorithm.mix_of(server, server.memory["mixers"][site]) for site in server.sites}


# Limit cases


@pytest.mark.slow
@pytest.mark.parametrize("model", ["dropout", "convolutional", "frozen first layer"])
def test_fixed_mixes_by_size_are_fedavg(model: str) -> None:
    expected = federate(FedAvg(), task(model))
    sizes = tuple(expected.num_examples[site] for site in expected.sites)
    found = watch(build_own(BySize(hyper_learning_rate=0.0, sizes=sizes), task(model))).result
    assert largest_difference(found, expected) < 1e-6
    assert largest_difference(found, federate(PFedLA(hyper_learning_rate=0.0), task(model))) > 1e-5


# Mixes


def test_mixes_are_uniform_at_first() -> None:
    watched = watch(build(PFedLA(hyper_learning_rate=0.0)))
    for mix in mixes(watched).values():
        assert mix.shape == (len(LAYERS), 3)
        torch.testing.assert_close(mix, torch.full((4, 3), 1 / 3))


def test_rows_are_non_negative_and_sum_to_one_after_learning() -> None:
    watched = watch(build(PFedLA(hyper_learning_rate=2.0), rounds=6))
    for mix in mixes(watched).values():
        torch.testing.assert_close(mix.sum(1), torch.ones(4), atol=1e-6, rtol=0)
        assert (mix >= 0).all()
        assert (mix - 1 / 3).abs().max() > 1e-3


def test_what_a_site_receives_is_its_mix_of_the_latest_models() -> None:
    watched = watch(build(PFedLA(hyper_learning_rate=1.0), rounds=4))
    latest = {site: watched.fits(site)[-1].up for site in watched.run.clients}
    for site, mix in mixes(watched).items():
        received = watched.to(site)[-1].down
        for row, layer in zip(mix.double(), LAYERS, strict=True):
            for name in (f"{layer}.weight", f"{layer}.bias"):
                models = torch.stack([latest[other][name].double() for other in sorted(latest)])
                expected = torch.tensordot(row, models, dims=1)
                torch.testing.assert_close(received[name].double(), expected, atol=1e-6, rtol=0)


def test_the_server_keeps_what_sites_trained_not_a_difference_to_an_older_copy() -> None:
    watched = watch(build(PFedLA()))
    for site in watched.run.clients:
        assert same_bits(watched.run.server.memory["models"][site], watched.fits(site)[-1].up)


def test_sites_are_scored_with_what_they_receive_next() -> None:
    watched = watch(build(PFedLA(hyper_learning_rate=1.0)))
    for site in watched.run.clients:
        assert same_bits(watched.result.weights[site], watched.to(site)[-1].down)
    after_training = watch(build(PFedLA(hyper_learning_rate=1.0), eval_point="post_local"))
    for site in after_training.run.clients:
        assert same_bits(after_training.result.weights[site], after_training.fits(site)[-1].up)


# Learning


def test_without_a_rate_hypernetworks_stay_as_they_are() -> None:
    watched = watch(build(PFedLA(hyper_learning_rate=0.0)))
    for site, mixer in watched.run.server.memory["mixers"].items():
        assert same_bits(mixer, PFedLA().fresh_mixer(watched.run.server, site))


def test_with_a_rate_every_part_of_a_hypernetwork_learns() -> None:
    watched = watch(build(PFedLA(hyper_learning_rate=1.0), rounds=5))
    for site, mixer in watched.run.server.memory["mixers"].items():
        fresh = PFedLA().fresh_mixer(watched.run.server, site)
        assert mixer.keys() == PARTS
        assert {name for name in PARTS if not torch.equal(mixer[name], fresh[name])} == PARTS


def test_hypernetworks_learn_from_the_models_of_the_start_of_the_round() -> None:
    """All models are the same before the first merge, so no mix can be better than another yet."""
    watched = watch(build(PFedLA(hyper_learning_rate=1.0), rounds=1))
    for mix in mixes(watched).values():
        torch.testing.assert_close(mix, torch.full((4, 3), 1 / 3), atol=1e-6, rtol=0)


def toy(seed: int = 3) -> Server:
    """Two sites, two layers, everything random and in float64, hypernetworks that have already learned."""
    rng = torch.Generator().manual_seed(seed)

    def like(tensors: dict[str, torch.Tensor]) -> Weights:
        return {name: torch.randn(t.shape, generator=rng, dtype=torch.float64) for name, t in tensors.items()}

    model = nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 1)).double()
    server = Server({n: w.detach() for n, w in model.named_parameters()}, LayerMap.of(model), ["a", "b"])
    algorithm = PFedLA(embedding=4, hidden=5)
    algorithm.server_start(server)
    server.memory["models"] = {site: like(server.weights) for site in server.sites}
    server.memory["mixers"] = {site: like(mixer) for site, mixer in server.memory["mixers"].items()}
    return server


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_the_step_is_the_jacobian_times_start_minus_end(seed: int) -> None:
    """(φ - φ')/η against central differences of φ ↦ ⟨agg(φ), agg - θ'⟩, entry by entry."""
    server = toy(seed)
    algorithm = PFedLA(embedding=4, hidden=5, hyper_learning_rate=1.0)
    mixer = server.memory["mixers"]["a"]
    start = algorithm.mixed(server, "a")
    trained = {name: w - 0.1 * torch.sin(7 * w) for name, w in start.items()}
    step = algorithm.learned(server, "a", trained)

    def objective(name: str, entry: int, by: float) -> float:
        moved = {key: tensor.clone() for key, tensor in mixer.items()}
        moved[name].view(-1)[entry] += by
        server.memory["mixers"]["a"] = moved
        received = algorithm.mixed(server, "a")
        server.memory["mixers"]["a"] = mixer
        return sum(float((received[key] * (start[key] - trained[key])).sum()) for key in start)

    felt = set()
    for name, tensor in mixer.items():
        found = (tensor - step[name]).view(-1)
        for entry in range(tensor.numel()):
            slope = (objective(name, entry, 1e-5) - objective(name, entry, -1e-5)) / 2e-5
            assert float(found[entry]) == pytest.approx(slope, abs=1e-6), (name, entry)
            if abs(slope) > 1e-4:
                felt.add(name)
    assert felt == PARTS


def test_the_size_of_the_step_is_the_rate() -> None:
    server = toy()
    start = PFedLA(embedding=4, hidden=5).mixed(server, "a")
    trained = {name: w + 0.1 for name, w in start.items()}
    mixer = server.memory["mixers"]["a"]
    one, three = (
        PFedLA(embedding=4, hidden=5, hyper_learning_rate=rate).learned(server, "a", trained) for rate in (1.0, 3.0)
    )
    for name in mixer:
        torch.testing.assert_close(mixer[name] - three[name], 3 * (mixer[name] - one[name]))


@pytest.mark.parametrize("better", ["a", "b"])
def test_the_weight_of_the_model_that_training_moves_towards_grows(better: str) -> None:
    server = toy()
    algorithm = PFedLA(embedding=4, hidden=5, hyper_learning_rate=0.05)
    start, goal = algorithm.mixed(server, "a"), server.memory["models"][better]
    before = algorithm.mix_of(server, server.memory["mixers"]["a"])
    nearer = {name: w + 0.1 * (goal[name] - w) for name, w in start.items()}
    algorithm.server_merge(server, {site: Upload(1, nearer) for site in server.sites})
    after = algorithm.mix_of(server, server.memory["mixers"]["a"])
    column = server.sites.index(better)
    assert (after[:, column] > before[:, column]).all()


@dataclass(frozen=True)
class WithAnExpert(PFedLA):
    """The last site begins with a model that is good for the first one's data; the others with the initial one."""

    def server_start(self, server: Server) -> None:
        super().server_start(server)
        expert = federate(Local(), task(sites=alike()), rounds=40).weights["site-0"]
        server.memory["models"]["site-2"] = expert


def alike() -> dict[str, tuple[torch.Tensor, torch.Tensor]]:
    """Three sites with the same rows."""
    return dict.fromkeys(("site-0", "site-1", "site-2"), sites()["site-1"])


@pytest.mark.slow
def test_after_some_rounds_sites_listen_more_to_the_one_that_is_better_for_them() -> None:
    watched = watch(build_own(WithAnExpert(hyper_learning_rate=0.05), task(sites=alike()), rounds=3))
    for site in ("site-0", "site-1"):
        mix = mixes(watched)[site].mean(0)
        assert mix[2] > 1 / 3 + 0.01
        assert mix[2] == mix.max()


def test_learning_brings_the_mix_nearer_to_what_training_wants() -> None:
    """Repeated steps with the same θ' must shrink ‖agg - θ'‖: with the sign reversed they grow it."""
    server = toy()
    algorithm = PFedLA(embedding=4, hidden=5, hyper_learning_rate=0.01)
    goal = server.memory["models"]["b"]
    gaps = []
    for _ in range(30):
        gaps.append(distance(algorithm.mixed(server, "a"), goal))
        server.memory["mixers"]["a"] = algorithm.learned(server, "a", goal)
    assert all(later < earlier for earlier, later in pairwise(gaps))
    assert gaps[-1] < 0.9 * gaps[0]


def test_hypernetworks_differ_between_sites_and_seeds_and_not_between_runs() -> None:
    def start(seed: int) -> dict[str, Weights]:
        run = build(PFedLA(), seed=seed)
        run.algorithm.server_start(run.server)
        return run.server.memory["mixers"]  # type: ignore[no-any-return]

    first = start(0)
    assert all(same_bits(mixer, start(0)[site]) for site, mixer in first.items())
    assert not torch.equal(first["site-0"]["embedding"], first["site-1"]["embedding"])
    assert not torch.equal(first["site-0"]["embedding"], start(1)["site-0"]["embedding"])
