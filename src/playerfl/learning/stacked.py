"""The stacked trainer: many models of one kind in each tensor operation, with the arithmetic of the plain loop.

`torch.func.vmap` runs the model's own forward pass over a stack of weights; `linear_stack` does so for models that have
only linear layers and activations. A model's result has the same bits whatever else is in the stack: batches have a
fixed width, rows a fixed alignment (see Layout), and no operation mixes models. Models need not share their examples:
the examples of all models are gathered in one table, from which a batch for all of them is taken at once. The bits
differ from those of the plain loop, because its matrix products have other shapes.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import torch
from torch import Tensor
from torch.func import functional_call, vmap
from torch.utils._pytree import tree_map

from playerfl.data.examples import TensorExamples
from playerfl.errors import DataError
from playerfl.layers.derive import call_arguments
from playerfl.layers.sensitivity import Profile
from playerfl.learning.gathered import Gathered
from playerfl.learning.job import EvalJob, Job, Trained, TrainJob
from playerfl.learning.layout import Blocks, Held, Layout, side_by_side
from playerfl.learning.linear_stack import NotOnlyLinearError, linear_outputs
from playerfl.learning.optimizers import Optimizer
from playerfl.learning.training import Learner

# Weights in a stack. Gradients and optimiser state make it four times as much, which should fit in the cache.
STACK_NUMBERS = 2_000_000
# The width of a batch is a multiple of this many rows; Layout says why.
LANES = 32


def group_of(job: Job) -> Hashable | None:
    """Jobs with equal groups may be stacked; None if this one may not."""
    learner = job.learner
    if learner.trainer != "stacked":
        return None
    if isinstance(job, EvalJob):
        tensors = all(isinstance(examples, TensorExamples) for examples in job.splits.values())
        padded = ((split, padded_rows(len(examples))) for split, examples in job.splits.items())
        return (id(learner), *padded) if tensors and job.splits else None
    touched = job.measure is not None and job.measure.embedding_rows == "touched"
    if touched or job.attach or not isinstance(job.examples, TensorExamples) or not _in_step(job):
        return None
    pulled = None if job.pull is None else (job.pull.strength, frozenset(job.pull.towards))
    return (
        id(learner),
        (type(job.optimizer), job.optimizer.slots, job.optimizer.inner_steps),
        job.epochs,
        job.batch_size,
        _width(job),
        job.only,
        pulled,
        job.measure,
    )


def _in_step(job: TrainJob) -> bool:
    """Whether all parameters have taken the same number of steps: a stack keeps one count per model."""
    for slot in job.optimizer.counts:
        known = job.state.get(slot, {})
        held = [known.get(name) for name in job.learner.trainable(job.only)]
        if any(count is not held[0] and (count is None or held[0] is None or count != held[0]) for count in held):
            return False
    return True


def _width(job: TrainJob) -> int:
    """Rows of a batch with its padding: given by the batch size, or less at a site with far fewer rows."""
    enough = LANES
    while enough < len(job.examples):
        enough *= 2
    return min(enough, padded_rows(job.batch_size))


def padded_rows(rows: int) -> int:
    return -(-rows // LANES) * LANES


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
    places = [(-_batches(job), seen.setdefault(_cohort_key(job), len(seen))) for job in jobs]
    order = sorted(range(len(jobs)), key=places.__getitem__)
    size = max(1, STACK_NUMBERS // layout.width)
    results: dict[int, Trained] = {}
    for start in range(0, len(order), size):
        part = order[start : start + size]
        results.update(zip(part, _Stack([jobs[i] for i in part], layout).train(), strict=True))
    return [results[i] for i in range(len(jobs))]


def _batches(job: TrainJob) -> int:
    return -(-len(job.examples) // job.batch_size)


def _cohort_key(job: TrainJob) -> Hashable:
    """Equal for models that may share a cohort: the same number of batches, optimiser, rates and counts of steps."""
    name = job.learner.trainable(job.only)[0]
    held = [job.state.get(slot, {}).get(name) for slot in job.optimizer.counts]
    return (
        _batches(job),
        job.optimizer,
        job.rate_factors,
        *(0.0 if count is None else float(count) for count in held),
    )


@dataclass(frozen=True)
class _Cohort:
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
    def of(cls, jobs: Sequence[TrainJob], start: int) -> _Cohort:
        job = jobs[0]
        examples = Gathered.of([one.examples for one in jobs if isinstance(one.examples, TensorExamples)])
        batches, width = _batches(job), _width(job)
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


@dataclass(frozen=True)
class _Active:
    """The first models of a stack, while these are the ones that train."""

    cohorts: list[_Cohort]
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
        self.cohorts: list[_Cohort] = []
        for _, members in groupby(jobs, key=_cohort_key):
            self.cohorts.append(_Cohort.of(list(members), self.cohorts[-1].stop if self.cohorts else 0))
        self.state = {slot: self._slot(slot) for slot in self.job.optimizer.slots}
        self.anchors = self._anchors()

    def _slot(self, slot: str) -> list[Blocks]:
        """The optimiser's state, by cohort: blocks, or one count for all models of the cohort."""
        return [
            self._held(slot, c, [job.state.get(slot, {}) for job in self.jobs[c.start : c.stop]]) for c in self.cohorts
        ]

    def _held(self, slot: str, cohort: _Cohort, held: list[Mapping[str, Tensor]]) -> Blocks:
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

    def _rows(self, cohort: _Cohort) -> Blocks:
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
                    weighted = self.learner.loss(outputs, targets) * shares
                    # A sum rather than `grad_outputs`, for which torch would first import sympy.
                    slopes = torch.autograd.grad(weighted.sum(), list(active.entries.values()))
                    gradients = dict(zip(active.entries, slopes, strict=True))
                    with torch.no_grad():
                        if inner == 0:
                            profiles.record(active, gradients, step)
                        active.step(self.layout.blocks(self._pulled(active, gradients)))
                means = weighted.detach().view(active.count, -1).sum(1)
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

    def _active(self, cohorts: list[_Cohort], begin: int) -> _Active:
        stop = cohorts[-1].stop
        return _Active(
            cohorts,
            {name: view[:stop].detach().requires_grad_() for name, view in self.layout.views(self.blocks).items()},
            {name: view[:stop] for name, view in self.fixed.items()},
            {name: anchor[:stop] for name, anchor in self.anchors.items()},
            self._step(cohorts, begin),
        )

    def _step(self, cohorts: list[_Cohort], begin: int) -> Callable[[Blocks], None]:
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


def outputs_of(learner: Learner, entries: Mapping[str, Tensor], inputs: Any) -> Any:
    """The outputs of all models for their inputs, concatenated model by model."""
    return tree_map(lambda output: output.flatten(0, 1), _by_model(learner, entries, inputs))


def _by_model(learner: Learner, entries: Mapping[str, Tensor], inputs: Any) -> Any:
    """The outputs with the model as first dimension, computed the faster way if the forward pass allows it."""
    if learner.only_linear:
        try:
            return linear_outputs(learner.model, {id(learner.entries[name]): e for name, e in entries.items()}, inputs)
        except NotOnlyLinearError:
            learner.only_linear = False

    def one(weights: dict[str, Tensor], x: Any) -> Any:
        return functional_call(learner.model, weights, *call_arguments(learner.model, x))

    return vmap(one)(dict(entries), inputs)
