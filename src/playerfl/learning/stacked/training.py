"""Training a stack: like `Learner.train`, for many models at once."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from playerfl.errors import DataError
from playerfl.layers.sensitivity import Profile
from playerfl.learning.backward import gradients_of
from playerfl.learning.job import Trained, TrainJob
from playerfl.learning.optimizers import Optimizer
from playerfl.learning.stacked.cohort import Cohort
from playerfl.learning.stacked.forward import outputs_of
from playerfl.learning.stacked.grouping import STACK_NUMBERS, batch_count, cohort_key
from playerfl.learning.stacked.layout import Blocks, Held, Layout, side_by_side


def train(jobs: Sequence[TrainJob]) -> list[Trained]:
    """Like `Learner.train`, for jobs of one group."""
    learner, only = jobs[0].learner, jobs[0].only
    chosen = learner.trainable(only)
    if not chosen or jobs[0].epochs == 0:
        return [Trained(dict(job.weights), None) for job in jobs]
    if not all(len(job.examples) for job in jobs):
        raise DataError("a site has no training examples; every site needs at least one")
    layout = learner.layout(chosen)
    # The longest first, so that the models still training are always the first rows.
    seen: dict[Hashable, int] = {}
    places = [(-batch_count(job), seen.setdefault(cohort_key(job), len(seen))) for job in jobs]
    order = sorted(range(len(jobs)), key=places.__getitem__)
    size = max(1, STACK_NUMBERS // layout.width)
    results: dict[int, Trained] = {}
    for start in range(0, len(order), size):
        part = order[start : start + size]
        results.update(zip(part, _Stack([jobs[i] for i in part], layout).train(), strict=True))
    return [results[i] for i in range(len(jobs))]


@dataclass(frozen=True)
class _Active:
    """The first models of a stack, while these are the ones that train."""

    cohorts: list[Cohort]
    entries: dict[str, Tensor]
    """The parameters that train, as leaves for autograd."""
    fixed: dict[str, Tensor]
    anchors: dict[str, Tensor]
    step: Callable[[Blocks], None]

    @property
    def count(self) -> int:
        return self.cohorts[-1].stop


class _Stack:
    """Some models side by side: one row per model in the blocks of weights and of each slot of the optimiser."""

    def __init__(self, jobs: Sequence[TrainJob], layout: Layout) -> None:
        self.jobs = jobs
        self.job = jobs[0]
        self.learner = self.job.learner
        self.layout = layout
        self.blocks = layout.stacked([job.weights for job in jobs])
        others = [name for name in self.learner.entries if name not in layout.shapes]
        fixed = self.learner.layout(others)
        self.fixed = fixed.views(fixed.stacked([job.weights for job in jobs])) if others else {}
        self.cohorts: list[Cohort] = []
        for _, members in groupby(jobs, key=cohort_key):
            self.cohorts.append(Cohort.of(list(members), self.cohorts[-1].stop if self.cohorts else 0))
        self.state = {slot: self._slot(slot) for slot in self.job.optimizer.slots}
        self.anchors = self._anchors()

    def _slot(self, slot: str) -> list[Blocks]:
        """The optimiser's state, by cohort: blocks, or one count for all models of the cohort."""
        return [
            self._held(slot, c, [job.state.get(slot, {}) for job in self.jobs[c.start : c.stop]]) for c in self.cohorts
        ]

    def _held(self, slot: str, cohort: Cohort, held: list[Mapping[str, Tensor]]) -> Blocks:
        resident = side_by_side(held, self.layout)
        if resident is not None:
            return resident
        rows = self._rows(cohort)
        fresh = {name: cohort.optimizers[0].fresh(slot, block) for name, block in rows.items()}
        if slot in self.job.optimizer.counts:
            return {name: held[0].get(name, count).clone() for name, count in fresh.items()}
        if any(one.keys() & rows.keys() for one in held):
            for name, view in self.layout.views(fresh).items():
                view.copy_(torch.stack([one.get(name, view[i]) for i, one in enumerate(held)]))
        return fresh

    def _rows(self, cohort: Cohort) -> Blocks:
        return {name: block[cohort.start : cohort.stop] for name, block in self.blocks.items()}

    def _anchors(self) -> dict[str, Tensor]:
        pull = self.job.pull
        # At strength 0 the term is left out, as in the plain loop.
        if pull is None or pull.strength == 0:
            return {}
        names = [name for name in self.layout.shapes if name in pull.towards]
        return {name: torch.stack([job.pull.towards[name] for job in self.jobs if job.pull]) for name in names}

    def train(self) -> list[Trained]:
        """Every batch of every epoch, all active models at once."""
        self.learner.model.train()
        losses = torch.zeros(len(self.jobs), dtype=torch.float64)
        profiles = _Profiles(self)
        for active, steps in self._stages():
            for step in steps:
                inputs, targets, shares = _joined([cohort.batch(step) for cohort in active.cohorts])
                for inner in range(self.job.optimizer.inner_steps):
                    outputs = outputs_of(self.learner, {**active.entries, **active.fixed}, inputs)
                    of_rows = self.learner.loss(outputs, targets)
                    slopes = gradients_of(of_rows, shares, list(active.entries.values()))
                    gradients = dict(zip(active.entries, slopes, strict=True))
                    with torch.no_grad():
                        if inner == 0:
                            profiles.record(active, gradients, step)
                        active.step(self.layout.blocks(self._pulled(active, gradients)))
                means = (of_rows.detach() * shares).view(active.count, -1).sum(1)
                for c in active.cohorts:
                    sizes = c.sizes[:, step % c.batches]
                    losses[c.start : c.stop] += means[c.start : c.stop].double() * sizes
                profiles.after(active, step)
        self._keep_state()
        seen = [len(job.examples) * job.epochs for job in self.jobs]
        return [
            Trained({**job.weights, **trained}, loss / rows, profile)
            for job, trained, loss, rows, profile in zip(
                self.jobs, self.layout.models(self.blocks), losses.tolist(), seen, profiles.by_model, strict=True
            )
        ]

    def _stages(self) -> Iterator[tuple[_Active, range]]:
        """The steps, in stages during which the same models train, each at one rate."""
        begin = 0
        for stop in sorted({stop for cohort in self.cohorts for stop in cohort.stops}):
            yield self._active([cohort for cohort in self.cohorts if cohort.steps > begin], begin), range(begin, stop)
            begin = stop

    def _active(self, cohorts: list[Cohort], begin: int) -> _Active:
        stop = cohorts[-1].stop
        return _Active(
            cohorts,
            {name: view[:stop].detach().requires_grad_() for name, view in self.layout.views(self.blocks).items()},
            {name: view[:stop] for name, view in self.fixed.items()},
            {name: anchor[:stop] for name, anchor in self.anchors.items()},
            self._step(cohorts, begin),
        )

    def _step(self, cohorts: list[Cohort], begin: int) -> Callable[[Blocks], None]:
        """A function that moves all of these models from step `begin` on, with one call per optimiser."""
        numbers: dict[Optimizer, list[int]] = {}
        for number, cohort in enumerate(cohorts):
            numbers.setdefault(cohort.optimizer_at(begin), []).append(number)
        steps = []
        for optimizer, chosen in numbers.items():
            parameters = [rows for i in chosen for rows in self._rows(cohorts[i]).values()]
            state = {slot: [rows for i in chosen for rows in held[i].values()] for slot, held in self.state.items()}
            steps.append((optimizer.stepper(parameters, state), chosen))
        sizes = [cohort.stop - cohort.start for cohort in cohorts]

        def move(gradients: Blocks) -> None:
            by_cohort = list(zip(*(block.split_with_sizes(sizes) for block in gradients.values()), strict=True))
            for step, chosen in steps:
                step([rows for i in chosen for rows in by_cohort[i]])

        return move

    def _pulled(self, active: _Active, gradients: dict[str, Tensor]) -> dict[str, Tensor]:
        if not active.anchors or not self.job.pull:
            return gradients
        away = torch._foreach_sub([active.entries[n].detach() for n in active.anchors], list(active.anchors.values()))
        pulled = torch._foreach_add([gradients[n] for n in active.anchors], away, alpha=self.job.pull.strength)
        return {**gradients, **dict(zip(active.anchors, pulled, strict=True))}

    def _keep_state(self) -> None:
        for slot, by_cohort in self.state.items():
            for cohort, held in zip(self.cohorts, by_cohort, strict=True):
                for i, job in enumerate(self.jobs[cohort.start : cohort.stop]):
                    before = job.state.get(slot, {})
                    if slot in self.job.optimizer.counts:
                        # One tensor for all parameters: the plain loop clones it for each.
                        job.state[slot] = {**before, **dict.fromkeys(held, next(iter(held.values())).clone())}
                    else:
                        job.state[slot] = Held(self.layout, held, i, before)


class _Profiles:
    """The layer scores of every model of a stack, if a job requests them."""

    def __init__(self, stack: _Stack) -> None:
        self.stack = stack
        self.measure = stack.job.measure
        self.by_model: list[Profile | None] = [None] * len(stack.jobs)
        running = self.measure and self.measure.mode == "running"
        self.probes = [stack.learner.probe(self.measure) for _ in stack.jobs] if self.measure and running else []

    def record(self, active: _Active, gradients: Mapping[str, Tensor], step: int) -> None:
        """Between gradient and optimiser step, in the first epoch."""
        measured = [c for c in active.cohorts if step < c.batches]
        if not self.probes or not measured:
            return
        none = torch.zeros(active.count, dtype=torch.float64)
        scores = torch.stack([_scores(active, gradients, name, none) for name in self.probes[0].scored], dim=1)
        for c in measured:
            for model, size in enumerate(c.sizes[:, step].tolist(), start=c.start):
                self.probes[model].take(scores[model], size)

    def after(self, active: _Active, step: int) -> None:
        """After an optimiser step: the profiles of the models whose first epoch is over."""
        if self.measure is None:
            return
        learner, jobs = self.stack.learner, self.stack.jobs
        for c in active.cohorts:
            if step != c.batches - 1:
                continue
            if self.probes:
                self.by_model[c.start : c.stop] = [probe.profile() for probe in self.probes[c.start : c.stop]]
                continue
            models = self.stack.layout.models(self.stack.blocks)[c.start : c.stop]
            for i, entries in enumerate(models, start=c.start):
                self.by_model[i] = learner.profile_at({**jobs[i].weights, **entries}, jobs[i])
            learner.model.train()


def _scores(active: _Active, gradients: Mapping[str, Tensor], name: str, none: Tensor) -> Tensor:
    """‖θ·g‖ of one entry, for each model."""
    if name not in active.entries:
        return none
    products = active.entries[name].detach() * gradients[name]
    norms: Tensor = torch.linalg.vector_norm(products.flatten(1), dim=1, dtype=torch.float64)
    return norms


def _joined(batches: Sequence[tuple[Any, Tensor, Tensor]]) -> tuple[Any, Tensor, Tensor]:
    """The cohorts' batches joined: inputs by model and row, targets and shares concatenated."""
    inputs, targets, shares = zip(*batches, strict=True)
    joined = inputs[0] if len(inputs) == 1 else tree_map(lambda *parts: torch.cat(parts), *inputs)
    return joined, torch.cat(targets).flatten(0, 1), torch.cat(shares).flatten()
