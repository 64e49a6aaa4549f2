"""The two workloads of every framework, and all the code that a user of any of them would write. Needs only torch.

FedAvg: each round every site trains the common model for one epoch with a new AdamW(1e-3), the results are
averaged, and the average is evaluated on the validation and the test part of every site. Initial weights and the
order of a site's rows in a round are defined here, so that all sides take the same steps on the same batches and
must end with the same model, except for rounding.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

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
class Work:
    sites: int
    rows: int
    shape: tuple[int, ...]
    classes: int
    batch: int
    rounds: int
    """The first of them warms up and is counted as start-up."""
    noise: float
    """Large enough that the loss is still decreasing, so that a wrong step would show."""

    def load_sites(self) -> list[Site]:
        """Classes are points in space, rows are these plus noise; validation and test are an eighth of train each."""
        generator = torch.Generator().manual_seed(0)
        centres = torch.randn(self.classes, *self.shape, generator=generator)

        def part(size: int) -> Part:
            targets = torch.randint(self.classes, (size,), generator=generator)
            return centres[targets] + self.noise * torch.randn(size, *self.shape, generator=generator), targets

        return [Site(part(self.rows), part(self.rows // 8), part(self.rows // 8)) for _ in range(self.sites)]

    def build_model(self, *, tuned: bool = False) -> nn.Module:
        """Always the same initial weights, in PyTorch's usual range; `tuned`: channels-last convolutions."""
        model = Convolutional() if len(self.shape) == 3 else Perceptron()
        generator = torch.Generator().manual_seed(1)
        with torch.no_grad():
            for module in model.modules():
                if isinstance(module, nn.Conv2d | nn.Linear):
                    bound = 1 / math.sqrt(module.weight[0].numel())
                    module.weight.uniform_(-bound, bound, generator=generator)
                    module.bias.uniform_(-bound, bound, generator=generator)
        return model.to(memory_format=torch.channels_last) if tuned and len(self.shape) == 3 else model

    def order(self, site: int, round_: int) -> Tensor:
        """The order in which a site goes through its rows in a round (from 0)."""
        return torch.randperm(self.rows, generator=torch.Generator().manual_seed(1000 * round_ + site))


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


WORKS = {
    "cnn": Work(sites=5, rows=2000, shape=(1, 28, 28), classes=10, batch=64, rounds=3, noise=2.0),
    "mlp": Work(sites=4, rows=200, shape=(13,), classes=5, batch=32, rounds=41, noise=2.0),
}


def adamw(model: nn.Module, *, tuned: bool) -> torch.optim.Optimizer:
    """`tuned`: PyTorch's fused kernel instead of its default."""
    return torch.optim.AdamW(model.parameters(), lr=1e-3, fused=tuned or None)


def batches(work: Work, part: Part, site: int, round_: int) -> Iterator[Part]:
    """By tensor indexing: a DataLoader, which collates row by row, would cost each framework several times as much."""
    for chosen in work.order(site, round_).split(work.batch):
        yield part[0][chosen], part[1][chosen]


def train_epoch(model: nn.Module, optimizer: torch.optim.Optimizer, source: Iterator[Part]) -> int:
    """One epoch; returns the number of steps."""
    model.train()
    steps = 0
    for steps, (inputs, targets) in enumerate(source, start=1):  # noqa: B007
        optimizer.zero_grad()
        F.cross_entropy(model(inputs), targets).backward()
        optimizer.step()
    return steps


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
    """When each round ended, and the processor time between the ends of the first and of the last."""

    def __init__(self, rounds: int, cpu_seconds: Callable[[], float] = time.process_time) -> None:
        self.rounds = rounds
        self.cpu_seconds = cpu_seconds
        self.marks: list[float] = []
        self.cpu: list[float] = []

    def mark(self) -> None:
        """The end of a round. Processor time is read only if needed, because reading it may take a while."""
        self.marks.append(time.monotonic())
        if len(self.marks) in (1, self.rounds):
            self.cpu.append(self.cpu_seconds())

    def report(self, version: str, losses: list[float], steps: int | None, runs: int = 1) -> None:
        """The line that the comparison reads: `losses` by round; `runs`: how many ran side by side."""
        timed = {"marks": self.marks, "cpu": self.cpu[-1] - self.cpu[0], "runs": runs}
        learned = {"version": version, "losses": losses, "steps": steps}
        print("RESULT " + json.dumps({**timed, **learned}), flush=True)


def arguments() -> tuple[Work, argparse.Namespace]:
    """The arguments of every framework's script."""
    parser = argparse.ArgumentParser()
    parser.add_argument("work", choices=WORKS)
    parser.add_argument("--tuned", action="store_true", help="fused AdamW, channels-last convolutions")
    parser.add_argument("--runs", type=int, default=1, help="number of seeds side by side")
    given = parser.parse_args()
    torch.set_num_threads(1)
    return WORKS[given.work], given
