"""The golden run: small comparisons whose bits are stored, to be made again in any process.

python tests/golden.py                 # digests and losses on stdout
python tests/golden.py --threads 2
python tests/golden.py --store         # after a change that is meant to change results: keep them as the golden ones
"""

from __future__ import annotations

import argparse
import hashlib
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from playerfl.data.examples import SiteData, TensorExamples
from playerfl.environment import environment
from playerfl.experiment import Experiment
from playerfl.results import RunResult, digest_of
from playerfl.running import run_experiments
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
# another CPU differs in the fifteenth digit instead of the sixth.
RUNS: dict[str, Task] = {
    "digits": TASKS["digits"],
    "synthetic": TASKS["synthetic"],
    "digits in float64": _in_double(TASKS["digits"]),
}


def golden_runs(threads: int = 1) -> dict[str, dict[str, Any]]:
    """What each run came to: fingerprints of models and of everything recorded, and the test losses."""
    return {name: _found(task, threads) for name, task in RUNS.items()}


def _found(task: Task, threads: int) -> dict[str, Any]:
    table = {"task": task.name, "rounds": 2, "seed": 0, "device": "cpu", "threads": threads}
    experiments = [Experiment.resolve({**table, "algorithm": {"name": name}}, task) for name in ALGORITHMS]
    results = run_experiments(experiments, [None] * len(experiments), task)
    return {
        "models": digest_of({f"{result.algorithm}/{site}": own for result in results for site, own in _kept(result)}),
        "records": _records(results),
        "losses": {result.algorithm: _losses(result) for result in results},
    }


def _kept(result: RunResult) -> Any:
    return result.weights.items()


def _records(results: list[RunResult]) -> str:
    content = [[result.score_rows, result.traffic_rows, result.layers] for result in results]
    return hashlib.blake2b(json.dumps(content, sort_keys=True).encode(), digest_size=16).hexdigest()


def _losses(result: RunResult) -> list[float]:
    return [float(row[5]) for row in result.score_rows if row[3:5] == ("test", "loss")]


def arithmetic() -> str:
    """A fingerprint of this machine's kernels: torch alone, in the shapes of the golden runs.

    Another CPU or build of torch adds up in another order; then this differs, and the digests of the runs may.
    """
    found = {}
    for kind in (torch.float32, torch.float64):
        # Made of divisions, which every CPU rounds alike.
        def numbers(*shape: int, kind: torch.dtype = kind) -> torch.Tensor:
            count = torch.Size(shape).numel()
            return ((torch.arange(count) * 7919 % 1009).to(kind) / 1009 - 0.5).reshape(shape)

        image, kernel = numbers(16, 16, 8, 8), numbers(32, 16, 3, 3).requires_grad_()
        wide, narrow = numbers(32, 256), numbers(256, 64).requires_grad_()
        stacked = numbers(4, 32, 64).requires_grad_()
        scores = nn.functional.conv2d(image, kernel, padding=1).mean((2, 3)) @ numbers(32, 10)
        loss = nn.functional.cross_entropy(scores, torch.arange(16) % 10)
        loss = loss + (wide @ narrow).logsumexp(1).mean() + torch.bmm(stacked, stacked.mT).exp().mean()
        loss.backward()
        for name, parameter in (("kernel", kernel), ("narrow", narrow), ("stacked", stacked)):
            assert parameter.grad is not None
            found[f"{name}/{kind}"] = parameter.grad
        found[f"loss/{kind}"] = loss.detach()
    return digest(found)


def everything(threads: int) -> dict[str, Any]:
    torch.set_num_threads(threads)
    made_with = environment("cpu", threads)
    kept = ("torch", "machine", "cpu_capability", "threads")
    return {
        "made_with": {key: made_with[key] for key in kept},
        "arithmetic": arithmetic(),
        "runs": golden_runs(threads),
    }


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--store", action="store_true")
    given = parser.parse_args()
    text = json.dumps(everything(given.threads), indent=1) + "\n"
    if given.store:
        STORED.write_text(text, encoding="utf-8")
    else:
        print(text)  # noqa: T201
