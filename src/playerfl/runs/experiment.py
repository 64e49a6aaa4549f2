"""Experiment: everything that decides a run, as a strict TOML file and a typed object."""

from __future__ import annotations

import dataclasses
import re
import tomllib
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, get_type_hints

import tomli_w
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, create_model, model_validator

from playerfl.algorithms import ALGORITHMS, Algorithm
from playerfl.engine.handle import EvalPoint, EvaluationPlan, Selection
from playerfl.errors import ConfigError, one_of
from playerfl.federation.client import TrainingPlan
from playerfl.federation.merging import Merge, MergeRule
from playerfl.layers.derive import Granularity
from playerfl.layers.layer_map import BatchNormStatistics, TiePolicy
from playerfl.learning.metrics.catalogue import check_names
from playerfl.learning.optimizers import SGD, AdamW
from playerfl.learning.schedules import DEFAULT_FACTOR, Schedule, ScheduleKind
from playerfl.runs.settings_table import merged, read_toml, validated
from playerfl.tasks import TASKS
from playerfl.tasks.added_options import AddedOptions
from playerfl.tasks.load import load_object, load_task, names_object
from playerfl.tasks.task import DataOptions, Task

_STRICT = ConfigDict(extra="forbid", frozen=True)
_MOST_CHARACTERS = 2**18
_MOST_DOTS = 1000
"""The reader takes a minute for one key with 65,000 dots."""
_Beta = Annotated[float, Field(ge=0, lt=1)]
MetricNames = Annotated[
    tuple[str, ...],
    BeforeValidator(lambda given: [n.strip() for n in given.split(",")] if isinstance(given, str) else given),
]
"""Names of metrics; in a string, separated by commas."""


class TrainingOptions(AddedOptions):
    """The `[training]` table: how every site trains."""

    model_config = _STRICT
    added: ClassVar[frozenset[str]] = frozenset({"amsgrad", "schedule", "schedule_factor"})

    learning_rate: float = Field(1e-3, ge=0, allow_inf_nan=False)
    """The optimiser's step size at every site. Tasks have defaults of their own, by algorithm."""
    batch_size: int = Field(32, ge=1)
    """Rows per optimiser step; the last batch of an epoch may be smaller."""
    local_epochs: int = Field(1, ge=1)
    """Passes over a site's training rows in each round."""
    optimizer: Literal["adamw", "sgd"] = "adamw"
    """adamw, or sgd with optional momentum. pFedMe takes plain gradient steps with either."""
    weight_decay: float = Field(0.01, ge=0, allow_inf_nan=False)
    """How much every step shrinks the weights. Default: 0.01 for adamw, 0 for sgd."""
    betas: tuple[_Beta, _Beta] = (0.9, 0.999)
    """For adamw: how slowly the two moving averages of the gradient forget."""
    eps: float = Field(1e-8, gt=0)
    """For adamw: added to the denominator of a step."""
    amsgrad: bool = False
    """For adamw: whether steps are divided by the largest second moment so far."""
    momentum: float = Field(0.0, ge=0, lt=1)
    """For sgd: the share of the last step that is added to the next."""
    optimizer_state: Literal["persistent", "reset"] = "persistent"
    """Whether a site's optimiser keeps its state between rounds or starts afresh in each."""
    schedule: ScheduleKind = "constant"
    """How the learning rate falls: not at all (constant), by a factor per epoch (exponential), or along a cosine that
    ends near 0 (cosine)."""
    schedule_factor: float | None = Field(None, gt=0, le=1)
    """Per epoch, only with schedule = "exponential"; default: 0.9."""

    @model_validator(mode="before")
    @classmethod
    def _defaults_of_other_choices(cls, values: Any) -> Any:
        if not isinstance(values, Mapping):
            return values
        decay = {"weight_decay": 0.0} if values.get("optimizer") == "sgd" else {}
        factor = {"schedule_factor": DEFAULT_FACTOR} if values.get("schedule") == "exponential" else {}
        return {**decay, **factor, **values}

    @model_validator(mode="after")
    def _options_belong_together(self) -> TrainingOptions:
        if self.momentum and self.optimizer != "sgd":
            raise ValueError(f"momentum = {self.momentum} needs optimizer = sgd; {self.optimizer} has betas")
        if self.amsgrad and self.optimizer != "adamw":
            raise ValueError(f"amsgrad = true is an option of adamw; {self.optimizer} has no second moments")
        if self.schedule_factor is not None and self.schedule != "exponential":
            raise ValueError(
                f"schedule_factor = {self.schedule_factor} has no effect with schedule = {self.schedule!r}; "
                "leave it out, or use schedule = 'exponential'"
            )
        return self

    def plan(self, rounds: int) -> TrainingPlan:
        """How every site trains in a run of this many rounds."""
        optimizer = (
            AdamW(self.learning_rate, self.betas, self.eps, self.weight_decay, self.amsgrad)
            if self.optimizer == "adamw"
            else SGD(self.learning_rate, self.momentum, self.weight_decay)
        )
        schedule = Schedule(self.schedule, self.schedule_factor or DEFAULT_FACTOR, rounds)
        return TrainingPlan(optimizer, self.batch_size, self.local_epochs, self.optimizer_state, schedule)


class MergeOptions(BaseModel):
    """The `[merge]` table: how uploads become one model; see `playerfl.federation.merging`."""

    model_config = _STRICT

    rule: MergeRule = "mean"
    """The weighted mean (mean), the median of every number (median), or its mean without the smallest and largest
    values (trimmed_mean)."""
    trim: float = Field(0.1, ge=0, lt=0.5)
    """For trimmed_mean: the share of sites left out at each end."""
    clip_norm: float = Field(0.0, ge=0, allow_inf_nan=False)
    """Shortens updates longer than this many times the median length; 0 for never."""

    def build(self) -> Merge:
        return Merge(self.rule, self.trim, self.clip_norm)

    @model_validator(mode="after")
    def _options_belong_together(self) -> MergeOptions:
        if "trim" in self.model_fields_set and self.rule != "trimmed_mean" and self.trim != 0.1:
            raise ValueError(f"trim = {self.trim} has no effect with rule = {self.rule!r}; use rule = 'trimmed_mean'")
        if 0 < self.clip_norm < 1:
            raise ValueError(f"clip_norm = {self.clip_norm} must be at least 1, or 0 to switch it off")
        return self


class Experiment(AddedOptions):
    """One run: a task, an algorithm, and every setting that decides the result."""

    model_config = _STRICT
    added: ClassVar[frozenset[str]] = frozenset(
        {
            "early_stopping",
            "confusions",
            "granularity",
            "merge",
            "model",
            "metrics",
            "positive_class",
            "outcomes",
            "unseen",
            "unseen_epochs",
        }
    )

    task: str
    """A bundled task, a folder with one file per site, or FILE.py:NAME."""
    rounds: int = Field(20, ge=1)
    """Communication rounds: the sites train, the server merges, the merged model is scored."""
    seed: int = Field(0, ge=0)
    """Decides initial weights, batch order, dropout and every random choice of the algorithm; with
    data.split = "per_run" also the split."""
    eval_point: EvalPoint = "post_agg"
    """Whether models are scored after the merge, as the sites receive them (post_agg), or after the sites have trained
    them, before the merge (post_local)."""
    selection: Selection = "by_owner"
    """Which round's model is reported. By validation loss: one round for all sites if they share one model, otherwise
    each site's own (by_owner); always each site's own (client_best); always one for all (round_best). Or the last."""
    early_stopping: int | None = Field(None, ge=1)
    """Stops once the validation loss over all sites has not fallen for this many rounds; default: never."""
    participation: float = Field(1.0, gt=0, le=1)
    """The share of sites that train in a round (all of them in the first)."""
    unseen: tuple[str, ...] = ()
    """Sites that take no part in training. After the last round each gets the common part of the model and tunes its
    own; they are scored as unseen sites."""
    unseen_epochs: int = Field(5, ge=0)
    """How many epochs an unseen site tunes for."""
    bn_stats: BatchNormStatistics = "follow"
    """Batch-norm statistics travel with their layer (follow), or never leave their site (local)."""
    tie_policy: TiePolicy = "first"
    """A tensor used by two layers belongs to the first, to the last (local: it is private if either is), or is refused
    (error)."""
    granularity: Granularity = "block"
    """A layer is a block (attention, feed-forward, residual block …) or a single module, which lets a cut run through
    blocks. Layers that a model declares itself stay as they are."""
    device: str = "cpu"
    """cpu, cuda (or one of several, like cuda:1) or mps. A new run prefers cuda, then mps, then the CPU."""
    threads: int = Field(1, ge=1)
    """Threads per tensor operation. A different number may change the last bits of the result."""
    trainer: Literal["auto", "loop", "stacked"] = "auto"
    """Trains sites one by one (loop), or many per tensor operation if the model allows it (stacked). The last bits
    differ; auto stacks small fully connected models."""
    confusions: Literal["auto", "always", "never"] = "auto"
    """Whether the results hold a confusion matrix per site, round and split; "auto" records those of models with at
    most 100 classes."""
    model: str | None = None
    """A model of your own instead of the task's, as FILE.py:NAME or module:NAME."""
    metrics: MetricNames | None = None
    """What is recorded besides the loss, such as ["auroc", "brier"]; reports show the first one first. Default: the
    task's own."""
    positive_class: str | int | None = None
    """The class that a metric of two classes is about, by name or number; default: the second, number 1."""
    outcomes: Literal["auto", "never"] = "auto"
    """Whether a run directory holds the reported model's output for each test row, for intervals over rows; "auto"
    keeps up to a million numbers per site. Studies and jobs across institutions never keep them."""
    algorithm: dict[str, Any]
    """The method's `name` and its hyper-parameters."""
    training: TrainingOptions = TrainingOptions()
    """How every site trains."""
    merge: MergeOptions = MergeOptions()
    """How uploads become one model."""
    data: dict[str, Any] = Field(default_factory=dict)
    """The task's own options: how its data are read, divided and split."""

    @model_validator(mode="after")
    def _merged_in_one_way(self) -> Experiment:
        kind = ALGORITHMS.get(str(self.algorithm.get("name")))
        if not self.merge.build().is_mean and kind is not None and not kind().averages:
            raise ValueError(
                f"merge has no effect on {self.algorithm['name']}, which does not send a mean to the sites"
            )
        return self

    @model_validator(mode="after")
    def _scored_together(self) -> Experiment:
        if self.eval_point == "post_local" and self.participation < 1:
            if self.selection == "round_best":
                raise ValueError("selection 'round_best' needs all sites to be scored in a round: use participation 1")
            if self.early_stopping is not None:
                raise ValueError("early_stopping needs all sites to be scored in a round: use participation 1")
        return self

    @classmethod
    def resolve(cls, settings: Mapping[str, Any], task: Task | None = None) -> Experiment:
        """Fills in the task's defaults and all others, and rejects what is unknown or not allowed."""
        name = settings.get("task", task.name if task else None)
        if name is None:
            raise ConfigError(f"no task given; choose one of {', '.join(sorted(TASKS))}, a folder, or FILE.py:NAME")
        task = task or load_task(name)
        algorithm = resolved_algorithm(settings.get("algorithm", {"name": "player_fl"}))
        table = merged(task.defaults_for(algorithm["name"]), settings)
        table["task"] = task.name
        table["data"] = _resolved_data(task, table.get("data", {}))
        table["algorithm"] = algorithm
        table["device"] = resolve_device(table.get("device", "auto"))
        experiment = validated(cls, table, "")
        check_names(experiment.metrics or (), task.metrics)
        return experiment

    @classmethod
    def from_toml(cls, path: Path, task: Task | None = None) -> Experiment:
        return cls.resolve(read_toml(path), task)

    @classmethod
    def of_run(cls, directory: Path, task: Task | None = None, **changes: Any) -> Experiment:
        """The experiment of a run directory, with some settings changed; `task`: its task, if it has no name that can
        be looked up."""
        table = {**read_toml(directory / "experiment.toml"), **changes}
        if task is None and "task" in table:
            try:
                task = load_task(table["task"])
            except ConfigError as problem:
                raise ConfigError(
                    f"{problem}; the task of {directory} cannot be found by its name: if it is one of your own, pass "
                    "it again, as task=…"
                ) from problem
        return cls.resolve(table, task)

    @classmethod
    def from_resolved(cls, text: str) -> Experiment:
        """Reads the output of `to_toml`, which may come from an untrusted file or message.

        A message must not decide which code an institution runs: a site uses its own data and its own model, whatever
        `task` and `model` say.
        """
        if len(text) > _MOST_CHARACTERS or max(line.count(".") for line in text.split("\n")) > _MOST_DOTS:
            raise ConfigError(
                f"an experiment has at most {_MOST_CHARACTERS:,} characters, and {_MOST_DOTS:,} dots in a line"
            )
        try:
            table = tomllib.loads(text)
        except (ValueError, RecursionError) as problem:
            raise ConfigError(f"the experiment is not a TOML file: {problem}") from problem
        return validated(cls, table, "the experiment")

    @property
    def task_file_name(self) -> str:
        """The task as part of a file name: only the last part of a path, without special characters."""
        return re.sub(r"[^\w.-]+", "-", Path(self.task).name).strip("-.") or "task"

    @property
    def names(self) -> tuple[str, ...]:
        """What may be in a user's Python file: the task, the algorithm, and a user's own model."""
        return (self.task, self.algorithm["name"], *([] if self.model is None else [self.model]))

    def to_toml(self) -> str:
        """The resolved file: it reads back as the same experiment even if defaults change."""
        return tomli_w.dumps(_without_none(self.model_dump(mode="json")))

    @property
    def evaluation(self) -> EvaluationPlan:
        return EvaluationPlan(self.eval_point, self.selection, self.early_stopping)

    def build_algorithm(self) -> Algorithm:
        arguments = {key: value for key, value in self.algorithm.items() if key != "name"}
        return find_algorithm(self.algorithm["name"])(**arguments)

    def data_options(self, task: Task) -> DataOptions:
        """The options with which this run's data are loaded: with the run's own split, if `data.split` says so."""
        return validated(task.options, self.data, "the data settings").for_run(self.seed)


def find_algorithm(name: str) -> type[Algorithm]:
    """A bundled algorithm, or your own as FILE.py:NAME or module:NAME."""
    if isinstance(name, str) and name in ALGORITHMS:
        return ALGORITHMS[name]
    if not isinstance(name, str) or not names_object(name):
        raise ConfigError(f"{one_of(name, ALGORITHMS, 'algorithm')}, or FILE.py:NAME")
    kind = load_object(name)
    if not (isinstance(kind, type) and issubclass(kind, Algorithm) and dataclasses.is_dataclass(kind)):
        raise ConfigError(f"{name} is not an algorithm: a frozen dataclass derived from playerfl.algorithms.Algorithm")
    return kind


def algorithm_options(algorithm: type[Algorithm]) -> dict[str, tuple[Any, Any]]:
    """The hyper-parameters of an algorithm: name to (type, default)."""
    hints = get_type_hints(algorithm)
    return {field.name: (hints[field.name], _default_of(field)) for field in dataclasses.fields(algorithm)}


def _default_of(field: dataclasses.Field[Any]) -> Any:
    return field.default if field.default_factory is dataclasses.MISSING else field.default_factory()


def resolve_device(name: str) -> str:
    """Checks that a device is available; "auto" takes cuda, then mps, then the CPU."""
    import torch

    available = {"cpu": True, "cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    if name == "auto":
        return next((device for device in ("cuda", "mps") if available[device]), "cpu")
    kind = str(name).partition(":")[0]
    if kind not in available:
        raise ConfigError(one_of(name, ("auto", *available), "device"))
    if not available[kind]:
        here = ", ".join(device for device, there in available.items() if there)
        raise ConfigError(f"device {name!r} is not available here; available: {here}")
    return name


def resolved_algorithm(given: Any) -> dict[str, Any]:
    """An experiment's `[algorithm]` table with defaults filled in; ConfigError if it is not allowed."""
    table = {"name": given} if isinstance(given, str) else given
    if not isinstance(table, Mapping):
        raise ConfigError(f"algorithm must be a table with a name, not {given!r}")
    name = table.get("name", "player_fl")
    kind: Any = find_algorithm(name)
    options = validated(
        _algorithm_schema(kind), {k: v for k, v in table.items() if k != "name"}, f"the settings of {name}"
    )
    made: Algorithm = kind(**options.model_dump())
    made.server_steps()
    unset = {f.name for f in dataclasses.fields(made) if "added" in f.metadata and getattr(made, f.name) == f.default}
    return {"name": name, **{key: value for key, value in made.__dict__.items() if key not in unset}}


@cache
def _algorithm_schema(kind: Any) -> type[BaseModel]:
    fields: dict[str, Any] = algorithm_options(kind)
    return create_model(kind.__name__, __config__=_STRICT, **fields)


def _resolved_data(task: Task, given: Any) -> dict[str, Any]:
    if not isinstance(given, Mapping):
        raise ConfigError(f"data must be a table, not {given!r}")
    return validated(task.options, given, f"the data settings of task {task.name}").model_dump()


def _without_none(tree: Any) -> Any:
    if isinstance(tree, dict):
        return {key: _without_none(value) for key, value in tree.items() if value is not None}
    return tree
