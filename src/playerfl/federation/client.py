"""Client: what an algorithm is given at a site. Its memory lasts from round to round and never leaves the site."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor

from playerfl.data.examples import Examples, SiteData
from playerfl.errors import LayerError
from playerfl.federation.messages import Scalar, SiteId, Upload
from playerfl.layers.layer_map import LayerMap, LayerName
from playerfl.learning.confusion import Matrix
from playerfl.learning.job import Attach, EvalJob, Measure, Pull, Scores, Trained, TrainJob
from playerfl.learning.optimizers import Optimizer, OptimizerState
from playerfl.learning.schedules import CONSTANT, Schedule
from playerfl.learning.training import Learner
from playerfl.seeding import generator_for
from playerfl.weights import Weights

Memory = dict[str, Any]
"""Trees of tensors, numbers, strings, lists and dicts: what a checkpoint can hold."""

_FROZEN = "__frozen__"
"""In a stored state, in place of a frozen entry: its name."""


@dataclass(frozen=True)
class TrainingPlan:
    """How sites train; the same for every site."""

    optimizer: Optimizer
    batch_size: int = 32
    local_epochs: int = 1
    optimizer_state: Literal["persistent", "reset"] = "persistent"
    schedule: Schedule = CONSTANT


@dataclass(frozen=True)
class Snapshot:
    """A model worth keeping, with its loss on the site's validation data."""

    round: int
    loss: float
    weights: Weights


class Client:
    """A site: its data, its memory, and the loaded model, which is the one it is working on.

    `memory` belongs to the algorithm. `kept` is the model this site would use now: the best by its own
    validation loss, unless the experiment says otherwise.
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
        # What is never sent starts out the same at every site: frozen layers, and statistics kept local.
        self._at_home: Weights = {name: initial[name] for name in learner.layers.never_sent}
        self._frozen: Weights = {name: initial[name] for name in learner.layers.frozen}
        self._loaded: Weights = {}
        self._streams: dict[tuple[str, int], torch.Generator] = {}
        self._stream_parts: tuple[int, int] = (0, 0)
        self.train_loss: float | None = None
        self.confusions: Mapping[str, Matrix] = {}

    @property
    def layers(self) -> LayerMap:
        return self._learner.layers

    @property
    def stacked(self) -> bool:
        """Whether its jobs are trained in one stack with those of other sites."""
        return self._learner.trainer == "stacked"

    def begin(self, seed: int, round_: int) -> None:
        """Starts work on a message: no model is loaded, and random streams are seeded by seed, site and round."""
        self._loaded = {}
        self._streams = {}
        self._stream_parts = (seed, round_)
        self.train_loss = None

    def end(self) -> None:
        """Ends work on a message: unloads the model, which would only take memory until the next one."""
        self._loaded = {}

    def stream(self, purpose: str, round_: int | None = None) -> torch.Generator:
        """The random generator for one purpose ("main", "aux", "mask" …) in this round, or in another one."""
        seed, now = self._stream_parts
        key = (purpose, now if round_ is None else round_)
        if key not in self._streams:
            self._streams[key] = generator_for(seed, key[0], self.site, key[1])
        return self._streams[key]

    def load(self, *parts: Mapping[str, Tensor]) -> None:
        """Loads a model from one or more parts. Later parts win, and together they must cover the whole model.

        Anything less would silently keep layers of the model that was loaded before. Types become those of the model.
        """
        loaded = dict(self._at_home)
        for part in parts:
            loaded.update(part)
        if not all(map(loaded.__contains__, self.layers.all_entries)):
            missing = [layer for layer, entries in self.layers.entries.items() if not loaded.keys() >= set(entries)]
            raise LayerError(f"site {self.site!r} has no weights for {', '.join(missing)}; load parts that cover them")
        for name in self.layers.all_entries:
            entry, wanted = loaded[name], self._learner.entries[name]
            if entry.shape != wanted.shape:
                # Copying would silently broadcast it to the model's shape.
                raise LayerError(
                    f"site {self.site!r} loads {name!r} in the shape {tuple(entry.shape)}, but the model has "
                    f"{tuple(wanted.shape)}; keep the shapes as they were"
                )
            if entry.dtype != wanted.dtype:
                loaded[name] = entry.to(wanted.dtype)
        self._loaded = loaded

    def weights(self, layers: Iterable[LayerName] | None = None) -> Weights:
        """The loaded model's weights, for all or some layers. Do not write into them: training makes new ones."""
        return self.layers.select(self._loaded, layers)

    async def train(
        self,
        epochs: int | None = None,
        *,
        only: Iterable[LayerName] | None = None,
        without: frozenset[str] = frozenset(),
        pull: Pull | None = None,
        measure: Measure | None = None,
        optimizer: Optimizer | None = None,
        slots: Mapping[str, Mapping[str, Tensor]] | None = None,
        attach: Attach | None = None,
        examples: Examples | None = None,
        stream: str = "main",
        round_: int | None = None,
    ) -> Trained:
        """Trains the loaded model on this site's training data.

        `only` freezes the other layers, including their batch-norm statistics, and `without` freezes some entries of
        the layers that train. `stream` names the random stream and the optimiser state; a second model at the same
        site (as in Ditto) has its own. `round_` is the round that this training belongs to, if it is done with a later
        message. `slots` are tensors that the optimiser works with in this training only, such as a correction or a
        mask, by slot and parameter; `Trained.slots` has what became of them. `attach` attaches something to the model,
        and `examples` takes the place of the training data.
        """
        entries = None
        if only is not None or without:
            entries = frozenset(self.layers.select(self._loaded, only)) - without
        epochs = self.plan.local_epochs if epochs is None else epochs
        counted_as = self._stream_parts[1] if round_ is None else round_
        state = self.optimizers.setdefault(stream, {})
        # Copies, because an optimiser moves its state in place.
        given = {slot: {name: w.clone() for name, w in held.items()} for slot, held in (slots or {}).items()}
        state.update(given)
        trained = await TrainJob(
            learner=self._learner,
            weights=self._loaded,
            examples=self.data.train if examples is None else examples,
            epochs=epochs,
            batch_size=self.plan.batch_size,
            optimizer=optimizer or self.plan.optimizer,
            state=state,
            order=self.stream(stream, round_),
            only=entries,
            pull=pull,
            measure=measure,
            attach=attach,
            rate_factors=self.plan.schedule.factors(counted_as, epochs, self.plan.local_epochs),
        )
        if given:
            left = {slot: {name: w.cpu() for name, w in state.pop(slot).items()} for slot in given}
            trained = replace(trained, slots=left)
        self._loaded = trained.weights
        if stream == "main" and trained.loss is not None:
            self.train_loss = trained.loss
        return trained

    async def evaluate(self) -> Scores:
        """Scores the loaded model on this site's validation and test data.

        `confusions` then holds the confusion matrix of each split, if they are recorded.
        """
        splits = {"validation": self.data.validation, "test": self.data.test}
        evaluated = await EvalJob(self._learner, self._loaded, splits)
        self.confusions = evaluated.confusions
        return evaluated.scores

    def upload(self, layers: Iterable[LayerName] | None = None, **info: Scalar | list[Scalar]) -> Upload:
        """What leaves the site: the loaded model's weights for some layers, without the entries that are never sent.

        Statistics that stay local are remembered here, with the model they belong to.
        """
        if self._loaded:
            self._at_home = {name: self._loaded[name] for name in self._at_home}
        return Upload(self.num_examples, self.layers.travelling(self._loaded, layers), info)

    def state(self) -> Memory:
        """Everything this site needs to resume. Frozen entries are left out, since the model is built with them."""
        state = {
            "memory": self.memory,
            "optimizers": self.optimizers,
            "at_home": self._at_home,
            "kept": self.kept and self.kept.__dict__,
            "candidate": self.candidate and self.candidate.__dict__,
        }
        return self._without_frozen(state) if self._frozen else state

    def restore(self, state: Memory) -> None:
        """Continues from what `state` returned."""
        state = self._with_frozen(state) if self._frozen else state
        self.memory = state["memory"]
        self.optimizers = state["optimizers"]
        self._at_home = state["at_home"]
        self.kept = state["kept"] and Snapshot(**state["kept"])
        self.candidate = state["candidate"] and Snapshot(**state["candidate"])

    def _without_frozen(self, tree: Any) -> Any:
        if isinstance(tree, Mapping):
            return {
                key: {_FROZEN: key}
                if isinstance(value, Tensor) and value is self._frozen.get(key)
                else self._without_frozen(value)
                for key, value in tree.items()
            }
        return [self._without_frozen(value) for value in tree] if isinstance(tree, list | tuple) else tree

    def _with_frozen(self, tree: Any) -> Any:
        if isinstance(tree, Mapping):
            if tree.keys() == {_FROZEN}:
                return self._frozen[tree[_FROZEN]]
            return {key: self._with_frozen(value) for key, value in tree.items()}
        return [self._with_frozen(value) for value in tree] if isinstance(tree, list | tuple) else tree
