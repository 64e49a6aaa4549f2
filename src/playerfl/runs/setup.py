"""Setup: what runs that differ only in the algorithm have in common. It is prepared and checked before any training."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any
from weakref import WeakValueDictionary

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

# Rows for testing whether a model can be stacked: enough for the rows and their targets to differ.
_TRIED_ROWS = 8

# With more classes, no confusion matrices are recorded: a matrix has as many cells as the square of this number.
_MOST_CLASSES = {"auto": 100, "always": MOST_CLASSES, "never": 0}

_SETUP_SETTINGS: Any = {
    "device": True,
    "tie_policy": True,
    "granularity": True,
    "bn_stats": True,
    "trainer": True,
    "confusions": True,
    "training": {"batch_size"},
}


@dataclass(frozen=True)
class Setup:
    """What runs that differ only in the algorithm have in common: sites, scratch model, initial weights."""

    sites: Mapping[SiteId, SiteData]
    learner: Learner
    initial: Weights
    build_model: Callable[[], nn.Module]
    description: DataFile
    trainer_note: str | None = None
    """Why the model is not stacked, if the user should know."""


class Setups:
    """The setups of many runs. All seeds share the layers and the scratch model, and also the data, unless each
    seed has its own split.

    Only one task is kept at a time, because the data of all tasks of a study may not fit into memory together. The data
    of a seed are kept only as long as some run holds its setup.
    """

    def __init__(self, task: Task | None = None) -> None:
        """`task`: used for all runs, instead of finding the task by its name."""
        self._task = task
        self._of_task = ""
        self._known: dict[str, Setup] = {}
        self._by_seed: WeakValueDictionary[tuple[str, int], Setup] = WeakValueDictionary()

    def of(self, experiment: Experiment) -> Setup:
        task = self._task or find_task(experiment.task)
        of_task = experiment.model_dump_json(include={"task", "data"})
        if of_task != self._of_task:
            self._of_task, self._known = of_task, {}
            self._by_seed.clear()
        key = experiment.model_dump_json(include=_SETUP_SETTINGS)
        setup = self._by_seed.get((key, experiment.seed))
        if setup is None:
            known = self._known.get(key)
            setup = seeded_setup(known, experiment, task) if known else prepare_setup(experiment, task)
            self._known.setdefault(key, setup)
            self._by_seed[key, experiment.seed] = setup
        return setup


def seeded_setup(setup: Setup, experiment: Experiment, task: Task) -> Setup:
    """The same setup with the initial weights of another seed, and with its sites if every seed has its own split."""
    options = experiment.data_options(task)
    task = task.for_options(options)
    build = partial(seeded_model, experiment.seed, task, options)
    if options.split == "fixed":
        return replace(setup, initial=_entries(build()), build_model=build)
    sites = _checked_sites(experiment, task, options)
    model = build()
    _check_outputs(model, task, sites)
    initial = _entries(model)
    return replace(
        setup,
        sites={name: setup.learner.place(site) for name, site in sites.items()},
        initial=initial,
        build_model=build,
        description=_description(sites, task, initial, setup.learner, setup.trainer_note),
    )


def prepare_setup(experiment: Experiment, task: Task) -> Setup:
    """Loads and checks the data, builds the seeded model and its layers."""
    options = experiment.data_options(task)
    task = task.for_options(options)
    sites = _checked_sites(experiment, task, options)
    model = seeded_model(experiment.seed, task, options)
    inputs = _check_outputs(model, task, sites)
    if experiment.training.batch_size == 1 and any(isinstance(m, _BatchNorm) for m in model.modules()):
        raise ConfigError("training.batch_size = 1 does not work with batch norm; use at least 2")
    layers = LayerMap.of(
        model,
        inputs,
        tie_policy=experiment.tie_policy,
        statistics=experiment.bn_stats,
        granularity=experiment.granularity,
    )
    initial = _entries(model)
    learner = Learner(
        model, layers, task.loss, task.metrics, experiment.device, most_classes=_MOST_CLASSES[experiment.confusions]
    )
    some = next(iter(sites[min(sites)].train.batches(_TRIED_ROWS)))
    learner.trainer, note = choose_trainer(experiment.trainer, learner, *some)
    return Setup(
        {name: learner.place(site) for name, site in sites.items()},
        learner,
        initial,
        partial(seeded_model, experiment.seed, task, options),
        _description(sites, task, initial, learner, note),
        note,
    )


def _checked_sites(experiment: Experiment, task: Task, options: DataOptions) -> Mapping[SiteId, SiteData]:
    sites = task.load_sites(options)
    check_sites(
        sites,
        batch_size=experiment.training.batch_size,
        classification=task.classification,
        accept_small_sites=options.accept_small_sites,
    )
    return sites


def _description(
    sites: Mapping[SiteId, SiteData], task: Task, initial: Weights, learner: Learner, trainer_note: str | None
) -> DataFile:
    description = describe(sites, classification=task.classification)
    return {
        **description,
        "notes": [*description["notes"], *([trainer_note] if trainer_note else [])],
        "paper": task.paper,
        "model": {name: list(entry.shape) for name, entry in initial.items()},
        "trainer": learner.trainer,
    }


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


def _check_outputs(model: nn.Module, task: Task, sites: Mapping[SiteId, SiteData]) -> Any:
    """Tries the model on a few inputs and compares its outputs with the sites' targets; returns these inputs."""
    inputs, _ = next(iter(sites[min(sites)].train.batches(2)))
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
    return inputs


def input_error(whose: str, inputs: Any, problem: Exception) -> DataError:
    """A model's own complaint in one sentence; with a hint if the inputs are float64, as numpy makes them."""
    reason = str(problem).strip().splitlines() or [type(problem).__name__]
    wide = any(x.dtype == torch.float64 for x in tensors_in(inputs))
    hint = "; they are float64: convert them, as in inputs.float()" if wide else ""
    return DataError(f"the model cannot read {whose}: {reason[0]}{hint}")
