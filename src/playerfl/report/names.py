"""What tasks and methods are called in a report; runs that differ in settings get different names."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from pathlib import Path
from typing import Any

from playerfl.paper import facts as paper
from playerfl.runs.result import RunResult

# Settings that define the task. The rest (learning rate, hyper-parameters) belongs to the algorithm.
_OF_THE_TASK = ("task", "data", "rounds", "participation", "eval_point", "selection", "unseen", "unseen_epochs")
_OTHER_NAMES = {
    "fedper": "FedPer", "fedrep": "FedRep", "scaffold": "SCAFFOLD", "fedbn": "FedBN", "lg_fedavg": "LG-FedAvg",
    "apfl": "APFL", "fedala": "FedALA", "feddbe": "FedDBE", "fedcac": "FedCAC", "fedselect": "FedSelect",
    "fedsa_lora": "FedSA-LoRA", "ffa_lora": "FFA-LoRA", "player_fl_fedprox": "PLayer-FL + FedProx",
    "player_fl_ditto": "PLayer-FL + Ditto", "player_fl_fedrep": "PLayer-FL + FedRep",
}  # fmt: skip
"""Of methods that the paper does not compare."""
# Settings that may differ between runs of one algorithm.
_OF_THE_RUN = ("seed", "device", "threads", "confusions")


def task_name(task: str) -> str:
    """A task's name in a report: only the last part of a folder or FILE.py:NAME, so that no private path is shown.

    >>> task_name("/home/someone/hospitals")
    'hospitals'
    """
    return Path(task).name or task


def method_name(algorithm: str) -> str:
    """An algorithm's name in the paper, or else in the literature.

    >>> method_name("player_fl"), method_name("player_fl_ditto"), method_name("my_own")
    ('PLayer-FL', 'PLayer-FL + Ditto', 'my_own')
    """
    return {**_OTHER_NAMES, **paper.ALGORITHM_NAMES}.get(algorithm, algorithm)


def task_labels(results: Sequence[RunResult]) -> list[str]:
    """The name of each result's task, with the settings in which tasks of that name differ."""
    tasks = {str(result.experiment["task"]) for result in results}
    places = {task: shortest_path(task, tasks) for task in tasks}
    return _labels(
        results,
        lambda r: task_name(str(r.experiment["task"])),
        lambda r: _flat({k: r.experiment.get(k) for k in _OF_THE_TASK} | {"task": places[str(r.experiment["task"])]}),
    )


def shortest_path(path: str, others: Collection[str]) -> str:
    """As much of the end of a path as tells it apart from the others, so that no more of a private path is shown.

    >>> shortest_path("/home/someone/a/hospitals", ["/home/someone/b/hospitals", "digits"])
    'a/hospitals'
    """
    parts = {Path(other).parts for other in others if other != path}
    own = Path(path).parts
    ends = (own[-count:] for count in range(1, len(own)))
    return str(Path(*next((end for end in ends if not any(one[-len(end) :] == end for one in parts)), own)))


def method_labels(results: Sequence[RunResult]) -> list[str]:
    """The name of each result's method, with the settings in which methods of that name differ; all on one task."""
    return _labels(results, lambda r: method_name(r.algorithm), _algorithm_settings)


def _algorithm_settings(result: RunResult) -> dict[str, Hashable]:
    left_out = {*_OF_THE_TASK, *_OF_THE_RUN}
    return _flat({key: value for key, value in result.experiment.items() if key not in left_out})


def _labels(
    results: Sequence[RunResult],
    name_of: Callable[[RunResult], str],
    settings_of: Callable[[RunResult], Mapping[str, Hashable]],
) -> list[str]:
    """A name for each result; results of the same name that differ in settings get those of them added that are set."""
    groups: dict[str, list[Mapping[str, Hashable]]] = {}
    named = [(name_of(result), settings_of(result)) for result in results]
    for name, settings in named:
        groups.setdefault(name, []).append(settings)
    varying = {
        name: [
            key
            for key in sorted({key for settings in group for key in settings})
            if len({settings.get(key) for settings in group}) > 1
        ]
        for name, group in groups.items()
    }
    labels = []
    for name, settings in named:
        given = [(key, settings[key]) for key in varying[name] if settings.get(key) is not None]
        extra = ", ".join(f"{key.rpartition('.')[2]}={_plain(value)}" for key, value in given)
        labels.append(f"{name} ({extra})" if extra else name)
    return labels


def _plain(value: Hashable) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _flat(table: Mapping[str, Any], prefix: str = "") -> dict[str, Hashable]:
    """Settings by dotted name.

    >>> _flat({"training": {"learning_rate": 0.1}, "rounds": 3})
    {'training.learning_rate': 0.1, 'rounds': 3}
    """
    flat: dict[str, Hashable] = {}
    for key, value in table.items():
        if isinstance(value, Mapping):
            flat |= _flat(value, f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = tuple(value) if isinstance(value, list) else value
    return flat
