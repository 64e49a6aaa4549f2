"""The multiverse file. Some choices decide how models are trained, others only how finished runs are evaluated."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from playerfl.engine.handle import Selection
from playerfl.errors import ConfigError
from playerfl.learning.confusion import F1Labels
from playerfl.paper import facts as paper
from playerfl.report.compute.multiverse import PROTOCOL_COLUMNS, Factor
from playerfl.runs.settings_table import merged, read_toml, validated
from playerfl.studies.plan import Study
from playerfl.tasks.load import load_task

Rates = Literal["printed", "loss", "f1"]
Measure = Literal["f1", "f1_true", "f1_all", "accuracy", "loss"]
HIGHER_IS_BETTER: dict[Measure, bool] = {"f1": True, "f1_true": True, "f1_all": True, "accuracy": True, "loss": False}
F1_OF: dict[Measure, F1Labels] = {"f1_true": "true", "f1_all": "all"}
"""Measures that are computed from confusion matrices."""
_NAME = re.compile(r"\w[\w.-]*")


class Computed(BaseModel):
    """The `[computed]` table: choices that need no training, because runs record every round."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    rates: list[Rates] = Field(default=["printed", "loss", "f1"], min_length=1)
    """Learning rates: as the paper prints them, or tuned by the validation loss or macro-F1 that would be reported."""
    selection: list[Selection] = Field(default=["by_owner", "client_best", "round_best"], min_length=1)
    measure: list[Measure] = Field(default=["f1", "f1_true", "accuracy", "loss"], min_length=1)
    """The measures that rank methods. f1_true averages over the classes that occur, f1_all over all classes."""


@dataclass(frozen=True)
class Method:
    """One entry of the list of algorithms, and the rates that tuning chooses from."""

    algorithm: str
    grid: tuple[float, ...]


@dataclass(frozen=True)
class Universe:
    """One way to train: the choice made for each trained factor, and a study that trains all methods accordingly."""

    choices: tuple[str, ...]
    study: Study
    """Each line is one method at one rate."""
    lines: tuple[tuple[str, float], ...]
    """The method and the rate of each line."""
    methods: Mapping[str, Method]

    @property
    def name(self) -> str:
        # Names of choices have no "+", so no two universes share a name.
        return "+".join(self.choices) or "only"


class MultiversePlan(BaseModel):
    """Every combination of choices. Use `resolve` to make one: it checks every name and value."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str
    task: str
    algorithms: list[Any] | str
    learning_rates: list[float] | Literal["paper"]
    """The grid. Every method is trained at every rate, so that every way of choosing a rate can be computed later."""
    seeds: int = Field(20, ge=2)
    """Reported runs of each method at each rate in each trained universe."""
    tuning_seeds: int = Field(5, ge=1)
    settings: dict[str, Any] = Field(default_factory=dict)
    trained: dict[str, dict[str, dict[str, Any]]] = Field(default_factory=dict)
    """By factor, then by choice: the settings that this choice adds; `by_algorithm` holds those of single methods."""
    computed: Computed = Computed()

    @classmethod
    def resolve(cls, given: Mapping[str, Any]) -> MultiversePlan:
        multiverse = validated(cls, given, "the multiverse file")
        for name in (multiverse.name, *multiverse.trained, *(c for t in multiverse.trained.values() for c in t)):
            if not _NAME.fullmatch(name):
                raise ConfigError(f"{name!r} must be letters, digits, '.', '-' and '_'")
        for factor, choices in multiverse.trained.items():
            if factor in Computed.model_fields:
                raise ConfigError(f"{factor} is computed from finished runs; it is not allowed in [trained]")
            if factor in PROTOCOL_COLUMNS:
                raise ConfigError(f"a factor cannot be called {factor!r}: protocols.csv has a column of that name")
            if not choices:
                raise ConfigError(f"[trained.{factor}] is empty; give at least one choice")
        for name, values in multiverse.computed:
            if len(set(values)) < len(values):
                raise ConfigError(f"{name} = {values} in [computed] contains a value twice; give each once")
        if "printed" in multiverse.computed.rates and load_task(multiverse.task).paper is None:
            raise ConfigError(
                f"the paper prints no learning rates for {multiverse.task!r}; "
                'leave "printed" out of rates in [computed]'
            )
        by_matrix = [measure for measure in multiverse.computed.measure if measure in F1_OF]
        experiments = [line.experiment for universe in multiverse.universes for line in universe.study.lines]
        if by_matrix and any(experiment.confusions == "never" for experiment in experiments):
            raise ConfigError(
                f"{by_matrix[0]} is computed from confusion matrices; "
                'leave it out of measure in [computed], or confusions = "never" out of the settings'
            )
        return multiverse

    @classmethod
    def from_toml(cls, path: Path) -> MultiversePlan:
        return cls.resolve(read_toml(path))

    @property
    def factors(self) -> tuple[Factor, ...]:
        """In the order of the file, trained ones first."""
        trained = (Factor(name, "trained", tuple(choices)) for name, choices in self.trained.items())
        computed = (Factor(name, "computed", tuple(values)) for name, values in self.computed)
        return (*trained, *computed)

    @cached_property
    def universes(self) -> tuple[Universe, ...]:
        return tuple(self._universes())

    def _universes(self) -> Iterator[Universe]:
        for choices in product(*self.trained.values()):
            settings: dict[str, Any] = self.settings
            by_algorithm: dict[str, Any] = {}
            for factor, choice in zip(self.trained, choices, strict=True):
                added = dict(self.trained[factor][choice])
                single = added.pop("by_algorithm", {})
                if not isinstance(single, Mapping):
                    raise ConfigError(f"by_algorithm = {single!r} in [trained.{factor}.{choice}] must be a table")
                by_algorithm = merged(by_algorithm, single)
                settings = merged(settings, added)
            yield self._universe(choices, settings, by_algorithm)

    def _universe(
        self, choices: tuple[str, ...], settings: Mapping[str, Any], by_algorithm: Mapping[str, Any]
    ) -> Universe:
        """Each method at each rate is a separate line, without tuning: which rates are reported is computed later."""
        common = {"name": self.name, "tasks": [self.task], "settings": settings, "by_algorithm": by_algorithm}
        grids = Study.resolve(
            {**common, "algorithms": self.algorithms, "learning_rates": self.learning_rates, "tuning_seeds": 1}
        )
        methods = {line.algorithm: Method(str(line.experiment.algorithm["name"]), line.rates) for line in grids.lines}
        entries = [
            (line.algorithm, rate, {**table, "learning_rates": [rate]})
            for table, line in zip(grids.algorithms, grids.lines, strict=True)
            for rate in sorted({*line.rates, *self._printed(table["name"])}, reverse=True)
        ]
        study = Study.resolve(
            {
                **common,
                "name": "-".join((self.name, *choices)),
                "algorithms": [table for _, _, table in entries],
                "seeds": [*self.reported_seeds, *self.rate_seeds],
                "tuning_seeds": 0,
            }
        )
        return Universe(choices, study, tuple((method, rate) for method, rate, _ in entries), methods)

    def _printed(self, algorithm: str) -> list[float]:
        if "printed" not in self.computed.rates:
            return []
        return [self.printed_rate(algorithm)]

    def printed_rate(self, algorithm: str) -> float:
        """The rate that the paper prints for a method, or for the closest method."""
        dataset = load_task(self.task).paper
        rates = paper.learning_rates(dataset) if dataset else {}
        if algorithm not in rates:
            raise ConfigError(
                f'the paper prints no learning rate for {algorithm}; leave "printed" out of rates in [computed]'
            )
        return rates[algorithm]

    @property
    def reported_seeds(self) -> range:
        return range(1, 1 + self.seeds)

    @property
    def rate_seeds(self) -> range:
        """Seeds of the runs by which rates are chosen; they are never reported."""
        return range(1001, 1001 + self.tuning_seeds)
