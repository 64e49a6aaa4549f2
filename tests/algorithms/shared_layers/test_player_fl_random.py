"""PLayer-FL-Random: a cut drawn once, never the measured one."""

from __future__ import annotations

from collections import Counter

import pytest
from torch import nn

from algorithms.recorder import LAYERS, entries_of, watch
from federations import assert_same, build, federate, sites, task
from playerfl.algorithms import PLayerFL, PLayerFLRandom
from playerfl.federation.server import Server
from playerfl.layers.layer_map import LayerMap
from playerfl.tasks.task import Task, own_task

SEEDS = 10_000


def layers_of(count: int) -> LayerMap:
    return LayerMap.of(nn.Sequential(*(nn.Linear(1, 1) for _ in range(count))))


def drawn(algorithm: PLayerFLRandom, layers: LayerMap, reference: int | None, seeds: int) -> Counter[int]:
    return Counter(algorithm.draw(Server({}, layers, [], seed), reference)[0] for seed in range(seeds))


def two_layers() -> Task:
    return own_task(lambda: nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3)), sites())


@pytest.mark.slow
@pytest.mark.parametrize(("count", "reference"), [(5, 2), (4, 3), (7, 1), (3, 1)])
def test_each_cut_but_the_measured_one_and_all_layers_is_drawn_equally_often(count: int, reference: int) -> None:
    found = drawn(PLayerFLRandom(), layers_of(count), reference, SEEDS)
    candidates = set(range(1, count)) - {reference}
    assert found.keys() == candidates
    share = 1 / len(candidates)
    sigma = (SEEDS * share * (1 - share)) ** 0.5
    for cut in candidates:
        assert abs(found[cut] - SEEDS * share) <= 3 * sigma, f"{cut} was drawn {found[cut]} times"


def test_with_the_measured_cut_allowed_all_cuts_are_drawn_equally_often() -> None:
    found = drawn(PLayerFLRandom(exclude_reference=False), layers_of(5), 2, SEEDS)
    assert found.keys() == {1, 2, 3, 4}
    assert all(abs(count - SEEDS / 4) <= 3 * (SEEDS * 3 / 16) ** 0.5 for count in found.values())


@pytest.mark.parametrize("reference", [4, 0])
def test_a_reference_outside_the_candidates_excludes_nothing(reference: int) -> None:
    assert drawn(PLayerFLRandom(), layers_of(4), reference, 200).keys() == {1, 2, 3}


def test_the_same_seed_draws_the_same_cut_and_seeds_differ() -> None:
    cuts = [build(PLayerFLRandom(reference_cut=2), seed=seed) for seed in (0, 0, 1, 2, 3, 4, 5)]
    for run in cuts:
        run.algorithm.server_start(run.server)
    first, again, *others = [run.server.memory["cut"] for run in cuts]
    assert first == again
    assert {first, *others} == {1, 3}


@pytest.mark.slow
@pytest.mark.parametrize("reference", [1, 2])
@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("model", ["mlp", "dropout", "batch norm"])
def test_given_the_drawn_cut_it_is_the_run_of_that_cut(reference: int, seed: int, model: str) -> None:
    watched = watch(build(PLayerFLRandom(reference_cut=reference), task(model), seed=seed))
    cut = watched.run.server.memory["cut"]
    assert cut != reference
    assert watched.result.cut is not None and watched.result.cut.index == cut
    assert_same(watched.result, federate(PLayerFL(rule="fixed", fixed_cut=cut), task(model), seed=seed))


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize("first_epoch", ["continue", "restart"])
def test_without_a_reference_it_measures_one_and_avoids_it(seed: int, first_epoch: str) -> None:
    random = federate(PLayerFLRandom(first_epoch=first_epoch), seed=seed)  # type: ignore[arg-type]
    measured = federate(PLayerFL(), seed=seed).cut
    assert random.cut is not None
    assert measured is not None
    assert random.cut.index not in (measured.index, len(LAYERS))
    assert_same(random, federate(PLayerFL(rule="fixed", fixed_cut=random.cut.index), seed=seed))


def test_with_a_reference_nothing_is_measured_or_sent_about_it() -> None:
    watched = watch(build(PLayerFLRandom(reference_cut=2)))
    federated = entries_of(watched.run, LAYERS[: watched.run.server.memory["cut"]])
    assert watched.epochs == 3 * 3
    for message in watched.messages:
        assert "prepare" not in message.request.verbs
        assert not message.reply.upload.info
    for site in watched.result.sites:
        assert all(m.down.keys() == federated for m in watched.to(site)[1:])
        assert all(m.up.keys() == federated for m in watched.fits(site))


@pytest.mark.parametrize(
    "random",
    [PLayerFLRandom(rule="fixed", fixed_cut=1), PLayerFLRandom(reference_cut=1)],
    ids=["measured", "given"],
)
def test_with_no_candidate_left_the_run_falls_back_and_warns(random: PLayerFLRandom) -> None:
    result = federate(random, two_layers())
    assert_same(result, federate(PLayerFL(rule="fixed", fixed_cut=1), two_layers()))
    assert result.cut is not None
    assert result.cut.index == 1
    assert any("1 is the only possible cut" in warning for warning in result.cut.warnings)
