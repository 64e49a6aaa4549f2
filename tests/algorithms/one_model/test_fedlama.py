"""FedLAMA: layers that drift little are averaged less often."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from algorithms.recorder import LAYERS, Watched, build_own, part_of, same_bits, watch
from federations import assert_same, build, federate, task
from playerfl.algorithms import FedAvg, FedLAMA, FedPer, Local
from playerfl.algorithms.one_model.fedlama import adjusted_intervals
from playerfl.federation.client import Client
from playerfl.federation.messages import Upload
from playerfl.federation.server import Server
from playerfl.layers.layer_map import LayerMap


def after_round(watched: Watched, site: str, round_: int) -> list[str]:
    """The layers a site uploaded in this round, counted from 1."""
    return [layer for layer in LAYERS if part_of(watched.fits(site)[round_ - 1].up, layer)]


# Limit cases


@dataclass(frozen=True)
class Given(FedLAMA):
    """FedLAMA with given intervals that never change."""

    given: tuple[int, ...] = ()

    def intervals(self, side: Client | Server) -> dict[str, int]:
        return dict(zip(side.layers.names, self.given, strict=True))


@pytest.mark.parametrize("personal", [1, 2, 3])
def test_a_layer_that_is_never_due_is_private(personal: int) -> None:
    never = Given(phi=1, given=(1,) * (4 - personal) + (1000,) * personal)
    assert_same(watch(build_own(never)).result, federate(FedPer(personal_layers=personal)))


def test_with_one_site_it_is_local() -> None:
    """Also across an adjustment of the intervals."""
    slow = FedLAMA(tau=2, phi=2)
    assert_same(federate(slow, task(count=1), rounds=5), federate(Local(), task(count=1), rounds=5))


# The exchange


@pytest.mark.slow
@pytest.mark.parametrize(("tau", "phi"), [(1, 2), (2, 2), (1, 3)])
def test_a_layer_is_sent_when_its_interval_divides_the_round(tau: int, phi: int) -> None:
    rounds = 3 * phi * tau
    watched = watch(build(FedLAMA(tau=tau, phi=phi), rounds=rounds))
    for site in watched.result.sites:
        intervals = [tau] * len(LAYERS)
        for round_, message in enumerate(watched.fits(site), start=1):
            intervals = message.request.download.info.get("intervals", intervals)  # type: ignore[assignment]
            due = [layer for layer, interval in zip(LAYERS, intervals, strict=True) if round_ % interval == 0]
            assert after_round(watched, site, round_) == due
            averaged = watched.to(site)[round_].down
            assert [layer for layer in LAYERS if part_of(averaged, layer)] == due
        assert set(intervals) == {tau, phi * tau}


@pytest.mark.parametrize(("tau", "phi"), [(1, 2), (2, 2), (1, 4)])
def test_floats_over_a_long_interval_are_counted_by_layer(tau: int, phi: int) -> None:
    """Σ_l P_l · φτ/τ_l in each direction, between one adjustment and the next."""
    long = phi * tau
    watched = watch(build(FedLAMA(tau=tau, phi=phi), rounds=2 * long))
    sizes = watched.run.server.layers.num_parameters
    for site in watched.result.sites:
        intervals = watched.fits(site)[long].request.download.info["intervals"]
        assert isinstance(intervals, list)
        expected = sum(sizes[layer] * long // int(interval) for layer, interval in zip(LAYERS, intervals, strict=True))
        up = sum(w.numel() for fit in watched.fits(site)[long:] for w in fit.up.values())
        down = sum(w.numel() for message in watched.to(site)[long + 1 :] for w in message.down.values())
        assert up == down == expected
        assert expected < long // tau * sum(sizes.values())


@pytest.mark.parametrize(("tau", "phi", "rounds"), [(1, 2, 4), (2, 2, 8), (2, 1, 4)])
def test_after_a_full_synchronisation_all_sites_are_identical(tau: int, phi: int, rounds: int) -> None:
    watched = watch(build(FedLAMA(tau=tau, phi=phi), rounds=rounds))
    assert all(after_round(watched, site, rounds) == list(LAYERS) for site in watched.result.sites)
    assert all(same_bits(own, watched.run.server.weights) for own in watched.result.weights.values())


def test_layers_that_are_not_due_keep_the_bits_of_their_site_and_the_others_are_common() -> None:
    watched = watch(build(FedLAMA(tau=1, phi=2), rounds=3))
    due = after_round(watched, "site-0", 3)
    waiting = [layer for layer in LAYERS if layer not in due]
    assert due and waiting
    for site, client in watched.run.clients.items():
        own = watched.result.weights[site]
        assert same_bits(part_of(own, *due), part_of(watched.run.server.weights, *due))
        assert same_bits(part_of(own, *waiting), part_of(client.memory["local"], *waiting))
    first, second = (part_of(watched.result.weights[site], *waiting) for site in ("site-0", "site-1"))
    assert not same_bits(first, second)


@dataclass(frozen=True)
class Noted(FedLAMA):
    """Keeps what a site has before and after training, round by round."""

    async def client_fit(self, client, download):  # type: ignore[no-untyped-def]
        self.client_model(client, download)
        client.memory.setdefault("before", []).append(client.weights())
        upload = await super().client_fit(client, download)
        client.memory.setdefault("after", []).append(client.weights())
        return upload


def test_sites_keep_training_layers_that_are_not_due() -> None:
    """From where they left them, not from the server's older values."""
    watched = watch(build_own(Noted(tau=1, phi=2), rounds=6))
    continued = 0
    for site, client in watched.run.clients.items():
        before, after = client.memory["before"], client.memory["after"]
        for round_ in range(1, 6):
            waiting = [layer for layer in LAYERS if layer not in after_round(watched, site, round_)]
            continued += len(waiting)
            for layer in waiting:
                assert same_bits(part_of(before[round_], layer), part_of(after[round_ - 1], layer))
                assert not same_bits(part_of(after[round_], layer), part_of(before[round_], layer))
    assert continued > 0


@pytest.mark.slow
@pytest.mark.parametrize("participation", [1.0, 0.5])
def test_all_sites_that_train_in_a_round_upload_the_same_layers(participation: float) -> None:
    """This includes a site that sat out the round in which new intervals were announced."""
    for seed in range(4):
        watched = watch(build(FedLAMA(tau=1, phi=4), rounds=8, participation=participation, seed=seed))
        uploaded: dict[int, set[tuple[str, ...]]] = {}
        for site in watched.run.clients:
            for fit in watched.fits(site):
                uploaded.setdefault(fit.request.download.round + 1, set()).add(tuple(fit.up))
        assert len(set.union(*uploaded.values())) > 1, "no layer ever waits"
        assert {round_: len(kinds) for round_, kinds in uploaded.items()} == dict.fromkeys(range(1, 9), 1)


@pytest.mark.slow
def test_with_partial_participation_tau_and_phi_of_one_are_fedavg() -> None:
    some = {"participation": 0.5, "rounds": 6}
    assert_same(federate(FedLAMA(tau=1, phi=1), **some), federate(FedAvg(), **some))


def test_a_site_that_sat_out_starts_from_the_latest_averages() -> None:
    """All layers are averaged after rounds 2, 4 and 6: the next time a site trains, it must start from that."""
    watched = watch(build_own(Noted(tau=2, phi=1), rounds=7, participation=0.5))
    averages = {m.request.download.round: m.down for m in watched.messages if m.request.download.round % 2 == 0}
    late = 0
    for site, client in watched.run.clients.items():
        trained_in = [fit.request.download.round for fit in watched.fits(site)]
        for before, now, start in zip(trained_in, trained_in[1:], client.memory["before"][1:], strict=False):
            last_average = now - now % 2
            if before < last_average:
                late += last_average < now
                assert same_bits(start, averages[last_average]), f"{site}, round {now + 1}"
    assert late > 0


# Discrepancies and intervals


def server_of(widths: list[int]) -> Server:
    """Layers with these numbers of parameters."""
    model = torch.nn.Sequential(*(torch.nn.Linear(width, 1, bias=False) for width in widths))
    return Server({n: w.detach() for n, w in model.named_parameters()}, LayerMap.of(model), ["a", "b"])


def upload(server: Server, examples: int, value: float) -> Upload:
    return Upload(examples, {name: torch.full_like(w, value) for name, w in server.weights.items()})


@pytest.mark.parametrize("tau", [1, 2, 5])
def test_the_discrepancy_by_hand(tau: int) -> None:
    """One example of 0, three of 4: the mean is 3, squares are 9 and 1, so d = (9 + 1)/2 / τ per parameter."""
    server = server_of([2, 7])
    server.round = tau - 1
    FedLAMA(tau=tau, phi=2).server_merge(server, {"a": upload(server, 1, 0.0), "b": upload(server, 3, 4.0)})
    assert all(torch.equal(w, torch.full_like(w, 3.0)) for w in server.weights.values())
    assert server.memory["discrepancy"] == {"0": 5.0 / tau, "1": 5.0 / tau}


def test_the_discrepancy_is_of_the_new_mean_not_of_an_old_one() -> None:
    server = server_of([3])
    server.weights = {"0.weight": torch.full((1, 3), 1e6)}
    FedLAMA().server_merge(server, {"a": upload(server, 1, -1.0), "b": upload(server, 1, 1.0)})
    assert server.memory["discrepancy"] == {"0": 1.0}


def test_the_discrepancy_of_a_long_interval_is_divided_by_it() -> None:
    server = server_of([2, 2])
    server.memory["intervals"] = [1, 3]
    server.round = 2
    FedLAMA(tau=1, phi=3).server_merge(server, {"a": upload(server, 1, 0.0), "b": upload(server, 1, 6.0)})
    assert server.memory["discrepancy"] == {"0": 9.0, "1": 3.0}


@dataclass(frozen=True)
class Pencil:
    """d_l and P_l, and the intervals they must give for τ = 3, φτ = 12."""

    discrepancy: tuple[float, ...]
    sizes: tuple[int, ...]
    expected: list[int]


PENCIL = {
    # δ = .1 .3 .6 1, 1-λ = .75 .5 .25 0: .6 > .25 stops at the third.
    "rising": Pencil((1, 2, 3, 4), (10, 10, 10, 10), [12, 12, 12, 3]),
    "falling": Pencil((4, 3, 2, 1), (10, 10, 10, 10), [3, 12, 12, 12]),
    # δ = .25 .5 .75 1, 1-λ = .75 .5 .25 0: .5 > .5 is false, .75 > .25 is true.
    "equal": Pencil((1, 1, 1, 1), (10, 10, 10, 10), [12, 12, 12, 3]),
    # d·P = 1 50 9, sorted a c b: δ = 1/60, 1-λ = .02: continue; δ = 10/60 > .01: stop at c.
    "large and still": Pencil((1 / 980, 5.0, 0.9), (980, 10, 10), [12, 3, 12]),
    # d·P = 98, sorted a first: δ = 98/158 = .62 > .02: stop at once.
    "large and restless": Pencil((0.1, 5.0, 1.0), (980, 10, 10), [12, 3, 3]),
    # d = 0 for two layers: δ = 0 0 1 and 1-λ = .8 .3 0; the third stops.
    "two at rest": Pencil((0.0, 0.0, 1.0), (20, 50, 30), [12, 12, 12]),
    # δ = 0 .99, 1-λ = .01 .001: the layer after the huge resting one stops.
    "a huge one at rest": Pencil((2.0, 0.0, 3.0), (9, 990, 1), [12, 12, 3]),
    "nothing moved": Pencil((0.0, 0.0, 0.0), (10, 20, 30), [3, 3, 3]),
    "one layer": Pencil((0.5,), (10,), [12]),
}


@pytest.mark.parametrize("name", PENCIL)
def test_intervals_by_hand(name: str) -> None:
    example = PENCIL[name]
    layers = [f"layer-{i}" for i in range(len(example.sizes))]
    discrepancy, sizes = (dict(zip(layers, v, strict=True)) for v in (example.discrepancy, example.sizes))
    assert adjusted_intervals(discrepancy, sizes, short=3, long=12) == example.expected


numbers = st.lists(st.tuples(st.integers(0, 20), st.integers(1, 50)), min_size=1, max_size=6)


@pytest.mark.slow
@given(numbers)
def test_intervals_follow_the_rule_written_with_whole_numbers(pairs: list[tuple[int, int]]) -> None:
    """δ_j > 1 - λ_j multiplied out: (Σ_{i≤j} dP)·P > (P - Σ_{i≤j} P_i)·Σ dP, without division."""
    layers = [str(i) for i in range(len(pairs))]
    total_drift, total_size = sum(d * p for d, p in pairs), sum(p for _, p in pairs)
    expected = dict.fromkeys(layers, 1)
    drift = size = 0
    for layer in sorted(layers, key=lambda name: pairs[int(name)][0]):
        if total_drift == 0:
            break
        expected[layer] = 2
        drift, size = drift + pairs[int(layer)][0] * pairs[int(layer)][1], size + pairs[int(layer)][1]
        left, right = drift * total_size, (total_size - size) * total_drift
        if left == right:
            return  # a tie in whole numbers may go either way in floating point
        if left > right:
            break
    discrepancy: Mapping[str, float] = {layer: float(pairs[int(layer)][0]) for layer in layers}
    sizes = {layer: pairs[int(layer)][1] for layer in layers}
    assert adjusted_intervals(discrepancy, sizes, short=1, long=2) == list(expected.values())


def announced(watched: Watched) -> list[int]:
    """Merges after which new intervals were sent to the first site."""
    return [m.request.download.round for m in watched.to("site-0") if "intervals" in m.request.download.info]


@pytest.mark.parametrize(("warmup", "expected"), [(0, [2, 4, 6]), (2, [4, 6]), (3, [4, 6]), (6, [])])
def test_intervals_are_adjusted_after_every_long_interval_once_warmed_up(warmup: int, expected: list[int]) -> None:
    watched = watch(build(FedLAMA(tau=1, phi=2, warmup_rounds=warmup), rounds=6))
    assert announced(watched) == expected


@pytest.mark.slow
def test_while_warming_up_it_is_fedavg() -> None:
    assert_same(federate(FedLAMA(warmup_rounds=5), rounds=5), federate(FedAvg(), rounds=5))
