"""What the PLayer-FL paper prints, as facts: tables, learning rates, grids, cuts. `facts.json` gives the sources."""

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


# A method for which the paper gives no rate uses that of the closest method that has one.
_RATE_OF = {
    "fedper": "fedavg",
    "fedrep": "fedavg",
    **dict.fromkeys(
        ("scaffold", "fedbn", "lg_fedavg", "apfl", "fedala", "feddbe", "fedcac", "fedselect"),
        "fedavg",
    ),
    "player_fl_random": "player_fl",
    "player_fl_fedprox": "player_fl",
    "player_fl_ditto": "player_fl",
    "player_fl_fedrep": "player_fl",
}


@cache
def facts() -> dict[str, Any]:
    """All printed numbers and, under separate keys, values seen in public versions of the authors' repository."""
    content: dict[str, Any] = json.loads((files(__package__) / "facts.json").read_text(encoding="utf-8"))
    return content


def table_algorithms() -> list[str]:
    """The methods of the paper's tables, by our names.

    >>> len(table_algorithms()), "player_fl_random" in table_algorithms(), "player_fl_plus_1" in table_algorithms()
    (12, True, False)
    """
    rows = facts()["tables"]["f1"]["rows"]
    return [ours for ours, theirs in ALGORITHM_NAMES.items() if theirs in rows]


def learning_rates(dataset: str) -> dict[str, float]:
    """The rate of each algorithm on one of the paper's datasets, by our names.

    Printed rates take precedence over those seen in public code; a method with neither takes the rate of the closest
    method.

    >>> learning_rates("Heart")["fedavg"], learning_rates("Heart")["fedper"]
    (0.1, 0.1)
    """
    printed = facts()["learning_rates"]
    observed = facts()["not_printed_but_observed_in_public_repository_history"]["learning_rates"]
    rates = {ours: {**observed.get(theirs, {}), **printed.get(theirs, {})} for ours, theirs in ALGORITHM_NAMES.items()}
    known = {name: by_dataset[dataset] for name, by_dataset in rates.items() if dataset in by_dataset}
    return {**{name: known[closest] for name, closest in _RATE_OF.items()}, **known}


def focal(dataset: str) -> tuple[float, tuple[float, ...]]:
    """γ and α of the focal loss on a dataset, as seen in public code; the paper prints neither.

    >>> focal("MIMIC")[0]
    1
    """
    observed = facts()["not_printed_but_observed_in_public_repository_history"]["focal"][dataset]
    return observed["gamma"], tuple(observed["alpha"])


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
