"""Learner: one model, its loss and its device, and the plain loop that trains it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm, _NormBase

from playerfl.data.examples import Examples, SiteData, map_tensors
from playerfl.errors import DataError
from playerfl.layers.derive import call_model
from playerfl.layers.layer_map import LayerMap, state_entries
from playerfl.layers.probe import SensitivityProbe
from playerfl.layers.sensitivity import Profile
from playerfl.learning.backward import mean_backward
from playerfl.learning.confusion import Matrix, confusions_of_splits
from playerfl.learning.job import EvalJob, Evaluated, Measure, Trained, TrainJob
from playerfl.learning.losses import logits_of
from playerfl.learning.metrics import predictions
from playerfl.learning.metrics.catalogue import AnyMetric, declared
from playerfl.learning.metrics.numbers import TargetScale
from playerfl.learning.metrics.scoring import UNSCALED, scores_of, scores_of_confusions
from playerfl.learning.model_trial import works
from playerfl.learning.optimizers import Optimizer, OptimizerState
from playerfl.learning.stacked.layout import Layout
from playerfl.seeding import seeded_rng
from playerfl.weights import Weights

EVALUATION_BATCH = 512
TrainerName = Literal["loop", "stacked"]


@dataclass(frozen=True)
class _Pass:
    """What a model gave for the rows of a split, on the CPU, as one row per model (here always one)."""

    loss_sum: float
    rows: int
    classes: int
    """0 if no metric is about classes."""
    predicted: Tensor
    outputs: Tensor
    targets: Tensor


def _joined(parts: list[Tensor]) -> Tensor:
    return (parts[0] if len(parts) == 1 else torch.cat(parts)).cpu().unsqueeze(0) if parts else torch.empty(1, 0)


class Learner:
    """A scratch model on a device. Every job loads all of its weights, so no site sees another site's."""

    def __init__(
        self,
        model: nn.Module,
        layers: LayerMap,
        loss: Callable[[Any, Tensor], Tensor],
        metrics: Mapping[str, AnyMetric],
        device: torch.device | str = "cpu",
        trainer: TrainerName = "loop",
        most_classes: int = 0,
        scale: TargetScale = UNSCALED,
        example: tuple[Any, Tensor] | None = None,
    ) -> None:
        """`trainer`: whether jobs run here, one by one, or many together in playerfl.learning.stacked.
        `most_classes`: models with up to this many classes are evaluated with confusion matrices.
        `scale`: how numeric targets were scaled; metrics are computed in their own units.
        `example`: inputs and targets with which the model is tried in the memory format that is fastest."""
        self.trainer = trainer
        self.most_classes = most_classes
        self.device = torch.device(device)
        # On the CPU convolutions are 1.4 to 1.9 times as fast with channels last. torch refuses it if a tensor has five
        # dimensions.
        convolves = any(isinstance(m, nn.Conv2d) for m in model.modules())
        fits = all(entry.dim() != 5 for entry in (*model.parameters(), *model.buffers()))
        self._format = torch.channels_last if convolves and fits else None
        self.model = model.to(self.device)
        if self._format is not None:
            self.model = self.model.to(memory_format=self._format)  # type: ignore[call-overload]
            inputs, targets = example or (None, None)
            if targets is not None and not works(
                self.model, map_tensors(inputs, self.placed), self.placed(targets), loss
            ):
                # `view`, with which many flatten features or masks, needs them in torch's usual format.
                self._format = None
                self.model = self.model.to(memory_format=torch.contiguous_format)  # type: ignore[call-overload]
        self.layers = layers
        self.loss = loss
        self.metrics = declared(metrics)
        self.scale = scale
        # Keeping all outputs costs memory and time, so it is done only for metrics that need them.
        self.needs_classes = any(metric.task == "classification" for metric in self.metrics.values())
        self.needs_outputs = any(metric.needs != "classes" for metric in self.metrics.values())
        self.entries = state_entries(self.model)
        self.parameters = dict(self.model.named_parameters())
        self.only_linear = True  # until a stacked forward pass shows otherwise: see linear_stack
        self._norms = [(path, m) for path, m in self.model.named_modules() if isinstance(m, _NormBase)]
        self._batch_norms = [m for _, m in self._norms if isinstance(m, _BatchNorm)]
        self._trainable: dict[frozenset[str] | None, list[str]] = {}
        self._layouts: dict[tuple[str, ...], Layout] = {}
        self._owner = {entry: layer for layer, entries in layers.entries.items() for entry in entries}
        self._frozen: Weights = {}

    def weights(self, given: Mapping[str, Tensor] | None = None) -> Weights:
        """Copies of the scratch model's entries, on the CPU, where they are exchanged and averaged.

        Frozen entries are not copied if they are `given`: all sites then share one large base model.
        """
        same = {} if given is None else {name: given[name] for name in self.layers.frozen}
        return {
            name: same[name] if name in same else entry.detach().to("cpu", copy=True)
            for name, entry in self.entries.items()
        }

    def place(self, data: SiteData) -> SiteData:
        """A site's data on the device."""
        return SiteData(*(part.mapped(self.placed) for part in (data.train, data.validation, data.test)))

    def placed(self, tensor: Tensor) -> Tensor:
        """A tensor on the device, images in the memory format of the convolutions."""
        moved = tensor.to(self.device)
        if self._format is not None and moved.dim() == 4:
            return moved.contiguous(memory_format=self._format)
        return moved

    def train(self, job: TrainJob) -> Trained:
        """Trains for some epochs: for each batch the gradient, then layer scores and pull if requested, then a step."""
        self.load(job.weights)
        chosen = self.trainable(job.only)
        if not chosen or job.epochs == 0:
            return Trained(self.weights(job.weights), None)
        parameters = [self.parameters[name] for name in chosen]
        moves: dict[tuple[Optimizer, tuple[str, ...]], Callable[[], None]] = {}
        probe = job.measure and self.probe(job.measure)
        profile: Profile | None = None

        loss_sum = torch.zeros((), dtype=parameters[0].dtype, device=self.device)
        seen = 0
        noise = int(torch.randint(2**62, (), generator=job.order))
        attaching = job.attach(self.model) if job.attach else nullcontext()
        with self._training(chosen), seeded_rng(noise, self.device), attaching as attached:
            for epoch in range(job.epochs):
                optimizer = job.optimizer_in(epoch)
                measuring = probe if epoch == 0 and probe and probe.mode == "running" else None
                batches = job.examples.batches(job.batch_size, job.order, join_single=bool(self._batch_norms))
                for inputs, targets in batches:
                    for inner in range(job.optimizer.inner_steps):
                        losses = self._loss_of(call_model(self.model, inputs), targets)
                        term = attached.term() if attached else None
                        if term is None:
                            mean_backward(losses)
                        else:
                            (losses.mean() + term).backward()  # type: ignore[no-untyped-call]
                        if measuring and inner == 0:
                            measuring.record(len(targets))
                        # Like torch's own optimisers, skip parameters that the batch did not use.
                        used = tuple(name for name, p in zip(chosen, parameters, strict=True) if p.grad is not None)
                        move = moves.get((optimizer, used))
                        if move is None:
                            # The new one has its own counts of steps, so the others would go on from outdated ones.
                            moves.clear()
                            move = moves[optimizer, used] = self._step(optimizer, used, job)
                        move()
                        if attached:
                            attached.step(optimizer)
                        for parameter in parameters:
                            parameter.grad = None
                    loss_sum.add_(losses.detach().mean(), alpha=len(targets))
                    seen += len(targets)
                if probe and epoch == 0:
                    profile = self._profile(probe, job)
        if not seen:
            raise DataError("a site has no training examples; every site needs at least one")
        return Trained(self.weights(job.weights), float(loss_sum) / seen, profile)

    def trainable(self, only: frozenset[str] | None) -> list[str]:
        """The parameters that train, all or some of them."""
        if only not in self._trainable:
            unfrozen = [name for name in self.parameters if name not in self.layers.frozen]
            self._trainable[only] = [name for name in unfrozen if only is None or name in only]
        return self._trainable[only]

    def layout(self, names: Iterable[str]) -> Layout:
        """The layout of some entries: the same object for the same entries, so that rows can be recognised."""
        key = tuple(names)
        if key not in self._layouts:
            self._layouts[key] = Layout({name: self.entries[name] for name in key})
        return self._layouts[key]

    def _step(self, optimizer: Optimizer, names: tuple[str, ...], job: TrainJob) -> Callable[[], None]:
        parameters = [self.parameters[name] for name in names]
        step = optimizer.stepper(parameters, self._state(optimizer, job.state, list(names)))
        pull = _pull_on(parameters, list(names), job)

        def move() -> None:
            gradients = [p.grad for p in parameters if p.grad is not None]
            if pull:
                pull(gradients)
            step(gradients)

        return move

    def gradients(self, weights: Weights, inputs: Any, targets: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """The losses of a batch and the gradients of their mean, as in `train`."""
        self.load(weights)
        chosen = self.trainable(None)
        with self._training(chosen):
            losses = self._loss_of(call_model(self.model, inputs), targets)
            mean_backward(losses)
            gradients = {name: self.parameters[name].grad for name in chosen}
            return losses.detach(), {name: g for name, g in gradients.items() if g is not None}

    def profile_at(self, weights: Weights, job: TrainJob) -> Profile:
        """The layer scores at these weights, in the modes that measure after the epoch."""
        assert job.measure is not None
        self.load(weights)
        with self._training(self.trainable(job.only)):
            return self._profile(self.probe(job.measure), job)

    def probe(self, measure: Measure) -> SensitivityProbe:
        """A probe that measures layer scores as a job requests."""
        return SensitivityProbe(
            self.model,
            mode=measure.mode,
            layers=self.layers,
            include_bias=measure.include_bias,
            weight_batches=measure.weight_batches,
            embedding_rows=measure.embedding_rows,
            max_batches=measure.max_batches,
        )

    def _profile(self, probe: SensitivityProbe, job: TrainJob) -> Profile:
        if probe.mode == "running":
            return probe.profile()
        # Drawn from a separate generator: measuring must not change the batches of the following epochs.
        order = torch.Generator().manual_seed(job.order.initial_seed() ^ 1)
        batches = job.examples.batches(job.batch_size, order if probe.mode == "one_batch" else None)
        return probe.measure(batches, self.loss)

    def evaluate(self, job: EvalJob) -> Evaluated:
        """Each metric over each whole split; the loss is the mean over examples."""
        self.load(job.weights)
        self.model.eval()
        with torch.inference_mode():
            passes = {split: self._pass(examples) for split, examples in job.splits.items()}
        scores = {split: dict.fromkeys(("loss", *self.metrics), math.nan) for split in passes}
        with_rows = {split: given for split, given in passes.items() if given.rows}
        matrices = self._confusions(list(with_rows.values()))
        from_matrices = {} if matrices is None else scores_of_confusions(self.metrics, matrices)
        others = {name: metric for name, metric in self.metrics.items() if name not in from_matrices}
        for number, (split, given) in enumerate(with_rows.items()):
            scores[split]["loss"] = given.loss_sum / given.rows
            scores[split] |= {name: of_splits[number] for name, of_splits in from_matrices.items()}
            if others:
                by_metric = scores_of(others, given.predicted, given.outputs, given.targets, self.scale)
                scores[split] |= {name: of_models[0] for name, of_models in by_metric.items()}
        return Evaluated(scores, {} if matrices is None else dict(zip(with_rows, matrices, strict=True)))

    def _pass(self, examples: Examples) -> _Pass:
        loss_sum, rows = 0.0, 0
        predicted, outputs, expected = list[Tensor](), list[Tensor](), list[Tensor]()
        for inputs, targets in examples.batches(EVALUATION_BATCH):
            output = call_model(self.model, inputs)
            losses = self._loss_of(output, targets)
            loss_sum += float(losses.double().sum() if losses.dim() else losses.double() * len(targets))
            rows += len(targets)
            if self.metrics:
                logits = logits_of(output)
                expected.append(targets)
                if self.needs_classes:
                    predicted.append(predictions(logits))
                if self.needs_outputs:
                    outputs.append(logits)
        classes = logits.shape[-1] if predicted else 0
        return _Pass(loss_sum, rows, classes, *map(_joined, (predicted, outputs, expected)))

    def _confusions(self, passes: Sequence[_Pass]) -> Matrix | None:
        """The confusion matrix of each split; None if this learner records none."""
        if not passes or not self.records_confusions(passes[0].classes):
            return None
        classes = passes[0].classes
        return confusions_of_splits([one.predicted[0] for one in passes], [one.targets[0] for one in passes], classes)

    def records_confusions(self, classes: int) -> bool:
        return 0 < classes <= self.most_classes

    def outputs(self, weights: Weights, examples: Examples) -> tuple[Tensor, Tensor, Tensor | None]:
        """A model's output for each row, the targets, and the losses (if there is one per row), on the CPU."""
        self.load(weights)
        self.model.eval()
        outputs, expected, losses = list[Tensor](), list[Tensor](), list[Tensor]()
        with torch.no_grad():
            for inputs, targets in examples.batches(EVALUATION_BATCH):
                output = call_model(self.model, inputs)
                outputs.append(logits_of(output).cpu())
                expected.append(targets.cpu())
                losses.append(self._loss_of(output, targets).cpu())
        per_row = all(loss.shape == (len(rows),) for loss, rows in zip(losses, expected, strict=True))
        return torch.cat(outputs), torch.cat(expected), torch.cat(losses) if per_row else None

    def _loss_of(self, output: Any, targets: Tensor) -> Tensor:
        try:
            return self.loss(output, targets)
        except IndexError as problem:
            # torch says "Target 5 is out of bounds"; any other error is a bug in a user's loss.
            if not str(problem).startswith("Target "):
                raise
            raise DataError(f"a site's targets do not fit the model's outputs: {problem}") from problem

    def load(self, weights: Weights) -> None:
        """Loads these weights into the scratch model; frozen ones only if they are not those loaded before."""
        known = self._frozen
        names = [name for name in self.entries if name not in known or weights[name] is not known[name]]
        with torch.no_grad():
            torch._foreach_copy_([self.entries[name].detach() for name in names], [weights[name] for name in names])
        self._frozen = {name: weights[name] for name in self.layers.frozen}

    def _state(self, optimizer: Optimizer, state: OptimizerState, names: list[str]) -> dict[str, list[Tensor]]:
        """The slots of these parameters, created if missing, and brought into the parameters' layout if necessary."""
        lists: dict[str, list[Tensor]] = {}
        for slot in optimizer.slots:
            known = dict(state.get(slot, {}))
            state[slot] = known
            for name in names:
                parameter, held = self.parameters[name], known.get(name)
                if held is None:
                    known[name] = optimizer.fresh(slot, parameter)
                elif held.device != parameter.device or (held.dim() and held.stride() != parameter.stride()):
                    known[name] = optimizer.fresh(slot, parameter).copy_(held)
                elif slot in optimizer.counts:
                    # The stacked trainer leaves one tensor for all parameters, whether they train here or not.
                    known[name] = held.clone()
            lists[slot] = [known[name] for name in names]
        return lists

    @contextmanager
    def _training(self, chosen: list[str]) -> Iterator[None]:
        """Train mode for the chosen parameters; frozen layers' batch-norm statistics stay as they are."""
        train = set(chosen)
        self.model.train()
        moving = {self._owner[name] for name in chosen}
        for path, module in self._norms:
            affine = [f"{path}.{name}" if path else name for name, _ in module.named_parameters(recurse=False)]
            statistics = f"{path}.running_mean" if path else "running_mean"
            if not train.intersection(affine) if affine else self._owner.get(statistics, None) not in moving:
                module.eval()
        for name, parameter in self.parameters.items():
            parameter.requires_grad_(name in train)
        try:
            yield
        finally:
            for name, parameter in self.parameters.items():
                parameter.grad = None
                parameter.requires_grad_(name not in self.layers.frozen)


def _pull_on(parameters: list[nn.Parameter], names: list[str], job: TrainJob) -> Callable[[list[Tensor]], None] | None:
    # At strength 0 the term is left out: adding 0·x could turn -0.0 into 0.0 and inf into nan.
    if job.pull is None or job.pull.strength == 0:
        return None
    strength = job.pull.strength
    positions = [i for i, name in enumerate(names) if name in job.pull.towards]
    if not positions:  # torch's foreach functions refuse empty lists
        return None
    anchors = [job.pull.towards[names[i]].to(parameters[i].device) for i in positions]

    def add(gradients: list[Tensor]) -> None:
        with torch.no_grad():
            away = torch._foreach_sub([parameters[i].detach() for i in positions], anchors)
            torch._foreach_add_([gradients[i] for i in positions], away, alpha=strength)

    return add
