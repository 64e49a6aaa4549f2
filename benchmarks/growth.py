"""How the cost of a run grows with its size: sites, rounds, parameters and rows, each over two decades or more.

    python benchmarks/growth.py [--repeats 3] [--only sites,rounds,parameters,rows]

Every point is a FedAvg run, measured in turn with a bare PyTorch loop that does the same work with the same model and
optimiser (`works.bare_loop`, tuned); each has its own process. The cost is CPU seconds of one thread, the least of the
repeats. An exponent is the slope of log cost over log size, fitted to the points of the last two decades: below them,
what every run costs anyway would hide how cost grows. Its interval is the range of the slopes that are left when single
points are dropped.

An exponent above 1.1 means that cost grows faster than the work, unless the processor is to blame: a small model stays
in its caches, a large one does not, and the pages of large tensors are cleared anew each time they are allocated. That
hits the bare loop as much. So the exponent of the ratio of the two is printed as well, and the exit status is 1 if an
exponent is above 1.1 and above that of the bare loop by more than 0.05.
"""

from __future__ import annotations

import argparse
import math
import os
import statistics
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import nn

from bench import cpu_seconds, own_process
from bounds import cpu_name
from playerfl.models.mlp import MLP
from playerfl.runs.api import run_experiments
from playerfl.runs.experiment import Experiment
from playerfl.tasks.task import own_task
from works import Work, bare_loop, made_up

LARGEST_EXPONENT = 1.1
MOST_EXCESS = 0.05
DECADES = 110.0
"""Points are fitted if they are at least the largest size divided by this."""
INPUTS = 20

How = Literal["ours", "bare"]


@dataclass(frozen=True)
class Size:
    """A federation of made-up data; one of the four grows."""

    sites: int = 4
    rounds: int = 10
    width: int = 32
    rows: int = 128

    def seconds(self, how: How) -> float:
        """CPU seconds of a run; preparing the data is not counted."""
        work = self._work()
        if how == "bare":
            return cpu_seconds(lambda: bare_loop(work, self.rounds, tuned=True))
        task = own_task(work.ours, work.sites)
        settings = {
            "rounds": self.rounds,
            "algorithm": "fedavg",
            "selection": "last",
            "trainer": "loop",
            "training": {"batch_size": work.batch, "learning_rate": 1e-3},
        }
        experiment = Experiment.resolve(settings, task)
        return cpu_seconds(lambda: run_experiments([experiment], [None], task))

    def _work(self) -> Work:
        def draw(rows: int, generator: torch.Generator) -> torch.Tensor:
            return torch.randn(rows, INPUTS, generator=generator)

        def build() -> nn.Module:
            return MLP((INPUTS, self.width, self.width, 2))

        return Work("growing", made_up([self.rows] * self.sites, 2, draw, 0.1), 64, build, build)

    @property
    def parameters(self) -> int:
        return (INPUTS + 1) * self.width + (self.width + 1) * self.width + (self.width + 1) * 2


@dataclass(frozen=True)
class Axis:
    """Federations that grow in one way."""

    points: Sequence[Size]
    size: Callable[[Size], float]


AXES = {
    "sites": Axis([Size(sites=n, rounds=4) for n in (1, 5, 16, 50, 160, 500)], lambda size: size.sites),
    "rounds": Axis([Size(rounds=n) for n in (10, 50, 160, 500, 1600, 5000)], lambda size: size.rounds),
    "parameters": Axis(
        [Size(sites=2, rounds=2, width=n) for n in (90, 300, 1000, 1780, 3160, 5600, 10_000)],
        lambda size: size.parameters,
    ),
    "rows": Axis(
        [Size(sites=1, rounds=1, rows=n) for n in (100, 1000, 10_000, 32_000, 100_000, 320_000, 1_000_000)],
        lambda size: size.rows,
    ),
}


def least_seconds(size: Size, repeats: int) -> tuple[float, float]:
    """Ours and the bare loop's, each in a process of its own, after a small run that imports what a run needs."""
    with own_process() as our_process, own_process() as bare_process:
        our_process.submit(Size(rounds=1).seconds, "ours").result()
        bare_process.submit(Size(rounds=1).seconds, "bare").result()
        pairs = [
            (our_process.submit(size.seconds, "ours").result(), bare_process.submit(size.seconds, "bare").result())
            for _ in range(repeats)
        ]
    ours, bare = zip(*pairs, strict=True)
    return min(ours), min(bare)


@dataclass(frozen=True)
class Growth:
    """The exponent with which costs grow over sizes, from the points of the last two decades.

    >>> growth = Growth([1, 10, 100, 1000], [5.0, 1.0, 10.0, 100.0])
    >>> round(growth.exponent, 3), [round(end, 3) for end in growth.interval]
    (1.0, [1.0, 1.0])
    """

    sizes: Sequence[float]
    costs: Sequence[float]

    @property
    def _logs(self) -> list[tuple[float, float]]:
        points = zip(self.sizes, self.costs, strict=True)
        return [(math.log(size), math.log(cost)) for size, cost in points if size >= self.sizes[-1] / DECADES]

    @property
    def exponent(self) -> float:
        return _slope(self._logs)

    @property
    def interval(self) -> tuple[float, float]:
        slopes = [_slope(self._logs[:i] + self._logs[i + 1 :]) for i in range(len(self._logs))]
        return min(slopes), max(slopes)

    def __str__(self) -> str:
        return "{:.2f} ({:.2f} to {:.2f})".format(self.exponent, *self.interval)


def _slope(points: Sequence[tuple[float, float]]) -> float:
    return statistics.linear_regression(*zip(*points, strict=True)).slope


def holds(ours: Growth, excess: Growth) -> bool:
    """Whether cost grows no faster than the work, or no faster than that of the bare loop on this processor."""
    return ours.exponent <= LARGEST_EXPONENT or excess.exponent <= MOST_EXCESS


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--only", default=",".join(AXES), help=f"any of {', '.join(AXES)}")
    arguments = parser.parse_args()
    print(f"{cpu_name()}, {os.cpu_count()} cores, torch {torch.__version__}, 1 thread\n")
    held = [show(name, AXES[name], arguments.repeats) for name in arguments.only.split(",")]
    sys.exit(0 if all(held) else 1)


def show(name: str, axis: Axis, repeats: int) -> bool:
    """Measures and prints one axis; whether its promise holds."""
    print(f"{name:<12}{'size':>14}{'playerfl, s':>14}{'bare loop, s':>14}{'ratio':>9}")
    sizes = [axis.size(point) for point in axis.points]
    ours, bare = list[float](), list[float]()
    for size, point in zip(sizes, axis.points, strict=True):
        of_us, of_bare = least_seconds(point, repeats)
        ours.append(of_us)
        bare.append(of_bare)
        print(f"{'':<12}{size:>14,}{of_us:>14.3f}{of_bare:>14.3f}{of_us / of_bare:>9.2f}", flush=True)
    growth = Growth(sizes, ours)
    excess = Growth(sizes, [a / b for a, b in zip(ours, bare, strict=True)])
    held = holds(growth, excess)
    print(
        f"{name}: exponent {growth}, bare loop {Growth(sizes, bare)}, ratio {excess}; at most {LARGEST_EXPONENT}, "
        f"or {MOST_EXCESS} above the bare loop: {'ok' if held else 'BROKEN'}\n",
        flush=True,
    )
    return held


if __name__ == "__main__":
    main()
