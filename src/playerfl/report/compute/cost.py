"""What an algorithm costs: bytes, exposed parameters, time."""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import median

from playerfl.layers.adapters import factors_a
from playerfl.report.compute.grid import RunGrid
from playerfl.runs.result import RunResult


@dataclass(frozen=True)
class Cost:
    """One algorithm on one task: medians over runs."""

    task: str
    algorithm: str
    runs: int
    rounds: int
    down_per_round: float
    """Bytes to all sites, averaged over rounds, including the first message with the whole model."""
    up_per_round: float
    down: float
    up: float
    never_leaves: float | None
    """Share of the model's parameters that no site ever sends; None where the layers are not recorded."""
    full_fine_tuning: int | None
    """What all sites would send per round if the whole model were trained; None if all of it is."""
    seconds: float
    side_by_side: int
    """How many runs shared the process, and so the wall time."""


def costs(grid: RunGrid) -> list[Cost]:
    """One row for each algorithm on each task."""
    return [_cost(task, algorithm, list(results.values())) for task, algorithm, results in grid.cells()]


def _cost(task: str, algorithm: str, results: list[RunResult]) -> Cost:
    rounds = int(results[0].experiment["rounds"])
    down = median(sum(int(row[3]) for row in result.traffic_rows) for result in results)
    up = median(sum(int(row[4]) for row in result.traffic_rows) for result in results)
    shares = [share for share in map(never_leaves, results) if share is not None]
    of_one_site = results[0].full_fine_tuning_bytes
    return Cost(
        task=task,
        algorithm=algorithm,
        runs=len(results),
        rounds=rounds,
        down_per_round=down / rounds,
        up_per_round=up / rounds,
        down=down,
        up=up,
        never_leaves=median(shares) if shares else None,
        full_fine_tuning=None if of_one_site is None else of_one_site * len(results[0].sites),
        seconds=median(float(result.timing.get("wall_seconds", 0.0)) for result in results),
        side_by_side=max(int(result.timing.get("runs_side_by_side", 1)) for result in results),
    )


def sends_private_layers(result: RunResult) -> bool:
    """Whether sites also send their private layers: a `private_pull` above 0 needs the average of them."""
    return bool(result.experiment["algorithm"].get("private_pull"))


def never_leaves(result: RunResult) -> float | None:
    """The share of parameters that stay at every site for the whole run."""
    sizes = [int(layer["parameters"]) for layer in result.layers.get("layers", ())]
    if not sum(sizes):
        return None
    if sends_private_layers(result):
        return 0.0
    if all(int(row[4]) == 0 for row in result.traffic_rows):
        return 1.0
    if "shared_layers" in result.experiment["algorithm"]:
        return 1.0 - sum(sizes[len(sizes) - int(result.experiment["algorithm"]["shared_layers"]) :]) / sum(sizes)
    if result.algorithm in ("fedsa_lora", "ffa_lora") and (matrices := factors_a(result.data["model"])):
        factors = sum(math.prod(result.data["model"][entry]) for entry in matrices) / sum(sizes)
        return 1.0 - factors if result.algorithm == "fedsa_lora" else factors
    federated = len(sizes)
    if result.cut is not None:
        federated = result.cut.index
    elif "personal_layers" in result.experiment["algorithm"]:
        federated = len(sizes) - int(result.experiment["algorithm"]["personal_layers"])
    return 1.0 - sum(sizes[:federated]) / sum(sizes)
