"""What the PLayer-FL paper prints, as facts: tables, learning rates, grids, cuts. `facts.json` says where from."""

from __future__ import annotations

import json
from functools import cache
from importlib.resources import files
from typing import Any

ALGORITHM_NAMES = {
    "local": "Local",
    "fedavg": "FedAvg",
    "fedprox": "FedProx",
    "pfedme": "pFedMe",
    "ditto": "Ditto",
    "local_adaptation": "LocalAdaptation",
    "fedbabu": "FedBABU",
    "fedlp": "FedLP",
    "fedlama": "FedLAMA",
    "pfedla": "pFedLA",
    "player_fl": "PLayer-FL",
    "player_fl_random": "PLayer-FL-Random",
    "player_fl_minus_1": "PLayer-FL-1",
    "player_fl_plus_1": "PLayer-FL+1",
}


@cache
def facts() -> dict[str, Any]:
    """All printed numbers, and what was seen in public versions of the authors' repository, kept apart."""
    content: dict[str, Any] = json.loads((files(__package__) / "facts.json").read_text(encoding="utf-8"))
    return content


def learning_rates(dataset: str) -> dict[str, float]:
    """The rate of each algorithm on one of the paper's datasets, by our names; printed ones before observed ones.

    >>> learning_rates("Heart")["fedavg"]
    0.1
    """
    printed = facts()["learning_rates"]
    observed = facts()["not_printed_but_observed_in_public_repository_history"]["learning_rates"]
    found = {ours: {**observed.get(theirs, {}), **printed.get(theirs, {})} for ours, theirs in ALGORITHM_NAMES.items()}
    return {ours: rates[dataset] for ours, rates in found.items() if dataset in rates}


def protocol(dataset: str) -> dict[str, Any]:
    """Rounds, runs and learning-rate grid as printed, and the printed cut.

    >>> protocol("Heart")["rounds"], protocol("Heart")["cut"]
    (50, 2)
    """
    training = facts()["training"][dataset]
    return {
        "rounds": training["epochs"],
        "runs": training["runs"],
        "learning_rate_grid": training["lr_grid"],
        "cut": facts()["transition_points"][dataset]["split_index_p"],
    }
