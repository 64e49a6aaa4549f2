"""FedAvg: what the limit cases do not cover."""

from __future__ import annotations

import pytest
import torch

from algorithms.recorder import part_of, same_bits, watch
from federations import build, federate, task
from playerfl.algorithms import FedAvg, Local
from playerfl.federation.messages import Upload
from playerfl.federation.server import Server
from playerfl.layers.layer_map import LayerMap


def one_number_server() -> Server:
    model = torch.nn.Linear(1, 1, bias=False, dtype=torch.float64)
    return Server({"weight": model.weight.detach()}, LayerMap.of(model), ["a", "b", "c"])


def upload(examples: int, value: float) -> Upload:
    return Upload(examples, {"weight": torch.tensor([[value]], dtype=torch.float64)})


@pytest.mark.parametrize("sizes", [(1, 1, 1), (40, 57, 33), (1, 10**6, 3)])
def test_equal_uploads_give_the_same_bits_back(sizes: tuple[int, ...]) -> None:
    model = torch.nn.Linear(50, 20)
    weights = {name: w.detach().clone() for name, w in model.named_parameters()}
    server = Server({name: torch.zeros_like(w) for name, w in weights.items()}, LayerMap.of(model), "abc")
    FedAvg().server_merge(server, {c: Upload(n, weights) for c, n in zip("abc", sizes, strict=True)})
    assert same_bits(server.weights, weights)


def test_a_site_counts_as_much_as_it_has_examples() -> None:
    server = one_number_server()
    FedAvg().server_merge(server, {"a": upload(1, 10.0), "b": upload(3, 20.0), "c": upload(6, 50.0)})
    assert server.weights["weight"].item() == pytest.approx(0.1 * 10 + 0.3 * 20 + 0.6 * 50, abs=1e-12)


def test_only_training_examples_count() -> None:
    x, y = torch.randn(40, 6), torch.arange(40) % 3
    rows = {"train": (x[:10], y[:10]), "validation": (x[10:27], y[10:27]), "test": (x[27:], y[27:])}
    watched = watch(build(FedAvg(), task(sites={"a": rows}), rounds=1))
    assert watched.fits("a")[0].reply.upload.num_examples == 10


@pytest.mark.slow
def test_the_common_model_is_the_mean_of_the_uploads_of_every_round() -> None:
    watched = watch(build(FedAvg(), task("batch norm")))
    fits = {site: watched.fits(site) for site in watched.result.sites}
    sizes = watched.result.num_examples
    total = sum(sizes.values())
    for round_ in range(2):
        for name, received in fits["site-0"][round_ + 1].down.items():
            parts = {site: own[round_].up[name].double() for site, own in fits.items()}
            if received.is_floating_point():
                expected = sum(parts[site] * sizes[site] for site in parts) / total
                torch.testing.assert_close(received.double(), expected, atol=1e-7, rtol=1e-6)


@pytest.mark.parametrize("algorithm", ["fedavg", "fedprox", "fedlp"])
def test_every_site_is_scored_with_the_common_model(algorithm: str) -> None:
    watched = watch(build(algorithm))
    for site in watched.result.sites:
        assert same_bits(watched.result.weights[site], watched.run.server.weights)


def test_scored_after_local_training_every_site_has_its_own() -> None:
    result = federate(FedAvg(), eval_point="post_local")
    assert not same_bits(result.weights["site-0"], result.weights["site-1"])


def test_the_first_epoch_is_that_of_local() -> None:
    first = watch(build(FedAvg(), rounds=1)).fits("site-1")[0].up
    alone = federate(Local(), rounds=1).weights["site-1"]
    assert same_bits(first, part_of(alone, "0", "2", "4", "6"))
