"""Jobs for a trainer, as data, so that the scheduler can run many of them together."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Generic, Literal, Protocol, TypeVar

import torch
from torch import Tensor, nn

from playerfl.data.examples import Examples
from playerfl.layers.probe import Mode
from playerfl.layers.sensitivity import Profile
from playerfl.learning.confusion import Matrix
from playerfl.learning.optimizers import Optimizer, OptimizerState
from playerfl.weights import Weights

if TYPE_CHECKING:
    from playerfl.learning.training import Learner

Result = TypeVar("Result")
Scores = dict[str, dict[str, float]]
"""By split, then by metric."""


@dataclass(frozen=True)
class Pull:
    """Adds strength/2 · ‖w - towards‖² to the loss."""

    towards: Weights
    strength: float


@dataclass(frozen=True)
class Measure:
    """Asks for layer scores of the first epoch (see SensitivityProbe)."""

    mode: Mode = "running"
    include_bias: bool = True
    weight_batches: bool = False
    embedding_rows: Literal["all", "touched"] = "all"
    max_batches: int | None = None


class Attachment(Protocol):
    """What a method attaches to the model while it trains, such as a hook on the input of a layer."""

    def term(self) -> Tensor | None:
        """The term to add to the loss of the batch that has just passed through the model."""
        ...

    def step(self, optimizer: Optimizer) -> None:
        """Called after each step of the model, with its optimiser at the rate of the epoch."""
        ...


Attach = Callable[[nn.Module], AbstractContextManager[Attachment]]
"""Attaches something to the model for as long as the context lasts."""


@dataclass(frozen=True)
class Trained:
    """The result of training."""

    weights: Weights
    loss: float | None
    profile: Profile | None = None
    slots: Mapping[str, Weights] = field(default_factory=dict)
    """The final values of the `slots` given to `client.train`."""


@dataclass(frozen=True)
class Evaluated:
    """The result of an evaluation."""

    scores: Scores
    confusions: Mapping[str, Matrix] = field(default_factory=dict)
    """By split: how often each class (row) was predicted as each (column), where that is recorded; see `Learner`."""


@dataclass(frozen=True)
class Failed:
    """In place of a job's result: what it raised, to be raised again where the job was awaited."""

    problem: Exception


class AbandonedError(Exception):
    """Raised where a job has no result because another one in its stack failed."""


class _Awaitable(Generic[Result]):
    def __await__(self) -> Generator[list[object], list[Result | Failed], Result]:
        results = yield [self]
        result = results.pop()
        if isinstance(result, Failed):
            raise result.problem
        return result


@dataclass(frozen=True, eq=False)
class TrainJob(_Awaitable[Trained]):
    """Trains one site's model for some epochs."""

    learner: Learner
    weights: Weights
    examples: Examples
    epochs: int
    batch_size: int
    optimizer: Optimizer
    state: OptimizerState
    """Updated in place: a site's optimiser continues where it stopped."""
    order: torch.Generator
    """Shuffles the batches and seeds dropout."""
    only: frozenset[str] | None = None
    """The entries that train; None means all."""
    pull: Pull | None = None
    measure: Measure | None = None
    attach: Attach | None = None
    """Only the plain loop attaches things to a model, so a job with this is never stacked."""
    rate_factors: tuple[float, ...] = ()
    """Factors on the learning rate, one per epoch; empty: constant rate (see Schedule)."""

    def optimizer_in(self, epoch: int) -> Optimizer:
        """The optimiser with one epoch's learning rate."""
        return self.optimizer.scaled(self.rate_factors[epoch]) if self.rate_factors else self.optimizer

    def run(self) -> Trained:
        return self.learner.train(self)


@dataclass(frozen=True, eq=False)
class EvalJob(_Awaitable[Evaluated]):
    """Scores one model on some splits."""

    learner: Learner
    weights: Weights
    splits: Mapping[str, Examples] = field(default_factory=dict)

    def run(self) -> Evaluated:
        return self.learner.evaluate(self)


Job = TrainJob | EvalJob
