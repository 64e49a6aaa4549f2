"""Client: a site's workbench. Its memory is what lasts, and never leaves the site."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from playerfl.data.examples import SiteData
from playerfl.errors import LayerError
from playerfl.federation.messages import Scalar, SiteId, Upload
from playerfl.layers.layer_map import LayerMap, LayerName
from playerfl.learning.job import EvalJob, Measure, Pull, Scores, Trained, TrainJob
from playerfl.learning.optimizers import Optimizer, OptimizerState
from playerfl.learning.training import Learner
from playerfl.seeding import generator_for
from playerfl.weights import Weights

Memory = dict[str, Any]
"""Trees of tensors, numbers, texts, lists and dicts: what a checkpoint can hold."""


@dataclass(frozen=True)
class TrainingPlan:
    """How every site trains: the same for all."""

    optimizer: Optimizer
    batch_size: int = 32
    local_epochs: int = 1
    optimizer_state: Literal["persistent", "reset"] = "persistent"


@dataclass(frozen=True)
class Snapshot:
    """A model worth keeping, and how it did on the site's validation part."""

    round: int
    loss: float
    weights: Weights


class Client:
    """A site: its data, its memory, and a bench with the model it works on at the moment.

    `memory` belongs to the algorithm. `kept` is the model this site would use today (the best by its own
    validation loss, unless the experiment says otherwise).
    """

    def __init__(self, site: SiteId, data: SiteData, learner: Learner, plan: TrainingPlan, initial: Weights) -> None:
        self.site = site
        self.data = data
        self.num_examples = len(data.train)
        self.plan = plan
        self.memory: Memory = {}
        self.optimizers: dict[str, OptimizerState] = {}
        self.kept: Snapshot | None = None
        self.candidate: Snapshot | None = None
        self._learner = learner
        # What never travels is the same everywhere at first: frozen layers, and statistics kept local.
        self._at_home: Weights = {name: initial[name] for name in learner.layers.never_sent}
        self._bench: Weights = {}
        self._streams: dict[tuple[str, int], torch.Generator] = {}
        self._stream_parts: tuple[int, int] = (0, 0)
        self.train_loss: float | None = None

    @property
    def layers(self) -> LayerMap:
        return self._learner.layers

    @property
    def stacked(self) -> bool:
        """Whether its jobs gain by being done together with those of others."""
        return self._learner.trainer == "stacked"

    def begin(self, seed: int, round_: int) -> None:
        """Starts a message's work: an empty bench, and random streams named by seed, site and round."""
        self._bench = {}
        self._streams = {}
        self._stream_parts = (seed, round_)
        self.train_loss = None

    def end(self) -> None:
        """Ends a message's work: what lasts is remembered, and a bench with a large model would only take memory."""
        self._bench = {}

    def stream(self, purpose: str, round_: int | None = None) -> torch.Generator:
        """This round's generator for one purpose ("main", "aux", "mask" …), or that of another round."""
        seed, now = self._stream_parts
        key = (purpose, now if round_ is None else round_)
        if key not in self._streams:
            self._streams[key] = generator_for(seed, key[0], self.site, key[1])
        return self._streams[key]

    def load(self, *parts: Mapping[str, Tensor]) -> None:
        """Puts a model on the bench: later parts win, and together they must cover the whole model.

        Anything less would silently keep layers of whoever used the bench before.
        """
        bench = dict(self._at_home)
        for part in parts:
            bench.update(part)
        if not all(map(bench.__contains__, self.layers.all_entries)):
            missing = [layer for layer, entries in self.layers.entries.items() if not bench.keys() >= set(entries)]
            raise LayerError(f"{self.site} was given no weights for {', '.join(missing)}")
        self._bench = bench

    def weights(self, layers: Iterable[LayerName] | None = None) -> Weights:
        """The bench's weights, all layers or some. Nobody writes into them: training makes new ones."""
        return self.layers.select(self._bench, layers)

    async def train(
        self,
        epochs: int | None = None,
        *,
        only: Iterable[LayerName] | None = None,
        pull: Pull | None = None,
        measure: Measure | None = None,
        optimizer: Optimizer | None = None,
        stream: str = "main",
        round_: int | None = None,
    ) -> Trained:
        """Trains the model on the bench on this site's training part.

        `only` freezes the other layers, batch-norm statistics included. `stream` names the random stream and
        the optimiser state; a second model of the same site (Ditto's) uses its own. `round_` is the round this
        training counts as, if it comes with a later message.
        """
        entries = None if only is None else frozenset(self.layers.select(self._bench, only))
        trained = await TrainJob(
            learner=self._learner,
            weights=self._bench,
            examples=self.data.train,
            epochs=self.plan.local_epochs if epochs is None else epochs,
            batch_size=self.plan.batch_size,
            optimizer=optimizer or self.plan.optimizer,
            state=self.optimizers.setdefault(stream, {}),
            order=self.stream(stream, round_),
            only=entries,
            pull=pull,
            measure=measure,
        )
        self._bench = trained.weights
        if stream == "main" and trained.loss is not None:
            self.train_loss = trained.loss
        return trained

    async def evaluate(self) -> Scores:
        """Scores the model on the bench on this site's validation and test parts."""
        splits = {"validation": self.data.validation, "test": self.data.test}
        return await EvalJob(self._learner, self._bench, splits)

    def upload(self, layers: Iterable[LayerName] | None = None, **info: Scalar | list[Scalar]) -> Upload:
        """What leaves the site: the bench's weights of some layers, without what never travels.

        Statistics that stay local are remembered here, with the model they belong to.
        """
        if self._bench:
            self._at_home = {name: self._bench[name] for name in self._at_home}
        return Upload(self.num_examples, self.layers.travelling(self._bench, layers), info)

    def state(self) -> Memory:
        """Everything that must survive a restart of this site."""
        return {
            "memory": self.memory,
            "optimizers": self.optimizers,
            "at_home": self._at_home,
            "kept": self.kept and self.kept.__dict__,
            "candidate": self.candidate and self.candidate.__dict__,
        }

    def restore(self, state: Memory) -> None:
        """Takes up what `state` gave."""
        self.memory = state["memory"]
        self.optimizers = state["optimizers"]
        self._at_home = state["at_home"]
        self.kept = state["kept"] and Snapshot(**state["kept"])
        self.candidate = state["candidate"] and Snapshot(**state["candidate"])
