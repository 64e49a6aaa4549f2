"""The lists of algorithms, tasks and settings, read from the classes themselves."""

from __future__ import annotations

import dataclasses
from typing import Any, NotRequired, TypedDict

from playerfl.algorithms import ALGORITHMS, Algorithm
from playerfl.runs.experiment import Experiment, MergeOptions, TrainingOptions
from playerfl.runs.settings import meanings, settings_of
from playerfl.tasks import TASKS
from playerfl.tasks.folder import folder_task

TABLES = ("task", "algorithm", "training", "merge", "data")
"""The keys of an experiment that have a list, a section or a table of their own."""


class CatalogueRow(TypedDict):
    """One row of a list."""

    name: str
    about: str
    options: dict[str, Any]
    """Option names and their defaults."""
    meanings: dict[str, str]
    """The meaning of each option."""
    allowed: NotRequired[dict[str, str]]
    """The type of each setting, and its limits or allowed values."""


def algorithms() -> list[CatalogueRow]:
    """Every algorithm with its hyper-parameters, except those that all of them have."""
    of_every_algorithm = {field.name for field in dataclasses.fields(Algorithm)}
    return [
        {
            "name": name,
            "about": (kind.__doc__ or "").strip().splitlines()[0],
            "options": {name: value for name, value in kind().__dict__.items() if name not in of_every_algorithm},
            "meanings": meanings(kind),
        }
        for name, kind in ALGORITHMS.items()
    ]


def tasks() -> list[CatalogueRow]:
    """Every task with its data options; last, those for a folder of your own data."""
    return [
        {
            "name": name,
            "about": task.about,
            "options": {option: field.default for option, field in task.options.model_fields.items()},
            "meanings": meanings(task.options),
        }
        for name, task in (*TASKS.items(), ("FOLDER", folder_task(".")))
    ]


def settings() -> list[CatalogueRow]:
    """Every setting of an experiment file except those of an algorithm or a task."""
    return [
        {
            "name": title,
            "about": about,
            "options": {setting.name: setting.default for setting in known},
            "meanings": {setting.name: setting.meaning for setting in known},
            "allowed": {setting.name: ", ".join(filter(None, (setting.kind, setting.allowed))) for setting in known},
        }
        for title, about, known in (
            ("experiment", "the whole run", settings_of(Experiment, leave_out=TABLES)),
            ("training", "training at every site", settings_of(TrainingOptions, "training")),
            ("merge", "how uploads become one model", settings_of(MergeOptions, "merge")),
        )
    ]
