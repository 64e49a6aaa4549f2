"""The threshold study: which rule and threshold give the cuts that the paper prints, and whether they generalise.

The criterion was fixed before looking at results. Every task counts equally. The rule and threshold with the largest
mean share of cases at the printed cut win; ties go to the widest interval of thresholds (as a factor), then to the
printed rule. Within an interval, the geometric middle is used.
"""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise, product
from pathlib import Path
from typing import Any

from playerfl.errors import ConfigError
from playerfl.layers.cut import DEFAULT_THRESHOLDS, CutRule, choose_cut
from playerfl.layers.sensitivity import Importance
from playerfl.probe.measure import probe_sites
from playerfl.storage.atomic_files import RERUN_HINT, make_directory, storage_error, write_atomically
from playerfl.storage.csv_table import csv_text, plain_cell

RATIO_RULES: tuple[CutRule, ...] = ("cumulative_ratio", "layer_ratio")
# The upper end of an interval that nothing bounds from above.
_HIGHEST = 1e6
_COLUMNS = ("task", "settings", "mode", "init", "seed", "printed", "max_jump", *RATIO_RULES)


@dataclass(frozen=True)
class Case:
    """One measured federation and the ratios that each rule compares."""

    task: str
    mode: str
    init: str
    seed: int
    printed: int
    """The paper's cut."""
    max_jump: int
    """The cut at the largest jump."""
    ratios: Mapping[str, tuple[float, ...]]
    """By rule, at p = 1 … L-1; 0 where there was nothing to compare with."""
    settings: str = ""
    """The task's settings as JSON."""

    @property
    def name(self) -> tuple[str, str, str, str, int]:
        return self.task, self.settings, self.mode, self.init, self.seed

    def interval(self, rule: str) -> tuple[float, float] | None:
        """The thresholds that give the printed cut, from low up to, but not including, high; None if there are none."""
        ratios = self.ratios[rule]
        low = max((1.0 if rule == "cumulative_ratio" else 0.0, *ratios[: self.printed - 1]))
        high = ratios[self.printed - 1] if self.printed <= len(ratios) else math.inf
        return (low, high) if low < high else None

    def hit(self, choice: Choice) -> bool:
        if choice.threshold is None:
            return self.max_jump == self.printed
        interval = self.interval(choice.rule)
        return interval is not None and interval[0] <= choice.threshold < interval[1]


@dataclass(frozen=True)
class Choice:
    """A rule and its threshold, and how often they give the printed cut."""

    rule: str
    threshold: float | None
    low: float = math.nan
    high: float = math.nan
    """The interval of thresholds that do as well."""
    share: float = math.nan
    """The share of cases at the printed cut, averaged over tasks."""


@dataclass(frozen=True)
class StudyTask:
    """A task of the study, its printed cut, and its settings by dotted name."""

    name: str
    cut: int
    settings: Mapping[str, Any]

    @property
    def settings_json(self) -> str:
        return json.dumps(self.settings, sort_keys=True)


@dataclass(frozen=True)
class ThresholdStudy:
    """What to measure: every task in every mode, with every initialisation and seed."""

    tasks: Sequence[StudyTask]
    modes: Sequence[str]
    inits: Sequence[str]
    seeds: Sequence[int]


def case_of(task: str, mode: str, init: str, seed: int, printed: int, scores: Mapping[str, Importance]) -> Case:
    """The case that the sites' scores give.

    >>> case = case_of("a", "running", "default", 0, 2, {"site": {"x": 1.0, "y": 2.0, "z": 10.0}})
    >>> case.interval("layer_ratio"), case.max_jump
    ((2.0, 5.0), 2)
    """
    ratios: dict[str, tuple[float, ...]] = {
        rule: tuple(r or 0.0 for r in choose_cut(scores, rule=rule).ratios) for rule in RATIO_RULES
    }
    return Case(task, mode, init, seed, printed, choose_cut(scores, rule="max_jump").index, ratios)


def measure_cases(task: StudyTask, mode: str, init: str, seeds: list[int]) -> list[Case]:
    """One epoch at every site of a task, for each seed."""
    settings = {**task.settings, "algorithm.sensitivity_mode": mode, "data.init": init}
    cases = []
    for seed, profiles in zip(seeds, probe_sites(task.name, seeds=seeds, settings=settings).profiles, strict=True):
        scores = {site: profile.importance for site, profile in profiles.items()}
        cases.append(replace(case_of(task.name, mode, init, seed, task.cut, scores), settings=task.settings_json))
    return cases


def share(cases: Sequence[Case], choice: Choice) -> float:
    """The share of cases at the printed cut; every task counts equally."""
    tasks = dict.fromkeys(case.task for case in cases)
    hits = {task: [case.hit(choice) for case in cases if case.task == task] for task in tasks}
    return sum(sum(task_hits) / len(task_hits) for task_hits in hits.values()) / len(hits)


def default_choice(cases: Sequence[Case]) -> Choice:
    """The package's default rule and threshold, and how often they give the printed cut."""
    rule = "layer_ratio"
    default = Choice(rule, DEFAULT_THRESHOLDS[rule])
    return replace(default, share=share(cases, default))


def choose(cases: Sequence[Case]) -> Choice:
    """The best rule and threshold, by the criterion above."""
    candidates = [c for rule in RATIO_RULES for c in _of_rule(cases, rule)]
    best = max(candidates, key=lambda c: (round(c.share, 9), math.log(c.high / c.low)))
    jump = Choice("max_jump", None, share=share(cases, Choice("max_jump", None)))
    return jump if round(jump.share, 9) > round(best.share, 9) else best


def _of_rule(cases: Sequence[Case], rule: str) -> list[Choice]:
    """The intervals between thresholds at which some case changes; equally good neighbours are merged."""
    lowest = 1.0 if rule == "cumulative_ratio" else 0.1
    ends = {lowest, _HIGHEST, *(end for case in cases for end in case.interval(rule) or ())}
    bounds = sorted(min(max(end, lowest), _HIGHEST) for end in ends)
    choices: list[Choice] = []
    for low, high in pairwise(bounds):
        if low == high:
            continue
        share_here = share(cases, Choice(rule, math.sqrt(low * high)))
        if choices and choices[-1].high == low and choices[-1].share == share_here:
            low = choices.pop().low
        choices.append(Choice(rule, math.sqrt(low * high), low, high, share_here))
    return choices


def common_interval(cases: Sequence[Case], rule: str) -> tuple[float, float] | None:
    """The thresholds that give the printed cut in every one of these cases."""
    intervals = [interval for case in cases if (interval := case.interval(rule))]
    if len(intervals) < len(cases):
        return None
    low, high = max(low for low, _ in intervals), min(high for _, high in intervals)
    return (low, high) if low < high else None


def interval_text(ends: Sequence[float | None] | None) -> str:
    """Thresholds from low to high, as in thresholds.json: null where nothing bounds them.

    >>> interval_text([1.0204, 1083.2]), interval_text([2.5, None]), interval_text(None)
    ('1.02 to 1,083', '2.5 to ∞', 'none')
    """
    if ends is None:
        return "none"
    return " to ".join("∞" if end is None else f"{end:,.0f}" if end >= 1000 else f"{end:.3g}" for end in ends)


def leave_one_out(cases: Sequence[Case]) -> dict[str, tuple[Choice, float]]:
    """For each task: the choice made on the other tasks, and the share of its own cases that this choice gets right."""
    judged = {}
    for task in dict.fromkeys(case.task for case in cases):
        chosen = choose([case for case in cases if case.task != task])
        judged[task] = (chosen, share([case for case in cases if case.task == task], chosen))
    return judged


class CaseTable:
    """A CSV file of measured cases."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def read(self) -> list[Case]:
        if not self.path.exists():
            return []
        try:
            with self.path.open(newline="", encoding="utf-8") as table:
                return [_from_row(row) for row in csv.DictReader(table)]
        except (OSError, KeyError, TypeError, ValueError, AttributeError, csv.Error) as problem:
            raise ConfigError(f"{self.path} is not a table of measured cases: {problem}; delete it") from problem

    def add(self, cases: Iterable[Case]) -> None:
        make_directory(self.path.parent)
        try:
            before = self.path.read_text(encoding="utf-8") if self.path.exists() else ""
        except OSError as problem:
            raise storage_error(self.path, problem, RERUN_HINT) from problem
        text = csv_text([*([] if before else [_COLUMNS]), *map(_row, cases)])
        # Rewritten as a whole: a partial last row would make the file unreadable.
        write_atomically(self.path, (before + text).encode(), RERUN_HINT)


def _row(case: Case) -> list[Any]:
    ratios = (" ".join(f"{ratio:.6g}" for ratio in case.ratios[rule]) for rule in RATIO_RULES)
    return [case.task, case.settings, case.mode, case.init, case.seed, case.printed, case.max_jump, *ratios]


def _from_row(row: Mapping[str, str]) -> Case:
    ratios: dict[str, tuple[float, ...]] = {rule: tuple(map(float, row[rule].split())) for rule in RATIO_RULES}
    printed = int(row["printed"])
    if printed < 1:
        raise ValueError(f"the printed cut is {printed}, not at least 1")
    return Case(
        plain_cell(row["task"]),
        row["mode"],
        row["init"],
        int(row["seed"]),
        printed,
        int(row["max_jump"]),
        ratios,
        plain_cell(row["settings"]),
    )


def measure_missing(
    study: ThresholdStudy,
    table: CaseTable,
    tick: Callable[[int, int, str], None] = lambda done, total, what: None,
) -> list[Case]:
    """Measures the cases that are not in the table yet; returns all requested ones."""
    known = {case.name for case in table.read()}
    groups = list(product(study.tasks, study.modes, study.inits))
    missing = [
        (group, seeds)
        for group in groups
        if (seeds := [seed for seed in study.seeds if _name(*group, seed) not in known])
    ]
    for done, (group, seeds) in enumerate(missing):
        task, mode, init = group
        tick(done, len(missing), f"{task.name}, {mode}, {init}")
        table.add(measure_cases(*group, seeds))
    tick(len(missing), len(missing), "")
    wanted = {_name(*group, seed) for group in groups for seed in study.seeds}
    return [case for case in table.read() if case.name in wanted]


def _name(task: StudyTask, mode: str, init: str, seed: int) -> tuple[str, str, str, str, int]:
    """What `Case.name` of the measured case will be."""
    return task.name, task.settings_json, mode, init, seed
