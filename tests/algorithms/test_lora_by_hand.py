"""Methods for low-rank adapters against a second computation in numpy, written from their equations alone.

Two sites of 9 and 5 rows, ŷ = H·(W + B·A)·x with W frozen and H the head, mean squared error, one full batch per epoch,
gradient descent, three rounds.
"""

from __future__ import annotations

from collections.abc import Collection

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from algorithms.linear import FULL_BATCH, INPUTS, OUTPUTS, data, squared_error
from algorithms.recorder import Watched, watch
from algorithms.test_by_hand import DATA, RATE, ROUNDS, SHARE, Array
from federations import build
from playerfl.algorithms import Algorithm, FedAvg, FedPer, FedSALoRA, FFALoRA
from playerfl.tasks.task import own_task

RANK, WIDTH = 2, 3
A, B, HEAD = "0.lora_A.weight", "0.lora_B.weight", "1.weight"
Model = dict[str, Array]
trainers = pytest.mark.parametrize("trainer", ["loop", "stacked"])


class Adapted(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.base_layer = nn.Linear(INPUTS, WIDTH, bias=False, dtype=torch.float64).requires_grad_(False)
        self.lora_A = nn.Linear(INPUTS, RANK, bias=False, dtype=torch.float64)
        self.lora_B = nn.Linear(RANK, WIDTH, bias=False, dtype=torch.float64)
        nn.init.zeros_(self.lora_B.weight)

    def forward(self, x: Tensor) -> Tensor:
        adapted: Tensor = self.base_layer(x) + self.lora_B(self.lora_A(x))
        return adapted


def federated(algorithm: Algorithm, trainer: str, epochs: int) -> tuple[Watched, Model]:
    """The run, and the model it started from."""
    sites = {site: {"train": rows, "validation": rows, "test": rows} for site, rows in data().items()}

    def model() -> nn.Module:
        return nn.Sequential(Adapted(), nn.Linear(WIDTH, OUTPUTS, bias=False, dtype=torch.float64))

    task = own_task(model, sites, loss=squared_error, metrics={})
    settings = {**FULL_BATCH, "trainer": trainer, "training.local_epochs": epochs}
    watched = watch(build(algorithm, task, rounds=ROUNDS, **settings))
    assert watched.run.setup.learner.trainer == trainer
    return watched, {name: entry.numpy() for name, entry in watched.run.setup.initial.items()}


def trained(model: Model, site: str, epochs: int, *, fixed: Collection[str] = ()) -> Model:
    x, y = DATA[site]
    for _ in range(epochs):
        a, b, head = model[A], model[B], model[HEAD]
        adapted = x @ (model["0.base_layer.weight"] + b @ a).T
        error = 2 * (adapted @ head.T - y) / y.size
        back = error @ head
        slopes = {A: b.T @ back.T @ x, B: back.T @ (x @ a.T), HEAD: error.T @ adapted}
        model = {n: w - RATE * slopes[n] if n in slopes and n not in fixed else w for n, w in model.items()}
    return model


def mean(models: dict[str, Model], name: str) -> Array:
    return np.sum([SHARE[site] * models[site][name] for site in models], axis=0)


def straight_line(start: Model, epochs: int, shared: Collection[str], fixed: Collection[str] = ()) -> dict[str, Model]:
    """Every site's model after three rounds in which these entries are averaged."""
    models = dict.fromkeys(DATA, start)
    for _ in range(ROUNDS):
        models = {site: trained(model, site, epochs, fixed=fixed) for site, model in models.items()}
        models = {site: {**model, **{n: mean(models, n) for n in shared}} for site, model in models.items()}
    return models


def assert_reported(watched: Watched, expected: dict[str, Model]) -> None:
    for site, model in expected.items():
        for name, weight in model.items():
            found = watched.result.weights[site][name].numpy()
            np.testing.assert_allclose(found, weight, rtol=0, atol=1e-9, err_msg=f"{site}, {name}")


def sent(watched: Watched, site: str) -> set[frozenset[str]]:
    return {frozenset(fit.up) for fit in watched.fits(site)}


@trainers
@pytest.mark.parametrize("epochs", [1, 3])
def test_fedsa_lora_averages_a_alone(epochs: int, trainer: str) -> None:
    watched, start = federated(FedSALoRA(), trainer, epochs)
    expected = straight_line(start, epochs, shared=[A])
    assert not np.allclose(*(expected[site][B] for site in DATA))
    assert_reported(watched, expected)
    assert all(sent(watched, site) == {frozenset([A])} for site in DATA)


@trainers
@pytest.mark.parametrize("epochs", [1, 3])
def test_ffa_lora_averages_b_under_the_a_it_started_with(epochs: int, trainer: str) -> None:
    watched, start = federated(FFALoRA(), trainer, epochs)
    expected = straight_line(start, epochs, shared=[B, HEAD], fixed=[A])
    assert_reported(watched, expected)
    for site in DATA:
        np.testing.assert_array_equal(watched.result.weights[site][A].numpy(), start[A])
        assert sent(watched, site) == {frozenset([B, HEAD])}
    # The product of the averages is the average of the products, which averaging A as well does not give.
    last = {site: trained(expected[site], site, epochs, fixed=[A]) for site in DATA}
    product = np.sum([SHARE[site] * last[site][B] @ last[site][A] for site in DATA], axis=0)
    np.testing.assert_allclose(mean(last, B) @ start[A], product, atol=1e-12)


@trainers
def test_fedavg_over_adapters_needs_no_method_of_its_own(trainer: str) -> None:
    watched, start = federated(FedAvg(), trainer, 1)
    assert_reported(watched, straight_line(start, 1, shared=[A, B, HEAD]))
    assert all(sent(watched, site) == {frozenset([A, B, HEAD])} for site in DATA)


@trainers
def test_a_cut_over_adapters_keeps_the_head(trainer: str) -> None:
    watched, start = federated(FedPer(1), trainer, 1)
    assert_reported(watched, straight_line(start, 1, shared=[A, B]))
    assert all(sent(watched, site) == {frozenset([A, B])} for site in DATA)
