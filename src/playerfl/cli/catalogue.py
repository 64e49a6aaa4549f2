"""What there is to choose from, for people and machines: read off the algorithms and tasks themselves."""

from __future__ import annotations

from typing import Any

from playerfl.algorithms import ALGORITHMS
from playerfl.runs.experiment import Experiment, TrainingOptions
from playerfl.tasks import TASKS
from playerfl.tasks.folder import folder_task


def algorithms() -> list[dict[str, Any]]:
    """Name, idea and hyper-parameters with their defaults."""
    return [
        {
            "name": name,
            "about": (kind.__doc__ or "").strip().splitlines()[0],
            "options": dict(kind().__dict__),
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


def settings() -> list[dict[str, Any]]:
    """Every setting of an experiment file but those of an algorithm or a task, with its default."""
    found = []
    for title, schema in (("experiment", Experiment), ("training", TrainingOptions)):
        own = {
            name: field.get_default(call_default_factory=True)
            for name, field in schema.model_fields.items()
            if name not in ("task", "algorithm", "training", "data")
        }
        prefix = "" if title == "experiment" else f"{title}."
        about = "of the whole run" if title == "experiment" else "how every site trains"
        found.append({"name": title, "about": about, "options": {prefix + name: value for name, value in own.items()}})
    return found
