"""The paper's tasks: shapes of the networks, presets, and runs on the real data if it is available."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import playerfl
from playerfl.layers.layer_map import LayerMap
from playerfl.paper import facts as paper
from playerfl.runs.experiment import Experiment
from playerfl.tasks import TASKS
from real_data import needs

SMALL = {"data.size": "tiny"}


@pytest.mark.parametrize(
    ("name", "layers", "parameters"),
    [
        ("fashion_mnist", 5, 1_052_758),
        ("emnist", 5, 1_058_010),
        ("cifar10", 7, 3_963_094),
        ("isic2019", 7, 1_700_932),
        ("heart", 4, 2_095),
    ],
)
def test_networks_have_the_papers_layers_and_parameters(name: str, layers: int, parameters: int) -> None:
    task = TASKS[name]
    model = task.build_model(task.options())
    assert sum(p.numel() for p in model.parameters()) == parameters
    assert len(LayerMap.of(model).names) == layers
    assert task.paper is not None
    assert paper.facts()["transition_points"][task.paper]["n_groups"] == layers


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name, task in TASKS.items() if task.paper])
@pytest.mark.parametrize("size", ["small", "tiny"])
def test_smaller_sizes_keep_the_layers(name: str, size: str) -> None:
    task = TASKS[name]
    paper_sized, smaller = (task.build_model(task.options(size=s)) for s in ("paper", size))
    assert LayerMap.of(smaller).names == LayerMap.of(paper_sized).names
    assert sum(p.numel() for p in smaller.parameters()) < sum(p.numel() for p in paper_sized.parameters()) / 4


def test_kaiming_weights_have_zero_biases_and_the_right_spread() -> None:
    task = TASKS["fashion_mnist"]
    torch.manual_seed(0)
    model = task.build_model(task.options(init="kaiming"))
    conv: Any = model.get_submodule("conv3")
    assert float(conv.bias.detach().abs().max()) == 0
    assert float(conv.weight.detach().std()) == pytest.approx((2 / (128 * 25)) ** 0.5, rel=0.02)


def test_presets_are_the_papers_for_each_algorithm() -> None:
    heart = Experiment.resolve({"task": "heart", "algorithm": "fedavg"})
    assert (heart.rounds, heart.training.learning_rate, heart.training.batch_size) == (50, 0.1, 128)
    assert Experiment.resolve({"task": "heart", "algorithm": "player_fl"}).training.learning_rate == 0.01
    chosen = Experiment.resolve({"task": "heart", "algorithm": "player_fl", "training": {"learning_rate": 0.3}})
    assert chosen.training.learning_rate == 0.3


def trained(name: str, **settings: Any) -> playerfl.RunResult:
    result = playerfl.run(name, "player_fl", rounds=1, settings={**SMALL, **settings})
    assert result.cut is not None
    assert result.scores["value"].notna().all()
    return result


def counts(result: playerfl.RunResult) -> dict[str, list[int]]:
    """Examples of each class at each site, all parts together."""
    by_site = {}
    for site, parts in result.data["sites"].items():
        classes = sorted({int(c) for part in parts.values() for c in part["classes"]})
        by_site[site] = [sum(part["classes"].get(str(c), 0) for part in parts.values()) for c in classes]
    return by_site


@needs("heart")
def test_heart_on_the_real_hospitals() -> None:
    result = trained("heart", **{"data.size": "paper"})
    assert {site: sum(classes) for site, classes in counts(result).items()} == {
        "cleveland": 303,
        "hungary": 261,
        "switzerland": 46,
        "va": 130,
    }
    assert trained("heart").data["partition_hash"] == result.data["partition_hash"]


@pytest.mark.slow
@pytest.mark.parametrize("name", [pytest.param(n, marks=needs(n)) for n in ("fashion_mnist", "emnist", "cifar10")])
def test_image_tasks_on_the_real_pictures(name: str) -> None:
    result = trained(name, **{"data.rows_per_site": 200, "training.batch_size": 32})
    assert sum(map(sum, counts(result).values())) == 1000


@pytest.mark.slow
@needs("isic2019")
def test_isic_on_the_real_lesions() -> None:
    result = trained("isic2019", **{"data.side": 16, "training.batch_size": 128})
    # In the order BCC, BKL, MEL, NV.
    assert counts(result) == {
        "rosendahl": [296, 490, 342, 803],
        "vidir_modern": [211, 475, 680, 1832],
        "vidir_molemax": [2, 124, 24, 3720],
        "vienna_dias": [5, 10, 67, 350],
    }
    assert "HAM10000: 4 of the 6 centres of Fed-ISIC 2019" in result.data["notes"]


@pytest.mark.slow
@needs("isic2019")
def test_pictures_of_one_lesion_stay_in_one_part() -> None:
    from playerfl.data.download.sources import folder_of
    from playerfl.data.splits import three_way_split
    from playerfl.tasks.bundled import isic2019

    lesions = isic2019.read_labels(next(folder_of("isic2019").glob("*.csv")))
    at_site = [lesion for lesion in lesions if lesion.hospital == "rosendahl"]
    groups = np.unique([lesion.lesion for lesion in at_site], return_inverse=True)[1]
    labels = np.array([isic2019.CLASSES.index(lesion.kind) for lesion in at_site])
    parts = [set(groups[part]) for part in three_way_split(labels, groups=groups)]
    assert not parts[0] & parts[1] and not parts[0] & parts[2] and not parts[1] & parts[2]
    assert sum(map(len, three_way_split(labels, groups=groups))) == len(at_site)
