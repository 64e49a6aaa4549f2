"""How the cost of a run grows with its size: sites, rounds, parameters and rows, each over two decades.

    python benchmarks/growth.py [--repeats 3] [--only sites,rounds,parameters,rows]

Every point is a FedAvg run in its own process; its cost is CPU seconds of one thread, the least of the repeats. The
exponent is the slope of log cost over log size, fitted to the points of the last two decades. Its interval is the range
of the slopes that are left when single points are dropped. The exit status is 1 if an exponent is above 1.1: then cost
grows faster than the work.
"""

from __future__ import annotations

import argparse
import math
import os
import statistics
import sys
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context

import torch

from bench import begin, cpu_name, cpu_seconds
from playerfl.models.mlp import MLP
from playerfl.runs.api import run_experiments
from playerfl.runs.experiment import Experiment
from playerfl.tasks.task import own_task
from works import made_up

LARGEST_EXPONENT = 1.1
INPUTS = 20


@dataclass(frozen=True)
class Size:
    """A federation of made-up data; one of the four grows."""

    sites: int = 4
    rounds: int = 10
    width: int = 32
    rows: int = 128

    def seconds(self) -> float:
        """CPU seconds of a run; preparing the data is not counted."""

        def draw(rows: int, generator: torch.Generator) -> torch.Tensor:
            return torch.randn(rows, INPUTS, generator=generator)

        task = own_task(
            lambda: MLP((INPUTS, self.width, self.width, 2)), made_up([self.rows] * self.sites, 2, draw, 0.1)
        )
        settings = {
            "rounds": self.rounds,
            "algorithm": "fedavg",
            "selection": "last",
            "trainer": "loop",
            "training": {"batch_size": 64, "learning_rate": 1e-3},
        }
        experiment = Experiment.resolve(settings, task)
        return cpu_seconds(lambda: run_experiments([experiment], [None], task))

    @property
    def parameters(self) -> int:
        return (INPUTS + 1) * self.width + (self.width + 1) * self.width + (self.width + 1) * 2


AXES: dict[str, tuple[list[Size], Callable[[Size], float]]] = {
    "sites": ([Size(sites=n, rounds=4) for n in (1, 5, 16, 50, 160, 500)], lambda size: size.sites),
    "rounds": ([Size(rounds=n) for n in (10, 50, 160, 500, 1600, 5000)], lambda size: size.rounds),
    "parameters": (
        [Size(sites=2, rounds=2, width=n) for n in (90, 300, 1000, 3000, 10_000)],
        lambda size: size.parameters,
    ),
    "rows": (
        [Size(sites=1, rounds=1, rows=n) for n in (100, 1000, 10_000, 100_000, 1_000_000)],
        lambda size: size.rows,
    ),
}


def least_seconds(size: Size, repeats: int) -> float:
    """In a process of its own, after a small run that imports and warms up what a run needs."""
    with ProcessPoolExecutor(1, get_context("spawn"), initializer=begin, initargs=(False,)) as process:
        process.submit(Size(rounds=1).seconds).result()
        return min(process.submit(size.seconds).result() for _ in range(repeats))


def exponent(sizes: list[float], seconds: list[float]) -> float:
    """The slope of log seconds over log size."""
    return statistics.linear_regression([math.log(s) for s in sizes], [math.log(s) for s in seconds]).slope


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--only", default=",".join(AXES), help=f"any of {', '.join(AXES)}")
    arguments = parser.parse_args()
    print(f"{cpu_name()}, {os.cpu_count()} cores, torch {torch.__version__}, 1 thread\n")
    held = True
    for axis in arguments.only.split(","):
        points, of = AXES[axis]
        sizes = [of(point) for point in points]
        seconds = []
        for size, point in zip(sizes, points, strict=True):
            seconds.append(least_seconds(point, arguments.repeats))
            print(f"{axis:<12}{size:>14,}  {seconds[-1]:9.3f} s", flush=True)
        # Below the last two decades, what every run costs anyway would hide how cost grows.
        last = [i for i, size in enumerate(sizes) if size >= sizes[-1] / 110]
        chosen, spent = [sizes[i] for i in last], [seconds[i] for i in last]
        slope = exponent(chosen, spent)
        dropped = [exponent(chosen[:i] + chosen[i + 1 :], spent[:i] + spent[i + 1 :]) for i in range(len(chosen))]
        holds = slope <= LARGEST_EXPONENT
        held = held and holds
        print(
            f"{axis}: cost grows with exponent {slope:.2f} ({min(dropped):.2f} to {max(dropped):.2f}), "
            f"at most {LARGEST_EXPONENT} {'ok' if holds else 'BROKEN'}\n",
            flush=True,
        )
    sys.exit(0 if held else 1)


if __name__ == "__main__":
    main()
