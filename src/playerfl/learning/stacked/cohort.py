"""Cohort: models of a stack that take their steps together, and their batches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from playerfl.data.examples import TensorExamples
from playerfl.learning.job import TrainJob
from playerfl.learning.optimizers import Optimizer
from playerfl.learning.stacked.gathered import Gathered
from playerfl.learning.stacked.grouping import batch_count, batch_width


@dataclass(frozen=True)
class Cohort:
    """Models in neighbouring rows with the same number of batches, optimiser and number of steps taken."""

    start: int
    stop: int
    optimizers: tuple[Optimizer, ...]
    """The optimiser at the rate of each epoch."""
    examples: Gathered
    rows: Tensor
    """Rows of the table by model, batch (of all epochs) and position in the batch; padding repeats a row of its batch.
    """
    shares: Tensor
    """By model and batch (of one epoch), the weight of each position: one over the batch's rows, 0 for padding."""
    sizes: Tensor
    """By model, the rows of each batch of one epoch."""

    @classmethod
    def of(cls, jobs: Sequence[TrainJob], start: int) -> Cohort:
        job = jobs[0]
        examples = Gathered.of([one.examples for one in jobs if isinstance(one.examples, TensorExamples)])
        batches, width = batch_count(job), batch_width(job)
        places = torch.arange(width)
        rows = torch.empty(len(jobs), job.epochs, batches, width, dtype=torch.long)
        sizes = torch.empty(len(jobs), batches, dtype=torch.long)
        models_with: dict[int, list[int]] = {}
        for model, one in enumerate(jobs):
            models_with.setdefault(len(one.examples), []).append(model)
        for total, models in models_with.items():
            begins = torch.arange(batches) * job.batch_size
            counts = (total - begins).clamp_max(job.batch_size)
            # Positions in an epoch's order, by batch; padding repeats the first row of the batch.
            positions = begins.unsqueeze(1) + torch.where(places < counts.unsqueeze(1), places, 0)
            rows[models] = torch.stack([_order(jobs[model]) for model in models])[:, :, positions]
            sizes[models] = counts
        shares = (places < sizes.unsqueeze(2)).double() / sizes.unsqueeze(2)
        return cls(
            start,
            start + len(jobs),
            tuple(map(job.optimizer_in, range(job.epochs))),
            examples,
            rows.add_(examples.first.view(-1, 1, 1, 1)).flatten(1, 2),
            shares.to(next(iter(job.weights.values())).dtype),
            sizes,
        )

    @property
    def batches(self) -> int:
        """Batches of one epoch."""
        return self.sizes.shape[1]

    @property
    def steps(self) -> int:
        return self.rows.shape[1]

    @property
    def stops(self) -> list[int]:
        """The steps after which its rate changes, and after its last."""
        changed = [e for e in range(1, len(self.optimizers)) if self.optimizers[e] != self.optimizers[e - 1]]
        return [*(epoch * self.batches for epoch in changed), self.steps]

    def optimizer_at(self, step: int) -> Optimizer:
        return self.optimizers[step // self.batches]

    def batch(self, step: int) -> tuple[Any, Tensor, Tensor]:
        """Inputs, targets and weights of the rows, by model and position."""
        rows = self.rows[:, step]
        return self.examples.inputs(rows), self.examples.targets(rows), self.shares[:, step % self.batches]


def _order(job: TrainJob) -> Tensor:
    """The order of the rows in each epoch, drawn as the plain loop draws it."""
    torch.randint(2**62, (), generator=job.order)  # the loop draws its seed for dropout here; stacked models have none
    return torch.stack([torch.randperm(len(job.examples), generator=job.order) for _ in range(job.epochs)])
