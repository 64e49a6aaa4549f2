"""Study: the tasks, algorithms, learning rates and seeds to run, as a strict TOML file and a typed object."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import tomli_w
from pydantic import BaseModel, ConfigDict, Field

from playerfl.algorithms import ALGORITHMS
from playerfl.errors import ConfigError, one_of
from playerfl.paper import facts as paper
from playerfl.runs.experiment import Experiment
from playerfl.runs.settings_table import merged, read_toml, validated
from playerfl.studies.protocols import PROTOCOLS, Protocol, ProtocolName
from playerfl.studies.rates import TuningMetric, paper_grid, pfedme_preset
from playerfl.tasks.load import load_task, names_object
from playerfl.wording import counted

PAPER_ALGORITHMS = (
    "local", "fedavg", "fedprox", "pfedme", "ditto", "local_adaptation", "fedper", "fedrep", "fedbabu", "fedlp",
    "fedlama", "pfedla", "player_fl", "player_fl_random", "player_fl_minus_1", "player_fl_plus_1",
)  # fmt: skip
"""The methods the paper compares, and the two that are closest to its own."""
_GROUPS: dict[str, Sequence[str]] = {"paper": PAPER_ALGORITHMS, "all": tuple(ALGORITHMS)}
_FIRST_TUNING_SEED = 1001
MOST_SEEDS = 2000
_LARGEST_RATE = 1e300
_OF_THE_STUDY = ("task", "algorithm", "seed")


class Study(BaseModel):
    """A study's plan. Use `resolve` to make one: it checks every name and value."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str
    """The name of the study, and of its folder below runs/."""
    tasks: list[dict[str, Any]]
    """Each with its `name` and its own settings."""
    algorithms: list[dict[str, Any]]
    """Each with its `name`, hyper-parameters and, optionally, its own `learning_rates`."""
    protocol: ProtocolName = "2026.2"
    """The choices that the study does not make itself: which round is reported, how data are split, and so on."""
    learning_rates: list[float] | Literal["paper"] | None = None
    """The rates to try; "paper" for the grid printed for the task. Default: the task's own rate, without tuning."""
    seeds: list[int] = Field(default_factory=lambda: list(range(1, 6)))
    """Seeds of the reported runs; a number n stands for 1 to n."""
    tuning_seeds: list[int] = Field(default_factory=lambda: [1001, 1002, 1003])
    """Seeds of the runs that choose a rate; a number n stands for 1001 to 1000 + n."""
    tuning_metric: TuningMetric = "loss"
    """The validation metric that a rate is chosen by, in the rounds that would be reported."""
    settings: dict[str, Any] = Field(default_factory=dict)
    """Settings of every run: those of an experiment file, except task, algorithm and seed."""
    by_algorithm: dict[str, dict[str, Any]] = Field(default_factory=dict)
    """Settings of the runs of single algorithms."""
    keep_weights: bool = False
    """Whether every site's model is saved with each run."""
    seeds_per_group: int | Literal["auto"] = "auto"
    """How many runs a worker trains side by side; does not change any result."""
    checkpoint_seconds: float = Field(30.0, ge=0)
    """Seconds between checkpoints of a run: a kill loses at most this much work."""

    @classmethod
    def resolve(cls, given: Mapping[str, Any]) -> Study:
        """Checks a study; ConfigError about anything unknown or not allowed."""
        table = dict(given)
        for key in ("name", "tasks", "algorithms"):
            if key not in table:
                raise ConfigError(f"{key} is missing in the study; for example {key} = {_EXAMPLES[key]}")
        if not isinstance(table["name"], str) or not re.fullmatch(r"\w[\w.-]*", table["name"]):
            raise ConfigError(f"name = {table['name']!r} must be letters, digits, '.', '-' and '_', like \"heart\"")
        table["tasks"] = _named_tables("tasks", table["tasks"])
        table["algorithms"] = _algorithm_tables(table["algorithms"])
        if table.pop("leave_one_site_out", False):
            table["tasks"] = [one for task in table["tasks"] for one in _leaving_one_out(task, table)]
        if "learning_rates" in table:
            table["learning_rates"] = _rates(table["learning_rates"], "learning_rates")
        for key, first in (("seeds", 1), ("tuning_seeds", _FIRST_TUNING_SEED)):
            if key in table:
                table[key] = _seeds(key, table[key], first)
        _check_group_size(table.get("seeds_per_group", "auto"))
        study = validated(cls, table, "")
        study._check_settings()
        both = sorted(set(study.seeds) & set(study.tuning_seeds))
        if both:
            raise ConfigError(
                f"seed {both[0]} is in seeds and in tuning_seeds; rates must not be chosen on reported seeds"
            )
        study._check_tuning()
        study._check_budgets()
        return study

    @classmethod
    def from_toml(cls, path: Path) -> Study:
        return cls.resolve(read_toml(path))

    @classmethod
    def stored(cls, directory: Path) -> dict[str, Any]:
        """The study file in a study's directory. A file without a protocol was written before protocols had names."""
        return {"protocol": "2026.1", **read_toml(directory / "study.toml")}

    def to_toml(self) -> str:
        """The resolved file: reading it back gives the same study."""
        return tomli_w.dumps(self.model_dump(mode="json", exclude_none=True))

    def _check_settings(self) -> None:
        single = [(f"by_algorithm.{name}", table) for name, table in self.by_algorithm.items()]
        for where, table in (("settings", self.settings), *((f"task {t['name']}", t) for t in self.tasks), *single):
            for key in _OF_THE_STUDY:
                if key in table:
                    raise ConfigError(f"{key} is not allowed in [{where}]: set it in the study itself")
            rate = (
                table.get("training", {}).get("learning_rate") if isinstance(table.get("training"), Mapping) else None
            )
            if rate is not None and self.learning_rates is not None:
                raise ConfigError(f"give learning_rates or training.learning_rate = {rate} in [{where}], not both")
        names = {table["name"] for table in self.algorithms}
        for name in self.by_algorithm:
            if name not in names:
                raise ConfigError(one_of(name, sorted(names), "algorithm of the study") + " in [by_algorithm]")
        if self.tuning_metric != "loss" and not PROTOCOLS[self.protocol].tunes_reported:
            raise ConfigError(f"tuning_metric = {self.tuning_metric!r} needs a protocol later than {self.protocol}")

    def _check_tuning(self) -> None:
        """A rate can be chosen only by a metric that the runs record."""
        for line in self.lines:
            names = line.experiment.metrics
            recorded = ", ".join(names or ()) or "no metric"
            if names is not None and line.tuning_seeds and self.tuning_metric not in ("loss", *names):
                raise ConfigError(
                    f"tuning_metric = {self.tuning_metric!r}, but {line.task} records {recorded}; "
                    f"add {self.tuning_metric!r} to metrics"
                )

    def _check_budgets(self) -> None:
        """A method that may try more rates than another has an unfair advantage."""
        for task in dict.fromkeys(line.task for line in self.lines):
            first, *others = (line for line in self.lines if line.task == task)
            odd = next((line for line in others if len(line.rates) != len(first.rates)), None)
            if odd is not None:
                raise ConfigError(
                    f"{odd.algorithm} tries {_rate_count(odd)} and {first.algorithm} {_rate_count(first)} on {task}; "
                    "give every algorithm the same number, or a separate study"
                )

    @cached_property
    def lines(self) -> tuple[Line, ...]:
        """One per task and algorithm, in the order of the file."""
        tasks = _labels("task", self.tasks)
        algorithms = _labels("algorithm", self.algorithms)
        return tuple(
            self._line(task, tasks[i], algorithm, algorithms[j])
            for i, task in enumerate(self.tasks)
            for j, algorithm in enumerate(self.algorithms)
        )

    def _line(self, task: Mapping[str, Any], task_label: str, algorithm: Mapping[str, Any], label: str) -> Line:
        task_settings = {key: value for key, value in task.items() if key != "name"}
        options = {key: value for key, value in algorithm.items() if key != "learning_rates"}
        protocol = PROTOCOLS[self.protocol]
        settings = protocol.defaults(load_task(task["name"]), algorithm["name"])
        algorithm_settings = self.by_algorithm.get(algorithm["name"], {})
        for table in (self.settings, task_settings, algorithm_settings, {"task": task["name"], "algorithm": options}):
            settings = merged(settings, table)
        experiment = Experiment.resolve(settings)
        tried = algorithm.get("learning_rates", self.learning_rates)
        rates = _grid(tried, experiment, protocol)
        tuning = self.tuning_seeds if len(rates) > 1 else []
        if len(rates) > 1 and not tuning:
            raise ConfigError(f"{len(rates)} learning rates need tuning_seeds to choose among them; give at least 1")
        return Line(task_label, label, experiment, tuple(rates), tuple(tuning), tuple(self.seeds))


@dataclass(frozen=True)
class Line:
    """One task and one algorithm: the rates to try, the seeds, and all other settings in `experiment`."""

    task: str
    algorithm: str
    experiment: Experiment
    rates: tuple[float, ...]
    tuning_seeds: tuple[int, ...]
    seeds: tuple[int, ...]

    def at(self, rate: float, seed: int) -> Experiment:
        """The run with this rate and seed."""
        training = self.experiment.training.model_copy(update={"learning_rate": rate})
        return self.experiment.model_copy(update={"training": training, "seed": seed})

    @property
    def tuning(self) -> list[Experiment]:
        """The runs that choose the rate; none if there is only one rate."""
        return [self.at(rate, seed) for rate in self.rates for seed in self.tuning_seeds]

    def evaluation(self, rate: float) -> list[Experiment]:
        """The runs that are reported."""
        return [self.at(rate, seed) for seed in self.seeds]


_EXAMPLES = {"name": '"heart"', "tasks": '["heart"]', "algorithms": '["local", "fedavg", "player_fl"]'}


def _named_tables(key: str, given: Any) -> list[dict[str, Any]]:
    if isinstance(given, str | Mapping):
        given = [given]
    if not isinstance(given, list | tuple) or not given:
        raise ConfigError(f"{key} = {given!r} must be a list of names or tables, like {_EXAMPLES[key]}")
    tables = []
    for entry in given:
        table = {"name": entry} if isinstance(entry, str) else entry
        if not isinstance(table, Mapping) or not isinstance(table.get("name"), str):
            raise ConfigError(f"{entry!r} in {key} must be a name, or a table with a name")
        tables.append(dict(table))
    return tables


def _leaving_one_out(task: Mapping[str, Any], study: Mapping[str, Any]) -> list[dict[str, Any]]:
    """A task for each of its sites, in which that site is unseen."""
    loaded = load_task(task["name"])
    settings = merged(study.get("settings", {}), {key: value for key, value in task.items() if key != "name"})
    experiment = Experiment.resolve({**settings, "task": task["name"]})
    options = experiment.data_options(loaded)
    sites = sorted(loaded.for_options(options).load_sites(options))
    return [{**task, "unseen": [site]} for site in sites]


def _algorithm_tables(given: Any) -> list[dict[str, Any]]:
    entries = [given] if isinstance(given, str | Mapping) else given
    if isinstance(entries, list | tuple):
        given = [named for entry in entries for named in _members(entry)]
    tables = _named_tables("algorithms", given)
    for table in tables:
        if "learning_rates" in table:
            table["learning_rates"] = _rates(table["learning_rates"], f"learning_rates of {table['name']}")
    return tables


def _members(entry: Any) -> Sequence[Any]:
    """The algorithms that a name in the list stands for: one, or all those of a group."""
    if not isinstance(entry, str) or entry in ALGORITHMS or names_object(entry):
        return [entry]
    if entry not in _GROUPS:
        raise ConfigError(f"{one_of(entry, (*_GROUPS, *ALGORITHMS), 'algorithm')}, or FILE.py:NAME")
    return _GROUPS[entry]


def _rates(given: Any, where: str) -> list[float] | str:
    if given == "paper":
        return "paper"
    values = given if isinstance(given, list | tuple) else [given]
    numbers = [v for v in values if isinstance(v, int | float) and not isinstance(v, bool)]
    if not values or len(numbers) < len(values) or not all(0 < v < _LARGEST_RATE for v in numbers):
        raise ConfigError(f'{where} = {given!r} must be "paper" or a list of numbers above 0, like [0.01, 0.001]')
    if len(set(numbers)) < len(numbers):
        raise ConfigError(f"{where} = {given!r} contains a rate twice; give each once")
    return [float(v) for v in numbers]


def _grid(tried: Any, experiment: Experiment, protocol: Protocol) -> list[float]:
    if tried is None:
        return [experiment.training.learning_rate]
    if tried != "paper":
        return list(tried)
    printed = load_task(experiment.task).paper
    if printed is None:
        known = ", ".join(sorted(paper.facts()["datasets"]))
        raise ConfigError(
            f"the paper prints no learning rates for {experiment.task!r} (only for {known}); give a list of them"
        )
    if experiment.algorithm["name"] == "pfedme" and protocol.pfedme_trains:
        return list(pfedme_preset(printed).learning_rates)
    return paper_grid(printed, experiment.algorithm["name"])


def _rate_count(line: Line) -> str:
    return counted(len(line.rates), "learning rate")


def _seeds(key: str, given: Any, first: int) -> list[int]:
    if isinstance(given, int) and not isinstance(given, bool) and given >= 0:
        if given > MOST_SEEDS:
            raise ConfigError(f"{key} = {given} is too many; at most {MOST_SEEDS:,} can be run")
        given = range(first, first + given)
    seeds = list(given) if isinstance(given, list | tuple | range) else None
    if seeds is None or not all(isinstance(s, int) and not isinstance(s, bool) and s >= 0 for s in seeds):
        raise ConfigError(f"{key} = {given!r} must be a number of seeds, or a list of non-negative integers")
    if len(seeds) > MOST_SEEDS:
        raise ConfigError(f"{key} has {len(seeds):,} seeds; at most {MOST_SEEDS:,} can be run")
    if len(set(seeds)) < len(seeds):
        raise ConfigError(f"{key} contains a seed twice; give each once")
    if key == "seeds" and not seeds:
        raise ConfigError("seeds is empty; give at least 1")
    return seeds


def _check_group_size(given: Any) -> None:
    if given != "auto" and (not isinstance(given, int) or isinstance(given, bool) or given < 1):
        raise ConfigError(f'seeds_per_group = {given!r} must be "auto" or a positive integer')


def _labels(what: str, tables: Sequence[Mapping[str, Any]]) -> list[str]:
    """A label for each table: its name, with its settings if another table has the same name."""
    names = [table["name"] for table in tables]

    def label(table: Mapping[str, Any]) -> str:
        settings = [f"{key}={value}" for key, value in table.items() if key != "name"]
        return " ".join([table["name"], *settings]) if names.count(table["name"]) > 1 else str(table["name"])

    labels = [label(table) for table in tables]
    twice = next((name for name in labels if labels.count(name) > 1), None)
    if twice is not None:
        raise ConfigError(f"{what} {twice!r} is in the study twice; give each once, or with different settings")
    return labels
