"""The threshold what-if: the stored layer scores of every site and run, from which a page can cut again."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from playerfl.layers.sensitivity import Profile
from playerfl.report.compute.grid import Grid
from playerfl.runs.result import RunResult

# Layer scores a page may carry, all tasks together; each takes some twenty bytes.
_MOST_SCORES = 60_000
BYTES_PER_PARAMETER = 4


@dataclass(frozen=True)
class Measured:
    """Layer scores of one task: one run a seed."""

    task: str
    algorithm: str
    layers: tuple[str, ...]
    parameters: tuple[int, ...]
    runs: dict[int, dict[str, list[float]]]
    """Seed, then site, then s_l of every layer."""
    num_examples: dict[int, dict[str, int]]
    settings: dict[str, Any]
    """What the runs decided with: rule, threshold and the rest, as `choose_cut` takes them."""
    cuts: dict[int, int]
    """The cut each run used."""
    left_out: int
    """Runs whose scores did not fit into a page."""
    printed_cut: int | None


def measured(grid: Grid) -> list[Measured]:
    """For each task, the profiles of PLayer-FL, or else of the first algorithm that measured any."""
    found = []
    for task in grid.tasks:
        names = [name for name in grid.algorithms if any(_profiles(r) for r in grid.results(task, name).values())]
        names.sort(key=lambda name: grid.plain_name(name) != "player_fl")
        if names:
            found.append(_measured(grid, task, names[0], _MOST_SCORES // len(grid.tasks)))
    return found


def _measured(grid: Grid, task: str, algorithm: str, most: int) -> Measured:
    from playerfl.paper import facts as paper

    results = {seed: r for seed, r in sorted(grid.results(task, algorithm).items()) if _profiles(r)}
    first = next(iter(results.values()))
    layers = tuple(str(layer["name"]) for layer in first.layers["layers"])
    fitting = max(1, most // (len(first.layers["profiles"]) * len(layers)))
    kept = dict(list(results.items())[:fitting])
    dataset = grid.printed_name(task)
    return Measured(
        task=task,
        algorithm=algorithm,
        layers=layers,
        parameters=tuple(int(layer["parameters"]) for layer in first.layers["layers"]),
        runs={
            seed: {site: list(profile.importance.values()) for site, profile in _profiles(result).items()}
            for seed, result in kept.items()
        },
        num_examples={
            seed: {site: profile.num_examples for site, profile in _profiles(result).items()}
            for seed, result in kept.items()
        },
        settings=_settings(first),
        cuts={seed: result.cut.index for seed, result in results.items() if result.cut is not None},
        left_out=len(results) - len(kept),
        printed_cut=paper.protocol(dataset)["cut"] if dataset else None,
    )


def _profiles(result: RunResult) -> dict[str, Profile]:
    return {
        str(site): Profile(
            layers=tuple(stored["layers"]),
            batches=tuple(tuple(row) for row in stored["batches"]),
            batch_sizes=tuple(stored["batch_sizes"]),
            num_examples=int(stored["num_examples"]),
            weight_batches=bool(stored["weight_batches"]),
        )
        for site, stored in sorted(result.layers.get("profiles", {}).items())
    }


def _settings(result: RunResult) -> dict[str, Any]:
    """As the algorithm was set; a value that is not there is the default of `choose_cut`."""
    own = result.experiment["algorithm"]
    return {
        "rule": own.get("rule", "layer_ratio"),
        "threshold": own.get("threshold"),
        "on_no_transition": own.get("on_no_transition", "all"),
        "fixed": own.get("fixed_cut"),
        "client_weight": own.get("client_weight", "uniform"),
        "normalise": own.get("normalise", "none"),
        "reduce": own.get("reduce", "mean"),
    }
