"""Every cut trained, and the regret of each way of choosing one."""

from __future__ import annotations

import json

import pytest
import torch

from federations import QUICK, federate, task
from playerfl.algorithms import PLayerFL
from playerfl.analysis.figures import sweep_figure
from playerfl.analysis.sweep import RANDOM, RECOMMENDED, CutScore, Sweep, divergence_cut, sweep_cuts
from playerfl.errors import ConfigError
from playerfl.layers.layer_map import LayerMap

SETTINGS = {key: value for key, value in QUICK.items() if key != "selection"}


@pytest.fixture(scope="module")
def sweep() -> Sweep:
    return sweep_cuts(task(), rounds=2, seeds=[0, 1], settings=SETTINGS)


@pytest.mark.slow
def test_every_cut_is_trained_for_every_seed(sweep: Sweep) -> None:
    assert {(score.seed, score.cut) for score in sweep.scores} == {(s, c) for s in (0, 1) for c in range(5)}
    assert sweep.chosen.keys() >= {RECOMMENDED, "last layer private", "largest CKA drop", "weight divergence"}


@pytest.mark.parametrize(("cut", "same"), [(0, "local"), (4, "fedavg")])
def test_the_ends_are_training_alone_and_fedavg(sweep: Sweep, cut: int, same: str) -> None:
    result = federate(same, rounds=2, selection="client_best")
    scores, sizes = result.site_scores, result.num_examples
    expected = sum(scores[site]["f1"] * sizes[site] for site in scores) / sum(sizes.values())
    assert sweep.of(0)[cut].test == pytest.approx(expected, rel=1e-12)


def test_the_recommended_cut_is_that_of_player_fl(sweep: Sweep) -> None:
    cut = federate(PLayerFL(), rounds=1).cut
    assert cut is not None
    assert sweep.chosen[RECOMMENDED][0] == cut.index


def test_regret_is_what_is_lost_against_the_best_on_validation() -> None:
    scores = [CutScore(0, 0, 0.5, 0.5), CutScore(0, 1, 0.8, 0.6), CutScore(0, 2, 0.6, 0.9), CutScore(0, 3, 0.4, 0.1)]
    swept = Sweep("t", ("a", "b", "c"), "f1", 1, scores, {"mine": {0: 2}})
    mine, drawn = swept.regrets()
    assert swept.best_cut(0) == 1
    assert mine.validation == pytest.approx((0.2,))
    assert mine.test == pytest.approx((-0.3,))
    assert drawn.way == RANDOM
    assert drawn.validation == pytest.approx((0.1,))  # 0.8 minus the mean of 0.8 and 0.6
    assert all(value >= 0 for regret in swept.regrets() for value in regret.validation)


def test_weights_that_differ_from_a_layer_on_are_cut_there() -> None:
    net = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 2), torch.nn.Linear(2, 2))
    layers = LayerMap.of(net)
    start = {name: torch.ones_like(p) for name, p in net.named_parameters()}
    moved = {name: w * (2.0 if name.startswith("2") else 1.01) for name, w in start.items()}
    assert divergence_cut({"a": start, "b": moved}, layers) == 2


@pytest.mark.slow
def test_a_sweep_is_written_as_json_and_as_a_figure(sweep: Sweep, tmp_path: object) -> None:
    content = json.loads(json.dumps(sweep.to_json(), allow_nan=False))
    assert {regret["way"] for regret in content["regrets"]} == {*sweep.chosen, RANDOM}
    figure, axes = sweep_figure(sweep)
    assert len(axes[1].get_yticklabels()) == len(content["regrets"])
    figure.savefig(f"{tmp_path}/sweep.png")


def test_progress_counts_the_runs() -> None:
    ticks: list[int] = []

    def watch(total: int) -> object:
        ticks.append(total)
        return lambda: ticks.append(1)

    sweep_cuts(task(count=2), rounds=1, seeds=[0], settings=SETTINGS, watch=watch)  # type: ignore[arg-type]
    assert ticks[0] == len(ticks[1:])


def test_no_seeds_are_refused() -> None:
    with pytest.raises(ConfigError, match="at least one seed"):
        sweep_cuts(task(), seeds=[])
