"""FedLP: sites upload a random subset of their layers."""

from __future__ import annotations

import pytest
import torch

from algorithms.recorder import LAYERS, Watched, part_of, same_bits, watch
from federations import build, sites, task
from playerfl.algorithms import FedLP
from playerfl.federation.messages import Upload
from playerfl.federation.server import Server
from playerfl.layers.layer_map import LayerMap


def kept_layers(watched: Watched) -> dict[str, list[tuple[str, ...]]]:
    """By site and round."""
    return {
        site: [tuple(layer for layer in LAYERS if part_of(fit.up, layer)) for fit in watched.fits(site)]
        for site in watched.result.sites
    }


@pytest.mark.parametrize("weighting", ["samples", "uniform"])
def test_keeping_nothing_leaves_the_initial_model(weighting: str) -> None:
    watched = watch(build(FedLP(keep=0.0, weighting=weighting)))  # type: ignore[arg-type]
    assert all(not fit.up for site in watched.result.sites for fit in watched.fits(site))
    assert all(same_bits(m.down, watched.run.setup.initial) for m in watched.messages)


@pytest.mark.slow
@pytest.mark.parametrize("weighting", ["samples", "uniform"])
@pytest.mark.parametrize("keep", [0.3, 0.5])
def test_a_layer_is_the_mean_over_its_senders_and_unchanged_without_any(weighting: str, keep: float) -> None:
    watched = watch(build(FedLP(keep=keep, weighting=weighting), rounds=8))  # type: ignore[arg-type]
    messages = {site: watched.to(site) for site in watched.result.sites}
    sizes = watched.result.num_examples
    unsent = 0
    for round_ in range(8):
        before, after = messages["site-0"][round_].down, messages["site-0"][round_ + 1].down
        for name, weight in after.items():
            sent = {site: own[round_].up[name] for site, own in messages.items() if name in own[round_].up}
            if not sent:
                unsent += 1
                assert torch.equal(weight, before[name])
                continue
            shares = {site: sizes[site] if weighting == "samples" else 1 for site in sent}
            expected = sum(w.double() * shares[s] for s, w in sent.items()) / sum(shares.values())
            torch.testing.assert_close(weight.double(), expected, atol=1e-7, rtol=1e-6)
    assert unsent > 0


@pytest.mark.parametrize(("weighting", "expected"), [("samples", 17.5), ("uniform", 15.0)])
def test_the_mean_is_over_senders_only(weighting: str, expected: float) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(1, 1, bias=False), torch.nn.Linear(1, 1, bias=False))
    server = Server({n: w.detach() for n, w in model.named_parameters()}, LayerMap.of(model), ["a", "b", "c"])
    nobody = server.weights["1.weight"].clone()

    def upload(examples: int, value: float) -> Upload:
        return Upload(examples, {"0.weight": torch.tensor([[value]])})

    uploads = {"a": upload(1, 10.0), "b": Upload(100), "c": upload(3, 20.0)}
    FedLP(weighting=weighting).server_merge(server, uploads)  # type: ignore[arg-type]
    assert server.weights["0.weight"].item() == expected
    assert torch.equal(server.weights["1.weight"], nobody)


@pytest.mark.slow
def test_the_same_seed_draws_the_same_layers_whatever_is_trained() -> None:
    first = kept_layers(watch(build(FedLP(keep=0.5), rounds=5)))
    assert kept_layers(watch(build(FedLP(keep=0.5), rounds=5))) == first
    assert kept_layers(watch(build(FedLP(keep=0.5), rounds=5, **{"training.learning_rate": 0.5}))) == first
    assert kept_layers(watch(build(FedLP(keep=0.5), task(sites=other_rows()), rounds=5))) == first


def other_rows() -> dict[str, tuple[torch.Tensor, torch.Tensor]]:
    return sites(rows=(60, 30, 50, 25))


@pytest.mark.slow
def test_draws_differ_between_sites_rounds_and_seeds() -> None:
    kept = kept_layers(watch(build(FedLP(keep=0.5), rounds=8)))
    assert len({tuple(rounds) for rounds in kept.values()}) == 3
    assert all(len(set(rounds)) > 1 for rounds in kept.values())
    assert kept_layers(watch(build(FedLP(keep=0.5), rounds=8, seed=1))) != kept


def test_whole_layers_are_drawn_weight_and_bias_together() -> None:
    watched = watch(build(FedLP(keep=0.5), rounds=8))
    for site in watched.result.sites:
        for fit in watched.fits(site):
            assert all(len(part_of(fit.up, layer)) in (0, 2) for layer in LAYERS)


@pytest.mark.slow
@pytest.mark.parametrize("keep", [0.3, 0.7])
def test_the_uploaded_floats_are_a_share_of_the_model_within_three_sigma(keep: float) -> None:
    rounds = 60
    watched = watch(build(FedLP(keep=keep), task(sites=sites(rows=(24, 24, 24))), rounds=rounds))
    sizes = watched.run.server.layers.num_parameters
    draws = 3 * rounds
    floats = sum(w.numel() for site in watched.result.sites for fit in watched.fits(site) for w in fit.up.values())
    sigma = (keep * (1 - keep) * sum(size**2 for size in sizes.values()) / draws) ** 0.5
    assert abs(floats / draws - keep * sum(sizes.values())) < 3 * sigma


@pytest.mark.slow
def test_a_larger_rate_keeps_every_layer_a_smaller_one_keeps() -> None:
    few, many = (kept_layers(watch(build(FedLP(keep=keep), rounds=6))) for keep in (0.3, 0.8))
    assert all(set(a) <= set(b) for site in few for a, b in zip(few[site], many[site], strict=True))
    assert few != many
