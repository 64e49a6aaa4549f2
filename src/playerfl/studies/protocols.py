"""Protocols: named sets of the choices that decide a comparison. A study file can override each choice."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from playerfl.algorithms import ALGORITHMS
from playerfl.runs.settings_table import merged
from playerfl.tasks.task import Task

ProtocolName = Literal["2026.2", "2026.1", "authors-2024"]
Settings = Mapping[str, Any]

DECAYING = ("local", "fedavg", "fedprox", "ditto", "local_adaptation", "fedlama", "pfedla")
"""The methods whose learning rate decays in the authors' early code. The decay was meant for all, but the other methods
replace their optimiser after the scheduler has been bound to the old one."""

_PLAYER_FL = ("player_fl", "player_fl_random", "player_fl_minus_1", "player_fl_plus_1")


@dataclass(frozen=True)
class Protocol:
    """Settings for every run, for single methods and for single datasets of the paper; later ones take precedence."""

    settings: Settings = field(default_factory=dict)
    by_algorithm: Mapping[str, Settings] = field(default_factory=dict)
    by_dataset: Mapping[str, Settings] = field(default_factory=dict)
    tunes_reported: bool = True
    """Whether a rate is judged by what its runs report, or (before 2026.2) by the best common round of its runs."""
    pfedme_trains: bool = True
    """Whether pFedMe has constants with which it can train on the paper's datasets; see `pfedme_preset`."""

    def defaults(self, task: Task, algorithm: str) -> dict[str, Any]:
        """The settings for one task and algorithm, before those of the study are merged into them."""
        table = merged(self.settings, self.by_algorithm.get(algorithm, {}))
        if task.paper is not None:
            table = merged(table, self.by_dataset.get(task.paper, {}))
            if self.pfedme_trains and algorithm == "pfedme":
                table = merged({"algorithm": {"lam": 0.1}}, table)
        known = {f.name for f in dataclasses.fields(ALGORITHMS[algorithm])} if algorithm in ALGORITHMS else set()
        # Not every task has every option (say, a focal loss), nor every method every hyper-parameter.
        for key, allowed in (("data", set(task.options.model_fields)), ("algorithm", known)):
            table[key] = {name: value for name, value in table.get(key, {}).items() if name in allowed}
        training = table.get("training", {})
        if training.get("schedule") != "exponential":
            table["training"] = {name: value for name, value in training.items() if name != "schedule_factor"}
        return table


_DECAY = {"training": {"schedule": "exponential"}}


PROTOCOLS: dict[ProtocolName, Protocol] = {
    "2026.2": Protocol({"selection": "by_owner", "data": {"split": "per_run"}}),
    "2026.1": Protocol({"selection": "client_best"}, tunes_reported=False, pfedme_trains=False),
    "authors-2024": Protocol(
        {
            "selection": "by_owner",
            "early_stopping": 10,
            "training": {"optimizer": "adamw", "amsgrad": True},
            "data": {
                "split": "per_run",
                "shares": [0.7, 0.2, 0.1],
                "init": "kaiming",
                "focal_variant": "repo",
                "focal_gamma": 3.0,
            },
        },
        by_algorithm={
            **dict.fromkeys(DECAYING, _DECAY),
            **{name: {"algorithm": {"private_pull": 0.1}} for name in _PLAYER_FL},
            # In that code, tuning after the last round has no effect: the optimiser holds another model's weights.
            "local_adaptation": merged(_DECAY, {"algorithm": {"adapt_epochs": 0}}),
            "fedbabu": {"algorithm": {"finetune_epochs": 0}},
            "fedlp": {"algorithm": {"keep": 0.5}},
            "pfedme": {"algorithm": {"lam": 0.1, "inner_steps": 1}},
        },
        by_dataset={
            "CIFAR": {"training": {"schedule_factor": 0.99}},
            "ISIC": {"early_stopping": 3},
            "MIMIC": {"early_stopping": 3},
        },
    ),
}
