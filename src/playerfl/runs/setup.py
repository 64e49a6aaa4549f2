"""Setup: what runs that differ only in the algorithm have in common. It is prepared and checked before any training."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any
from weakref import WeakValueDictionary

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from playerfl.data.checks import check_sites, check_targets
from playerfl.data.examples import SiteData, tensors_in
from playerfl.data.sites import describe
from playerfl.errors import ConfigError, DataError, PlayerflError, described, one_of, users_line
from playerfl.federation.messages import SiteId
from playerfl.layers.adapters import without_adapters
from playerfl.layers.derive import arguments_mismatch, call_model
from playerfl.layers.layer_map import LayerMap, state_entries
from playerfl.layers.wrappers import unwrapped
from playerfl.learning.losses import logits_of, squared_error
from playerfl.learning.metrics.catalogue import chosen_metrics
from playerfl.learning.model_trial import check_calls, check_parameters
from playerfl.learning.stacked.stackable import choose_trainer
from playerfl.learning.training import Learner
from playerfl.runs.confusions import MOST_CLASSES
from playerfl.runs.experiment import Experiment
from playerfl.runs.files import DataFile, FrozenRecord
from playerfl.runs.measures.baseline import add_baseline
from playerfl.runs.measures.declared import metric_records
from playerfl.seeding import seed_for, seeded_rng
from playerfl.tasks import TASKS
from playerfl.tasks.load import load_task
from playerfl.tasks.named_models import with_model
from playerfl.tasks.task import DataOptions, Task
from playerfl.weights import Weights, digest, num_bytes

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
    "metrics": True,
    "positive_class": True,
    "model": True,
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
    """Why the model is not stacked, if that is worth a note."""
    test_groups: Mapping[SiteId, Tensor] = field(default_factory=dict)
    """The group of each test row, such as its patient, at sites where that is known."""


class Setups:
    """The setups of many runs. All seeds share the layers and the scratch model, and also the data, unless each
    seed has its own split.

    Only one task is kept at a time, because the data of all tasks of a study may not fit into memory together. The data
    of a seed are kept only as long as some run holds its setup.
    """

    def __init__(self, task: Task | None = None) -> None:
        """`task`: used for all runs, instead of finding the task by its name."""
        self._task = task
        self._data_key = ""
        self._known: dict[str, Setup] = {}
        self._by_seed: WeakValueDictionary[tuple[str, int], Setup] = WeakValueDictionary()

    def of(self, experiment: Experiment) -> Setup:
        task = self._task or load_task(experiment.task)
        data_key = experiment.model_dump_json(include={"task", "data"})
        if data_key != self._data_key:
            self._data_key, self._known = data_key, {}
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
    task = with_model(task, experiment.model).for_options(options)
    build = partial(seeded_model, experiment.seed, task, options)
    if options.split == "fixed":
        initial = _entries(build())
        described: DataFile = {**setup.description, **frozen_record(initial, setup.learner.layers.frozen)}
        return replace(setup, initial=initial, build_model=build, description=described)
    sites = _checked_sites(experiment, task, options)
    model = build()
    _, outputs = _check_outputs(model, task, sites)
    initial = _entries(model)
    return replace(
        setup,
        sites={name: setup.learner.place(site) for name, site in sites.items()},
        initial=initial,
        build_model=build,
        description=_description(experiment, sites, task, initial, setup.learner, outputs, setup.trainer_note),
        test_groups=_test_groups(sites),
    )


def prepare_setup(experiment: Experiment, task: Task) -> Setup:
    """Loads and checks the data, builds the seeded model and its layers."""
    options = experiment.data_options(task)
    task = with_model(task, experiment.model).for_options(options)
    sites = _checked_sites(experiment, task, options)
    model = seeded_model(experiment.seed, task, options)
    example, outputs = _check_outputs(model, task, sites)
    inputs, _ = example
    check_calls(model, inputs)
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
        model,
        layers,
        task.loss,
        chosen_metrics(experiment.metrics, task.metrics, positive_class(experiment, task)),
        experiment.device,
        most_classes=_MOST_CLASSES[experiment.confusions],
        scale=task.scale,
        example=example,
    )
    some = next(iter(sites[min(sites)].train.batches(_TRIED_ROWS)))
    learner.trainer, note = choose_trainer(experiment.trainer, learner, *some)
    return Setup(
        {name: learner.place(site) for name, site in sites.items()},
        learner,
        initial,
        partial(seeded_model, experiment.seed, task, options),
        _description(experiment, sites, task, initial, learner, outputs, note),
        note,
        _test_groups(sites),
    )


def _checked_sites(experiment: Experiment, task: Task, options: DataOptions) -> Mapping[SiteId, SiteData]:
    sites = task.load_sites(options)
    check_sites(
        sites,
        batch_size=experiment.training.batch_size,
        classification=task.classification,
        accept_small_sites=options.accept_small_sites,
        classes=task.classes,
    )
    return sites


def positive_class(experiment: Experiment, task: Task) -> int:
    """The number of the class that metrics of two classes are about."""
    given = experiment.positive_class
    if given is None:
        return 1
    names = task.classes or ("0", "1")
    if len(names) != 2:
        raise ConfigError(f"positive_class is for two classes, but this task has {len(names)}; leave it out")
    if isinstance(given, int) and given in (0, 1):
        return int(given)
    if str(given) not in names:
        raise ConfigError(one_of(given, names, "positive_class"))
    return names.index(str(given))


def _description(
    experiment: Experiment,
    sites: Mapping[SiteId, SiteData],
    task: Task,
    initial: Weights,
    learner: Learner,
    outputs: int,
    trainer_note: str | None,
) -> DataFile:
    description = describe(sites, classification=task.classification)
    for name, record in description["sites"].items():
        add_baseline(record, sites[name], learner, outputs, with_loss=task.name not in TASKS)
    positive = positive_class(experiment, task)
    described = DataFile(
        notes=[*description["notes"], *([trainer_note] if trainer_note else [])],
        partition_hash=description["partition_hash"],
        sites=description["sites"],
        paper=task.paper,
        model={name: list(entry.shape) for name, entry in initial.items()},
        trainer=learner.trainer,
        metrics=metric_records(learner.metrics),
    )
    described = {**described, **frozen_record(initial, learner.layers.frozen)}
    if positive != 1:
        described["positive_class"] = positive
    if task.classes:
        described["class_names"] = list(task.classes)
    return described


def frozen_record(initial: Weights, names: Collection[str]) -> Any:
    """What a run's description says about frozen weights; nothing if there are none."""
    frozen = {name: initial[name] for name in sorted(names)}
    if not frozen:
        return {}
    whole = {name: initial[name] for name in without_adapters(initial)}
    return {
        "frozen": FrozenRecord(
            entries=list(frozen),
            parameters=sum(entry.numel() for entry in frozen.values()),
            digest=digest(frozen),
            full_fine_tuning_bytes=num_bytes(whole),
        )
    }


def _test_groups(sites: Mapping[SiteId, SiteData]) -> dict[SiteId, Tensor]:
    """From tasks whose sites say which rows belong together."""
    return {site: torch.as_tensor(parts.test) for site, parts in getattr(sites, "groups", {}).items()}


def _entries(model: nn.Module) -> Weights:
    return {name: entry.detach().clone() for name, entry in state_entries(model).items()}


def initial_model(experiment: Experiment, task: Task | None = None) -> nn.Module:
    """The model an experiment starts from; `task` defaults to the one it names."""
    known = with_model(task or load_task(experiment.task), experiment.model)
    return seeded_model(experiment.seed, known, experiment.data_options(known))


def seeded_model(seed: int, task: Task, options: DataOptions) -> nn.Module:
    try:
        with seeded_rng(seed_for(seed, "init")):
            model = task.build_model(options)
    except PlayerflError:
        raise
    except Exception as problem:  # a user's model may raise anything
        raise ConfigError(f"the model of task {task.name!r} cannot be built: {described(problem)}") from problem
    if not isinstance(model, nn.Module):
        raise ConfigError(f"the model of task {task.name!r} must be an nn.Module, not {type(model).__name__}")
    model = unwrapped(model)
    check_parameters(model)
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise ConfigError(f"{type(model).__name__} has no parameters to train; unfreeze some of its layers")
    return model


def _check_outputs(model: nn.Module, task: Task, sites: Mapping[SiteId, SiteData]) -> tuple[tuple[Any, Tensor], int]:
    """Tries the model on a few inputs and compares its outputs with the sites' targets.

    Returns these examples, and the model's number of classes (0 if targets are not classes).
    """
    inputs, targets = next(iter(sites[min(sites)].train.batches(2)))
    model.eval()
    try:
        with torch.no_grad(), warnings.catch_warnings():
            # What torch warns about before it fails would hide the sentence.
            warnings.simplefilter("ignore")
            output = call_model(model, inputs)
    except Exception as problem:  # a user's model may raise anything
        raise input_error("the sites' inputs", model, inputs, problem) from problem
    logits = logits_of(output)
    if task.loss is squared_error and (logits.dim() != 2 or logits.shape[1] != 1):
        raise DataError(
            f"the model's output has the shape {tuple(logits.shape)}; (rows, 1) is needed to predict a number"
        )
    if task.classification:
        if logits.dim() != 2:
            raise DataError(
                f"the model's output has the shape {tuple(logits.shape)}; (rows, classes) is needed for class targets"
            )
        check_targets(sites, logits.shape[1])
        if task.classes and logits.shape[1] != len(task.classes):
            raise DataError(
                f"the model has {logits.shape[1]} outputs, but the target has {len(task.classes)} classes; it needs "
                "one output for each (a model's function may ask for `outputs`)"
            )
        return (inputs, targets), logits.shape[1]
    return (inputs, targets), 0


def input_error(whose: str, model: nn.Module, inputs: Any, problem: Exception) -> DataError:
    """Why a model cannot read its inputs, in one sentence: `forward` takes other arguments, or its own error, with
    a hint if the inputs are float64, as numpy makes them."""
    if mismatch := arguments_mismatch(model, inputs):
        return DataError(f"the model cannot read {whose}: {mismatch}")
    lines = str(problem).strip().splitlines() or [""]
    # A KeyError says only 'ids', and an AssertionError often nothing.
    plain = isinstance(problem, RuntimeError | TypeError | ValueError) and lines[0]
    reason = lines[0] if plain else f"{type(problem).__name__}{': ' if lines[0] else ''}{lines[0]}"
    wide = any(x.dtype == torch.float64 for x in tensors_in(inputs))
    hint = "; they are float64: convert them, as in inputs.float()" if wide else ""
    shapes = ", ".join(f"{str(x.dtype).removeprefix('torch.')} {tuple(x.shape)}" for x in tensors_in(inputs))
    forms = {dict: "a mapping of tensors, ", tuple: "a tuple of tensors, "}
    form = next((words for kind, words in forms.items() if isinstance(inputs, kind)), "one tensor, ")
    return DataError(f"the model cannot read {whose} ({form}{shapes}): {reason}{users_line(problem)}{hint}")
