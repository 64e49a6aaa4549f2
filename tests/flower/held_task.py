"""A task whose sites stop within a round: a file called `hold` says after how many messages."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from playerfl.data.examples import SiteData
from playerfl.models.mlp import MLP
from playerfl.tasks.task import Task, own_task

SITES = ("north", "south", "west")
# With two private layers, three hundred times as much stays at a site as is sent.
WIDTHS = (6, 16, 2048, 3)


def _data(number: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(number)
    inputs = torch.randn(60 + 20 * number, 6, generator=generator)
    return inputs, (inputs[:, :3].argmax(1) + number) % 3


def _held() -> None:
    folder = os.environ.get("PLAYERFL_TEST_SITE")
    if folder is None or not (hold := Path(folder) / "hold").exists():
        return
    left = int(hold.read_text())
    if left:
        hold.write_text(str(left - 1))
        return
    while hold.exists():
        (Path(folder) / "held").touch()
        time.sleep(0.1)


def held() -> Task:
    plain = own_task(lambda: MLP(WIDTHS), {name: _data(number) for number, name in enumerate(SITES)})

    def load_sites(options: Any) -> Mapping[str, SiteData]:
        _held()
        return plain.load_sites(options)

    return Task(**{**vars(plain), "load_sites": load_sites})
