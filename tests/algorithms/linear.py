"""A problem small enough for pencil and paper: two linear layers without bias, squared error, float64."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from playerfl.tasks.task import Task, own_task

INPUTS, HIDDEN, OUTPUTS = 3, 4, 2
ROWS = {"large": 9, "small": 5}
FULL_BATCH: dict[str, Any] = {
    "training.optimizer": "sgd",
    "training.learning_rate": 0.1,
    "training.batch_size": 1000,
    "data.accept_small_sites": True,
}


def linear_model() -> nn.Module:
    return nn.Sequential(
        nn.Linear(INPUTS, HIDDEN, bias=False, dtype=torch.float64),
        nn.Linear(HIDDEN, OUTPUTS, bias=False, dtype=torch.float64),
    )


def squared_error(output: Tensor, targets: Tensor) -> Tensor:
    return (output - targets).square().mean(1)


def data() -> dict[str, tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(11)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    return {site: (normal(rows, INPUTS), normal(rows, OUTPUTS)) for site, rows in ROWS.items()}


def linear_task() -> Task:
    """All rows of a site are its training part, so that sums are over rows a test can see."""
    sites = {site: {"train": rows, "validation": rows, "test": rows} for site, rows in data().items()}
    return own_task(linear_model, sites, loss=squared_error, metrics={})
