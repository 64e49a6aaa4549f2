"""The golden run: small comparisons whose bits are stored and can be reproduced in any process.

python tests/golden.py                 # digests and losses on stdout
python tests/golden.py --threads 2
python tests/golden.py --store         # after an intended change of results: make these the golden ones
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from playerfl.data.examples import SiteData, TensorExamples
from playerfl.runs.api import run_experiments
from playerfl.runs.environment import environment
from playerfl.runs.experiment import Experiment
from playerfl.runs.result import RunResult, digest_of
from playerfl.studies.run_file import GOLDEN_RUNS, RESULTS
from playerfl.tasks import TASKS
from playerfl.tasks.task import Task
from playerfl.weights import digest

STORED = Path(__file__).with_name("golden.json")
ALGORITHMS = ("local", "fedavg", "player_fl")


def _in_double(task: Task) -> Task:
    def part(examples: TensorExamples) -> TensorExamples:
        assert isinstance(examples.inputs, torch.Tensor)
        return TensorExamples(examples.inputs.double(), examples.targets)

    def load(options: Any) -> dict[str, SiteData]:
        return {
            name: SiteData(part(site.train), part(site.validation), part(site.test))  # type: ignore[arg-type]
            for name, site in task.load_sites(options).items()
        }

    return replace(task, name="own", load_sites=load, build_model=lambda options: task.build_model(options).double())


# As users run them: the plain loop on convolutions, the stacked trainer on linear layers; and one in float64, where
# training does not amplify what another CPU rounds differently.
RUNS: dict[str, Task] = {
    "digits": TASKS["digits"],
    "synthetic": TASKS["synthetic"],
    "digits in float64": _in_double(TASKS["digits"]),
}


def golden_runs(threads: int = 1) -> dict[str, dict[str, Any]]:
    """What each run produced: fingerprints of models and of everything recorded, and the test losses."""
    return {name: _found(task, threads) for name, task in RUNS.items()}


def _found(task: Task, threads: int) -> dict[str, Any]:
    table = {"task": task.name, "rounds": 2, "seed": 0, "selection": "client_best", "device": "cpu", "threads": threads}
    experiments = [Experiment.resolve({**table, "algorithm": {"name": name}}, task) for name in ALGORITHMS]
    results = run_experiments(experiments, [None] * len(experiments), task)
    return {
        "models": digest_of({f"{run.algorithm}/{site}": own for run in results for site, own in run.weights.items()}),
        "records": _records(results),
        "losses": {result.algorithm: _losses(result) for result in results},
    }


def _records(results: list[RunResult]) -> str:
    # Which rounds had a common model follows from the algorithm, and was not recorded when these were stored.
    layers = [{key: v for key, v in result.layers.items() if key != "common_rounds"} for result in results]
    records = zip(results, layers, strict=True)
    return digest_of_json([[result.score_rows, result.traffic_rows, known] for result, known in records])


def digest_of_json(content: Any) -> str:
    return hashlib.blake2b(json.dumps(content, sort_keys=True).encode(), digest_size=16).hexdigest()


def _losses(result: RunResult) -> list[float]:
    return [float(row[5]) for row in result.score_rows if row[3:5] == ("test", "loss")]


def arithmetic() -> str:
    """A fingerprint of this machine's kernels: torch alone, in the shapes of the golden runs.

    Another CPU, build of torch or number of threads adds numbers in another order; this then differs, and the digests
    may differ too.
    """
    found = {}
    for kind in (torch.float32, torch.float64):
        for rows in (16, 200):
            for name, gradient in _gradients(rows, kind).items():
                found[f"{name}/{rows}/{kind}"] = gradient
    return digest(found)


def _gradients(rows: int, kind: torch.dtype) -> dict[str, torch.Tensor]:
    """Gradients of a convolutional network and of stacked products, from numbers that every CPU rounds alike."""

    def numbers(*shape: int) -> torch.Tensor:
        count = torch.Size(shape).numel()
        return ((torch.arange(count) * 7919 % 1009).to(kind) / 1009 - 0.5).reshape(shape)

    shapes = {
        "conv1": (16, 1, 3, 3), "conv2": (32, 16, 3, 3), "conv3": (64, 32, 3, 3), "fc1": (32, 64), "fc2": (10, 32),
        "stacked": (4, 64, 64),
    }  # fmt: skip
    weights = {name: numbers(*shape).requires_grad_() for name, shape in shapes.items()}
    x = numbers(rows, 1, 8, 8)
    for name in ("conv1", "conv2", "conv3"):
        x = nn.functional.conv2d(x, weights[name], padding=1).relu()
        x = x if name == "conv3" else nn.functional.max_pool2d(x, 2)
    x = nn.functional.linear(nn.functional.linear(x.mean((2, 3)), weights["fc1"]).relu(), weights["fc2"])
    stacked = torch.bmm(numbers(4, rows, 64), weights["stacked"]).logsumexp(2).mean()
    (nn.functional.cross_entropy(x, torch.arange(rows) % 10) + stacked).backward()  # type: ignore[no-untyped-call]
    return {name: weight.grad for name, weight in weights.items() if weight.grad is not None}


def everything(threads: int) -> dict[str, Any]:
    torch.set_num_threads(threads)
    made_with = environment("cpu", threads)
    kept = ("torch", "machine", "cpu_capability", "threads")
    return {
        "results_version": RESULTS,
        "made_with": {key: made_with[key] for key in kept},
        "arithmetic": arithmetic(),
        "runs": golden_runs(threads),
    }


def store(found: dict[str, Any], stored: Path = STORED) -> None:
    """Makes these the golden runs; refuses if they are not those of the newest results version."""
    runs = digest_of_json(found["runs"])
    if GOLDEN_RUNS[RESULTS][0] != runs:
        sys.exit(
            f"not stored: these are not the golden runs of results version {RESULTS}. If results were meant to change, "
            f'add  {RESULTS + 1}: ("{runs}", "")  to GOLDEN_RUNS in src/playerfl/studies/run_file.py, then store '
            "again: otherwise studies would mix old and new runs"
        )
    stored.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--store", action="store_true")
    given = parser.parse_args()
    everything_found = everything(given.threads)
    if given.store:
        store(everything_found)
    else:
        print(json.dumps(everything_found, indent=1))  # noqa: T201
