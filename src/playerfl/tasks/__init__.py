"""Tasks: datasets with their models, by name. `load.py` and `named_models.py` resolve what a user names."""

from __future__ import annotations

from playerfl.tasks.bundled import (
    cifar10,
    digits,
    emnist,
    fashion_mnist,
    heart,
    isic2019,
    mimic3,
    sent140,
    synthetic,
    tweets,
)
from playerfl.tasks.task import Task, own_task

_MODULES = (digits, synthetic, fashion_mnist, emnist, cifar10, isic2019, heart, sent140, mimic3, tweets)
TASKS: dict[str, Task] = {module.TASK.name: module.TASK for module in _MODULES}

__all__ = ["TASKS", "Task", "own_task"]
