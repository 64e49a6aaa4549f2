"""Setup: what runs that differ only in the algorithm share; prepared and checked before anything trains."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from playerfl.data.checks import check_sites, check_targets
from playerfl.data.examples import SiteData, tensors_in
from playerfl.data.sites import describe
from playerfl.errors import ConfigError, DataError, PlayerflError
from playerfl.federation.messages import SiteId
from playerfl.layers.derive import call_model
from playerfl.layers.layer_map import LayerMap, state_entries
from playerfl.learning.losses import logits_of
from playerfl.learning.stackable import choose_trainer
from playerfl.learning.training import Learner
from playerfl.runs.confusions import MOST_CLASSES
from playerfl.runs.experiment import Experiment, find_task
from playerfl.runs.files import DataFile
from playerfl.seeding import seed_for, seeded_rng
from playerfl.tasks.task import DataOptions, Task
from playerfl.weights import Weights

# Rows for trying whether a model can be stacked: enough that rows and their targets differ.
_TRIED_ROWS = 8

# A model with more has no confusion matrices in its results: each takes the square of it in numbers.
_MOST_CLASSES = {"auto": 100, "always": MOST_CLASSES, "never": 0}

_SETUP_SETTINGS: Any = {
    "device": True,
    "tie_policy": True,
    "bn_stats": True,
    "trainer": True,
    "confusions": True,
    "training": {"batch_size"},
}


@dataclass(frozen=True)
class Setup:
    """What runs that differ only in the algorithm share: sites, scratch model, initial weights."""

    sites: Mapping[SiteId, SiteData]
    learner: Learner
    initial: Weights
    build_model: Callable[[], nn.Module]
    description: DataFile


class Setups:
    """The setups of many runs. Data, layers and scratch model are made once and shared by all seeds.

    Only one task is kept at a time: the data of all tasks of a study need not fit into memory together.
    """

    def __init__(self, task: Task | None = None) -> None:
        """`task`: used for all runs, instead of finding the task by its name."""
        self._task = task
        self._of_task = ""
        self._known: dict[str, Setup] = {}

    def of(self, experiment: Experiment) -> Setup:
        task = self._task or find_task(experiment.task)
        of_task = experiment.model_dump_json(include={"task", "data"})
        if of_task != self._of_task:
            self._of_task, self._known = of_task, {}
        key = experiment.model_dump_json(include=_SETUP_SETTINGS)
        if key not in self._known:
            self._known[key] = prepare_setup(experiment, task)
            return self._known[key]
        return seeded_setup(self._known[key], experiment, task)


def seeded_setup(setup: Setup, experiment: Experiment, task: Task) -> Setup:
    """The same setup with the initial weights of another seed."""
    options = experiment.data_options(task)
    build = partial(seeded_model, experiment.seed, task.for_options(options), options)
    return replace(setup, initial=_entries(build()), build_model=build)


def prepare_setup(experiment: Experiment, task: Task) -> Setup:
    """Loads and checks the data, builds the seeded model and its layers."""
    options = experiment.data_options(task)
    task = task.for_options(options)
    sites = task.load_sites(options)
    check_sites(
        sites,
        batch_size=experiment.training.batch_size,
        classification=task.classification,
        accept_small_sites=options.accept_small_sites,
    )
    model = seeded_model(experiment.seed, task, options)
    inputs, _ = next(iter(sites[min(sites)].train.batches(2)))
    _check_outputs(model, inputs, task, sites)
    if experiment.training.batch_size == 1 and any(isinstance(m, _BatchNorm) for m in model.modules()):
        raise ConfigError("training.batch_size = 1 does not work with batch norm; use at least 2")
    layers = LayerMap.of(model, inputs, tie_policy=experiment.tie_policy, statistics=experiment.bn_stats)
    initial = _entries(model)
    learner = Learner(
        model, layers, task.loss, task.metrics, experiment.device, most_classes=_MOST_CLASSES[experiment.confusions]
    )
    some = next(iter(sites[min(sites)].train.batches(_TRIED_ROWS)))
    learner.trainer, note = choose_trainer(experiment.trainer, learner, *some)
    placed = {name: learner.place(site) for name, site in sites.items()}
    description = describe(sites, classification=task.classification)
    return Setup(
        placed,
        learner,
        initial,
        partial(seeded_model, experiment.seed, task, options),
        {
            **description,
            "notes": [*description["notes"], *([note] if note else [])],
            "paper": task.paper,
            "model": {name: list(entry.shape) for name, entry in initial.items()},
            "trainer": learner.trainer,
        },
    )


def _entries(model: nn.Module) -> Weights:
    return {name: entry.detach().clone() for name, entry in state_entries(model).items()}


def seeded_model(seed: int, task: Task, options: DataOptions) -> nn.Module:
    try:
        with seeded_rng(seed_for(seed, "init")):
            model = task.build_model(options)
    except PlayerflError:
        raise
    except Exception as problem:  # a user's model may raise anything
        message = " ".join(str(problem).split())
        raise ConfigError(
            f"the model of task {task.name!r} cannot be built: {type(problem).__name__}: {message}"
        ) from problem
    if not isinstance(model, nn.Module):
        raise ConfigError(f"the model of task {task.name!r} must be an nn.Module, not {type(model).__name__}")
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise ConfigError(f"{type(model).__name__} has no parameters to train; unfreeze some of its layers")
    return model


def _check_outputs(model: nn.Module, inputs: Any, task: Task, sites: Mapping[SiteId, SiteData]) -> None:
    model.eval()
    try:
        with torch.no_grad():
            output = call_model(model, inputs)
    except (RuntimeError, TypeError, ValueError) as problem:
        raise input_error("the sites' inputs", inputs, problem) from problem
    if task.classification:
        logits = logits_of(output)
        if logits.dim() != 2:
            raise DataError(
                f"the model's output has the shape {tuple(logits.shape)}; (rows, classes) is needed for class targets"
            )
        check_targets(sites, logits.shape[1])


def input_error(whose: str, inputs: Any, problem: Exception) -> DataError:
    """A model's own complaint in one sentence; with a hint if the inputs are float64, as numpy makes them."""
    reason = str(problem).strip().splitlines() or [type(problem).__name__]
    wide = any(x.dtype == torch.float64 for x in tensors_in(inputs))
    hint = "; they are float64: convert them, as in inputs.float()" if wide else ""
    return DataError(f"the model cannot read {whose}: {reason[0]}{hint}")
