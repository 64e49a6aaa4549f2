"""What there is to choose from, for people and machines: read off the algorithms and tasks themselves."""

from __future__ import annotations

from typing import Any

from playerfl.algorithms import ALGORITHMS
from playerfl.experiment import algorithm_options
from playerfl.tasks import TASKS
from playerfl.tasks.folder import folder_task


def algorithms() -> list[dict[str, Any]]:
    """Name, idea and hyper-parameters with their defaults."""
    return [
        {
            "name": name,
            "about": (kind.__doc__ or "").strip().splitlines()[0],
            "options": {option: default for option, (_, default) in algorithm_options(kind).items()},
        }
        for name, kind in ALGORITHMS.items()
    ]


def tasks() -> list[dict[str, Any]]:
    """Name, contents and data options with their defaults; last, what a folder of your own is read with."""
    return [
        {
            "name": name,
            "about": task.about,
            "options": {option: field.default for option, field in task.options.model_fields.items()},
        }
        for name, task in (*TASKS.items(), ("FOLDER", folder_task(".")))
    ]
