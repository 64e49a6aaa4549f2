"""The workloads of every framework, and all the code that a user of any of them would write. Needs only torch.

FedAvg: each round every site trains the common model for one epoch with a new AdamW(1e-3), the results are
averaged, and the average is evaluated on the validation and the test part of every site. FedProx adds a pull towards
the common model to the loss. Initial weights and the order of a site's rows in a round are defined here, so that all
sides take the same steps on the same batches and must end with the same model, except for rounding.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F

Part = tuple[Tensor, Tensor]


@dataclass(frozen=True)
class Site:
    train: Part
    validation: Part
    test: Part


@dataclass(frozen=True)
class Run:
    """One training of the model."""

    seed: int = 0
    """Gives the initial weights and the order of rows."""
    proximal: float = 0.0
    """μ of FedProx; 0 is FedAvg."""


@dataclass(frozen=True)
class Work:
    sites: int
    rows: int
    shape: tuple[int, ...]
    classes: int
    batch: int
    rounds: int
    noise: float
    """Large enough that the loss is still decreasing, so that a wrong step would show."""
    seeds: int = 1
    proximals: tuple[float, ...] = (0.0,)
    """The methods: FedAvg, or FedProx with these values of μ."""

    @property
    def runs(self) -> list[Run]:
        """All methods with the first seed, then with the next."""
        return [Run(seed, proximal) for seed in range(self.seeds) for proximal in self.proximals]

    @property
    def warm_up(self) -> int:
        """The number of rounds that count as start-up: the first one, or all of the first of several runs."""
        return 1 if len(self.runs) == 1 else self.rounds

    @property
    def steps(self) -> int:
        """Optimiser steps per round, at all sites together."""
        return self.sites * math.ceil(self.rows / self.batch)

    def load_sites(self) -> list[Site]:
        """Classes are points in space, rows are these plus noise; validation and test are an eighth of train each."""
        generator = torch.Generator().manual_seed(0)
        centres = torch.randn(self.classes, *self.shape, generator=generator)

        def part(size: int) -> Part:
            targets = torch.randint(self.classes, (size,), generator=generator)
            return centres[targets] + self.noise * torch.randn(size, *self.shape, generator=generator), targets

        return [Site(part(self.rows), part(self.rows // 8), part(self.rows // 8)) for _ in range(self.sites)]

    def build_model(self, seed: int = 0, *, tuned: bool = False) -> nn.Module:
        """The same initial weights for a seed, in PyTorch's usual range; `tuned`: channels-last convolutions."""
        model = Convolutional() if len(self.shape) == 3 else Perceptron()
        generator = torch.Generator().manual_seed(1 + seed)
        with torch.no_grad():
            for module in model.modules():
                if isinstance(module, nn.Conv2d | nn.Linear):
                    bound = 1 / math.sqrt(module.weight[0].numel())
                    module.weight.uniform_(-bound, bound, generator=generator)
                    module.bias.uniform_(-bound, bound, generator=generator)
        return model.to(memory_format=torch.channels_last) if tuned and len(self.shape) == 3 else model

    def order(self, site: int, round_: int, seed: int = 0) -> Tensor:
        """The order in which a site goes through its rows in a round (from 0)."""
        number = 1_000_000 * seed + 1000 * round_ + site
        return torch.randperm(self.rows, generator=torch.Generator().manual_seed(number))


class Convolutional(nn.Module):
    """Three convolutions (16, 32, 64) and two linear layers for 28x28 images, written the usual way."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 16, 3, padding=1)
        self.conv2 = nn.Conv2d(16, 32, 3, padding=1)
        self.conv3 = nn.Conv2d(32, 64, 3, padding=1)
        self.fc1 = nn.Linear(576, 128)
        self.fc2 = nn.Linear(128, 10)

    def forward(self, x: Tensor) -> Tensor:
        for convolution in (self.conv1, self.conv2, self.conv3):
            x = F.max_pool2d(convolution(x).relu(), 2)
        return self.fc2(self.fc1(x.flatten(1)).relu())


class Perceptron(nn.Module):
    """13-64-64-64-5."""

    def __init__(self) -> None:
        super().__init__()
        self.fc1 = nn.Linear(13, 64)
        self.fc2 = nn.Linear(64, 64)
        self.fc3 = nn.Linear(64, 64)
        self.fc4 = nn.Linear(64, 5)

    def forward(self, x: Tensor) -> Tensor:
        for layer in (self.fc1, self.fc2, self.fc3):
            x = layer(x).relu()
        return self.fc4(x)


_MLP = Work(sites=4, rows=200, shape=(13,), classes=5, batch=32, rounds=41, noise=2.0)
WORKS = {
    "cnn": Work(sites=5, rows=1000, shape=(1, 28, 28), classes=10, batch=64, rounds=4, noise=2.0),
    "mlp": _MLP,
    # A comparison of three methods: FedAvg, and FedProx with a weak and a strong pull.
    "seeds": replace(_MLP, rounds=20, seeds=10, proximals=(0.0, 0.1, 1.0)),
}


def adamw(model: nn.Module, *, tuned: bool) -> torch.optim.Optimizer:
    """`tuned`: PyTorch's fused kernel instead of its default."""
    return torch.optim.AdamW(model.parameters(), lr=1e-3, fused=tuned or None)


def batches(work: Work, part: Part, site: int, round_: int, seed: int = 0) -> Iterator[Part]:
    """By tensor indexing: a DataLoader, which collates row by row, would cost each framework several times as much."""
    for chosen in work.order(site, round_, seed).split(work.batch):
        yield part[0][chosen], part[1][chosen]


def train_epoch(
    model: nn.Module, optimizer: torch.optim.Optimizer, source: Iterator[Part], proximal: float = 0.0
) -> int:
    """One epoch; returns the number of steps."""
    model.train()
    pull = proximal_term(model, proximal)
    steps = 0
    for steps, (inputs, targets) in enumerate(source, start=1):  # noqa: B007
        optimizer.zero_grad()
        loss = F.cross_entropy(model(inputs), targets)
        (loss + pull() if proximal else loss).backward()
        optimizer.step()
    return steps


def proximal_term(model: nn.Module, proximal: float) -> Callable[[], Tensor]:
    """FedProx's addition to the loss, a pull towards the weights that the model has now."""
    common = [weight.detach().clone() for weight in model.parameters()] if proximal else []

    def pull() -> Tensor:
        distances = [(weight - w).square().sum() for weight, w in zip(model.parameters(), common, strict=True)]
        return proximal / 2 * torch.stack(distances).sum()

    return pull


@torch.inference_mode()
def evaluate(model: nn.Module, sites: list[Site]) -> float:
    """Loss and accuracy of the validation and the test part of every site; returns the mean validation loss."""
    model.eval()
    losses = []
    for site in sites:
        for inputs, targets in (site.validation, site.test):
            output = model(inputs)
            losses.append(F.cross_entropy(output, targets).item())
            (output.argmax(1) == targets).float().mean().item()
    return sum(losses[::2]) / len(sites)


class Stopwatch:
    """When each round ended, the loss after it, and the processor time since the end of the warm-up."""

    def __init__(self, work: Work, cpu_seconds: Callable[[], float] = time.process_time) -> None:
        self.work = work
        self.cpu_seconds = cpu_seconds
        self.marks: list[float] = []
        self.losses: list[float] = []
        self.cpu: list[float] = []

    def mark(self, loss: float) -> None:
        """The end of a round. Processor time is read only if needed, because reading it may take a while."""
        self.losses.append(loss)
        self.marks.append(time.monotonic())
        if len(self.marks) == self.work.warm_up or len(self.marks) % self.work.rounds == 0:
            self.cpu.append(self.cpu_seconds())

    @property
    def round(self) -> int:
        """The current round of the current run, from 0."""
        return len(self.marks) % self.work.rounds

    def report(self, version: str, steps: int | None) -> None:
        warm_up, rounds = self.work.warm_up, self.work.rounds
        report(
            version,
            first=self.marks[0],
            wall=self.marks[-1] - self.marks[warm_up - 1],
            cpu=self.cpu[-1] - self.cpu[0],
            rounds=len(self.marks) - warm_up,
            losses=[self.losses[i : i + rounds] for i in range(0, len(self.losses), rounds)],
            steps=None if steps is None else steps // len(self.marks),
        )


def report(
    version: str,
    *,
    first: float,
    wall: float,
    cpu: float,
    rounds: int,
    losses: list[list[float]],
    steps: int | None,
) -> None:
    """The line that the comparison reads.

    `first`: when the first round ended; `wall`, `cpu`: seconds of so many `rounds` of all runs together; `losses`: of
    every round of every run; `steps`: per round.
    """
    timed = {"first": first, "wall": wall, "cpu": cpu, "rounds": rounds}
    print("RESULT " + json.dumps({**timed, "version": version, "losses": losses, "steps": steps}), flush=True)


def arguments() -> tuple[Work, argparse.Namespace]:
    """The arguments of every framework's script."""
    parser = argparse.ArgumentParser()
    parser.add_argument("work", choices=WORKS)
    parser.add_argument("--tuned", action="store_true", help="fused AdamW, channels-last convolutions")
    parser.add_argument("--seeds", type=int, help="so many seeds of a comparison instead of all")
    parser.add_argument("--rounds", type=int, help="so many rounds instead of all")
    parser.add_argument("--source", type=Path, help="a clone of the framework's repository")
    given = parser.parse_args()
    torch.set_num_threads(1)
    work = WORKS[given.work]
    return replace(work, seeds=given.seeds or work.seeds, rounds=given.rounds or work.rounds), given


TrainRun = Callable[[Work, list[Site], Run, Stopwatch, bool], int]
"""Trains one run, marks the end of every round, and returns the number of steps; the last argument is `tuned`."""


def measure(train: TrainRun, version: str) -> None:
    """All runs of a work, one after the other."""
    work, given = arguments()
    sites, watch = work.load_sites(), Stopwatch(work)
    steps = sum(train(work, sites, run, watch, given.tuned) for run in work.runs)
    watch.report(version, steps)
