"""The threshold study: which rule and threshold give the cuts that the paper prints, and do they generalise?

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
from itertools import pairwise
from pathlib import Path
from typing import Any

from playerfl.errors import ConfigError
from playerfl.layers.sensitivity import Importance
from playerfl.layers.split import SplitRule, choose_cut
from playerfl.probe.measure import probe_sites
from playerfl.storage.atomic_files import RERUN_HINT, make_directory, storage_error, write_atomically
from playerfl.storage.csv_table import csv_text

RATIO_RULES: tuple[SplitRule, ...] = ("cumulative_ratio", "layer_ratio")
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
    """How the task was set, as JSON."""

    @property
    def name(self) -> tuple[str, str, str, str, int]:
        """What identifies it."""
        return self.task, self.settings, self.mode, self.init, self.seed

    @property
    def setting(self) -> tuple[str, str]:
        return self.mode, self.init

    def interval(self, rule: str) -> tuple[float, float] | None:
        """The thresholds from low (in) to high (out) that give the printed cut; None if none does."""
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
    """Of cases at the printed cut, the mean over tasks."""

    def __str__(self) -> str:
        if self.threshold is None:
            return self.rule
        return f"{self.rule}, t = {self.threshold:.3g} ({self.low:.3g} to {self.high:.3g})"


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


def measure_cases(
    task: str, settings: Mapping[str, Any], mode: str, init: str, seeds: Iterable[int], printed: int
) -> list[Case]:
    """One epoch at every site of a task, for each seed."""
    asked = {**settings, "algorithm.sensitivity_mode": mode, "data.init": init}
    seeds = list(seeds)
    measured = probe_sites(task, seeds=seeds, settings=asked)
    told = json.dumps(settings, sort_keys=True)
    return [
        replace(
            case_of(task, mode, init, seed, printed, {site: own.importance for site, own in profiles.items()}),
            settings=told,
        )
        for seed, profiles in zip(seeds, measured.profiles, strict=True)
    ]


def share(cases: Sequence[Case], choice: Choice) -> float:
    """The share of cases at the printed cut; every task counts equally."""
    tasks = dict.fromkeys(case.task for case in cases)
    hits = {task: [case.hit(choice) for case in cases if case.task == task] for task in tasks}
    return sum(sum(own) / len(own) for own in hits.values()) / len(hits)


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
    found: list[Choice] = []
    for low, high in pairwise(bounds):
        if low == high:
            continue
        share_here = share(cases, Choice(rule, math.sqrt(low * high)))
        if found and found[-1].high == low and found[-1].share == share_here:
            low = found.pop().low
        found.append(Choice(rule, math.sqrt(low * high), low, high, share_here))
    return found


def common_interval(cases: Sequence[Case], rule: str) -> tuple[float, float] | None:
    """The thresholds that give the printed cut in every one of these cases."""
    intervals = [case.interval(rule) for case in cases]
    if any(interval is None for interval in intervals):
        return None
    known = [interval for interval in intervals if interval]
    low, high = max(low for low, _ in known), min(high for _, high in known)
    return (low, high) if low < high else None


def leave_one_out(cases: Sequence[Case]) -> dict[str, tuple[Choice, float]]:
    """For each task: what the others choose, and the share of the task's own cases that it hits."""
    found = {}
    for task in dict.fromkeys(case.task for case in cases):
        chosen = choose([case for case in cases if case.task != task])
        found[task] = (chosen, share([case for case in cases if case.task == task], chosen))
    return found


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
    return Case(
        row["task"],
        row["mode"],
        row["init"],
        int(row["seed"]),
        int(row["printed"]),
        int(row["max_jump"]),
        ratios,
        row["settings"],
    )


def measure_missing(
    tasks: Sequence[Mapping[str, Any]],
    modes: Sequence[str],
    inits: Sequence[str],
    seeds: Sequence[int],
    table: CaseTable,
    tick: Callable[[int, int, str], None] = lambda done, total, what: None,
) -> list[Case]:
    """Measures the cases that are not in the table yet; returns all requested ones."""
    known = {case.name for case in table.read()}
    plan = [(task, mode, init) for task in tasks for mode in modes for init in inits]
    wanted = set()
    for done, (task, mode, init) in enumerate(plan):
        tick(done, len(plan), f"{task['name']}, {mode}, {init}")
        told = json.dumps(task["settings"], sort_keys=True)
        names = {seed: (task["name"], told, mode, init, seed) for seed in seeds}
        wanted |= set(names.values())
        left = [seed for seed in seeds if names[seed] not in known]
        if left:
            table.add(measure_cases(task["name"], task["settings"], mode, init, left, task["cut"]))
    tick(len(plan), len(plan), "")
    return [case for case in table.read() if case.name in wanted]
