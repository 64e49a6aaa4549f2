"""A user's own model and data through the same function as the bundled ones."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import playerfl
from federations import CLASSES, FEATURES, federate, mlp, sites, task
from playerfl.errors import PlayerflError
from playerfl.tasks.task import own_task


def thirds(data: tuple[Tensor, Tensor]) -> dict[str, TensorDataset]:
    x, y = data
    return {
        "train": TensorDataset(x[:20], y[:20]),
        "validation": TensorDataset(x[20:26], y[20:26]),
        "test": TensorDataset(x[26:], y[26:]),
    }


def loaders(data: tuple[Tensor, Tensor], generator: torch.Generator | None = None) -> dict[str, Any]:
    return {
        part: DataLoader(held, batch_size=5, shuffle=part == "train", generator=generator)
        for part, held in thirds(data).items()
    }


def run(own: Any, algorithm: str = "player_fl", **settings: Any) -> playerfl.RunResult:
    return playerfl.run(own, algorithm, rounds=2, settings={"training.batch_size": 8, **settings})


def test_tensors_datasets_and_loaders_all_go_through() -> None:
    own = sites()
    as_tensors = run(own_task(mlp, list(own.values())))
    as_datasets = run(own_task(mlp, [TensorDataset(*data) for data in own.values()]))
    assert as_tensors.score_rows == as_datasets.score_rows
    as_loaders = run(own_task(mlp, {site: loaders(data) for site, data in own.items()}))
    assert as_loaders.sites == ["site-0", "site-1", "site-2"]


@pytest.mark.parametrize("with_generator", [False, True])
def test_loaders_shuffle_by_the_runs_seed(with_generator: bool) -> None:
    def once() -> playerfl.RunResult:
        generator = torch.Generator().manual_seed(3) if with_generator else None
        return run(own_task(mlp, {site: loaders(data, generator) for site, data in sites().items()}))

    assert once().score_rows == once().score_rows


def test_the_callers_random_state_is_left_alone() -> None:
    torch.manual_seed(1)
    expected = torch.rand(3)
    torch.manual_seed(1)
    federate("player_fl", task("dropout"))
    assert torch.equal(torch.rand(3), expected)


class TwoInputs(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = nn.Linear(FEATURES, 8), nn.Linear(FEATURES, 8)
        self.head = nn.Linear(16, CLASSES)

    def forward(self, left: Tensor, right: Tensor) -> dict[str, Tensor]:
        return {"logits": self.head(torch.cat([self.left(left), self.right(right)], 1).relu())}


@pytest.mark.parametrize("kind", [tuple, dict])
def test_models_with_several_inputs_and_named_outputs(kind: type) -> None:
    def inputs(x: Tensor) -> Any:
        return (x, -x) if kind is tuple else {"left": x, "right": -x}

    own = own_task(TwoInputs, {site: (inputs(x), y) for site, (x, y) in sites().items()})
    assert set(run(own).model("site-0")(*[torch.zeros(1, FEATURES)] * 2)) == {"logits"}


def test_a_regression_with_its_own_loss() -> None:
    def squared(output: Tensor, targets: Tensor) -> Tensor:
        return (output.squeeze(1) - targets).square().mean()

    data = {site: (x, x[:, 0].clone()) for site, (x, _) in sites().items()}
    own = own_task(lambda: nn.Sequential(nn.Linear(FEATURES, 4), nn.Linear(4, 1)), data, loss=squared, metrics={})
    result = run(own)
    assert set(result.site_scores["site-0"]) == {"loss"}


def broken(change: Any) -> Any:
    x, y = sites()["site-1"]
    return {**sites(), "site-1": change(x.clone(), y.clone())}


def with_nan(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    x[3, 1] = float("nan")
    return x, y


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: own_task(mlp, broken(with_nan)), "site-1 has NaN or infinite values in 1 of its"),
        (lambda: own_task(mlp, broken(lambda x, y: (x, y * 0))), "site-1 has only class 0 in its training part"),
        (lambda: own_task(mlp, broken(lambda x, y: (x[:9], y[:9]))), "fewer than training.batch_size 8"),
        (lambda: own_task(mlp, broken(lambda x, y: (x[:2], y[:2]))), "site-1: a site needs at least 3 examples"),
        (lambda: own_task(mlp, broken(lambda x, y: (x[:0], y[:0]))), "site-1 is empty"),
        (lambda: own_task(mlp, broken(lambda x, y: (x, y[:5]))), "the same number of rows, not [5, 57]"),
        (lambda: own_task(mlp, {}), "there are no sites"),
        (lambda: own_task(lambda: nn.Linear(FEATURES, 2), sites()), "but the model has 2 outputs"),
        (lambda: own_task(lambda: nn.Linear(FEATURES + 1, 3), sites()), "the model cannot read the sites' inputs"),
        (lambda: own_task(lambda: nn.Flatten(), sites()), "has no parameters"),
        (
            lambda: own_task(mlp, broken(lambda x, y: (x, y.float()))),
            "they must be class numbers: integers, one per row",
        ),
        (lambda: own_task(mlp, broken(lambda x, y: "here")), "cannot read str"),
        (lambda: own_task(mlp, {"a": DataLoader(TensorDataset(*sites()["site-0"]))}), "a DataLoader cannot be split"),
    ],
)
def test_unusable_data_is_refused_with_the_site_and_the_remedy(make: Any, sentence: str) -> None:
    with pytest.raises(PlayerflError) as caught:
        run(make())
    assert sentence in str(caught.value)
    assert "\n" not in str(caught.value)


def test_small_sites_may_be_accepted() -> None:
    own = own_task(mlp, broken(lambda x, y: (x[:9], y[:9] * 0)))
    assert run(own, **{"data.accept_small_sites": True}).sites == ["site-0", "site-1", "site-2"]


def test_an_unknown_site_is_named() -> None:
    with pytest.raises(PlayerflError, match="unknown site 'site-9'; did you mean"):
        federate("local", rounds=1).model("site-9")
