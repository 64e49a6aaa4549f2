from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from playerfl.data.examples import tensor_pair
from playerfl.errors import DataError, PlayerflError
from playerfl.layers.layer_map import LayerMap
from playerfl.runs.experiment import Experiment
from playerfl.tasks.bundled.synthetic import SyntheticOptions, build_model, load_sites


def test_data_too_large_for_memory_is_refused_before_it_is_generated() -> None:
    with pytest.raises(DataError, match="this would generate 10,000,000,000 numbers; the limit is 100,000,000"):
        load_sites(SyntheticOptions(rows=1_000_000, features=1000, sites=10))
    with pytest.raises(PlayerflError, match="features"):
        Experiment.resolve({"task": "synthetic", "data": {"features": 2**63}})


def parts(shift: str, **options: Any) -> dict[str, tuple[Tensor, Tensor]]:
    made = load_sites(SyntheticOptions(shift=shift, labels="shared", rows=400, **options))  # type: ignore[arg-type]
    return {site: tensor_pair(data.train) for site, data in made.items()}


def class_shares(targets: Tensor) -> Tensor:
    return torch.bincount(targets, minlength=5) / len(targets)


@pytest.mark.parametrize(("shift", "differ"), [("none", False), ("labels", True), ("features", False), ("both", True)])
def test_a_shift_of_labels_changes_how_common_classes_are(shift: str, differ: bool) -> None:
    shares = torch.stack([class_shares(targets) for _, targets in parts(shift).values()])
    assert bool((shares.max(0).values - shares.min(0).values).max() > 0.3) is differ


@pytest.mark.parametrize(("shift", "differ"), [("none", False), ("labels", False), ("features", True), ("both", True)])
def test_a_shift_of_features_changes_their_zero_points(shift: str, differ: bool) -> None:
    means = torch.stack([inputs.mean(0) for inputs, _ in parts(shift).values()])
    assert bool((means.max(0).values - means.min(0).values).max() > 1) is differ


def test_a_stronger_shift_differs_more() -> None:
    weak, strong = (
        torch.stack([inputs.mean(0) for inputs, _ in parts("features", strength=strength).values()]).std()
        for strength in (0.5, 2.0)
    )
    assert strong > 2 * weak


def test_sites_without_a_shift_are_those_of_earlier_versions() -> None:
    assert "shift" not in SyntheticOptions().model_dump()
    (inputs, targets), *_ = parts("none").values()
    assert torch.equal(inputs, next(iter(parts("none", strength=3.0).values()))[0])
    assert len(inputs) == len(targets) == 256


def test_its_network_can_have_batch_norm_in_the_same_layers() -> None:
    plain, normed = (LayerMap.of(build_model(SyntheticOptions(norm=norm))) for norm in (False, True))
    assert plain.names == normed.names
    assert {"norm1.weight", "norm1.running_mean"} <= set(normed.entries["fc1"])
