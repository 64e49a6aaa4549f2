"""A task whose sites stop within a round: a file called `hold` says after how many responses."""

from __future__ import annotations

import os
import time
from pathlib import Path

import torch

from playerfl.learning.losses import cross_entropy
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
    """Waits as long as there is a file `hold`, if the site has responded as often as it says."""
    folder = os.environ.get("PLAYERFL_TEST_SITE")
    if folder is None or not (hold := Path(folder) / "hold").exists():
        return
    if responses(Path(folder)) < int(hold.read_text()):
        return
    while hold.exists():
        (Path(folder) / "held").touch()
        time.sleep(0.1)


def responses(folder: Path) -> int:
    """How often a site has responded, by its log."""
    log = folder / "site.log"
    return log.read_text().count(": done") if log.exists() else 0


def _loss(output: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    _held()
    return cross_entropy(output, targets)


def held() -> Task:
    return own_task(lambda: MLP(WIDTHS), {name: _data(number) for number, name in enumerate(SITES)}, loss=_loss)
