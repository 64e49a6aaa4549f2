"""The models of benchmarks/deployments.py, as sites load them: FILE.py:NAME. Little data, so that messages dominate."""

from __future__ import annotations

import torch

from playerfl.models.mlp import MLP
from playerfl.seeding import generator_for
from playerfl.tasks.task import Task, own_task

SITES = 8
INPUTS, ROWS = 20, 40
SHAPES = {"small": (2, 32), "medium": (2, 1_000), "large": (2, 3_160), "many": (60, 32)}
"""Hidden layers and their width: 1,800, a million and ten million parameters, and 124 tensors of 60,000 parameters."""


def _task(layers: int, width: int) -> Task:
    def made_up(site: int) -> tuple[torch.Tensor, torch.Tensor]:
        inputs = torch.randn(ROWS, INPUTS, generator=generator_for(site, "inputs"))
        return inputs, (inputs[:, 0] > 0).long()

    sites = {f"site-{i}": made_up(i) for i in range(SITES)}
    return own_task(lambda: MLP((INPUTS, *[width] * layers, 2)), sites)


small, medium, large, many = (_task(*shape) for shape in SHAPES.values())
