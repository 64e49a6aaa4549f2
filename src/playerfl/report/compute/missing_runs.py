"""Holes: which seeds of which method are there, which are not, in the order of the report."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from playerfl.report.compute.collected import Gap
from playerfl.report.compute.grid import method_name, task_name
from playerfl.report.compute.report import Report

# How a seed is drawn in a row of seeds.
MARKS = {"finished": "■", "not finished": "·", "failed": "✕"}


@dataclass(frozen=True)
class HoleRow:
    """One method on one task: the state of every seed that anybody ran or was to run on it."""

    task: str
    algorithm: str
    states: Mapping[int, str]

    def seeds(self, state: str) -> list[int]:
        return [seed for seed, own in self.states.items() if own == state]

    @property
    def drawn(self) -> str:
        """A sign for each seed of the task, in order; a space where this method was not to run."""
        return "".join(MARKS.get(state, " ") for state in self.states.values())


def holes(report: Report) -> list[HoleRow]:
    """The method × seed grid of every task that has a gap in it; runs that only choose rates are no part of it."""
    states: dict[str, dict[str, dict[int, str]]] = {}
    for run in report.grid.runs:
        states.setdefault(run.task, {}).setdefault(run.algorithm, {})[run.seed] = "finished"
    for state, gaps in (("not finished", report.missing), ("failed", report.failed)):
        for gap in gaps:
            if gap.seed is not None and not gap.tuning:
                own = states.setdefault(task_name(gap.task), {}).setdefault(method_name(gap.algorithm), {})
                # The same seed may have been run elsewhere in the folder.
                own.setdefault(gap.seed, state)
    found = []
    for task, methods in states.items():
        seeds = sorted({seed for own in methods.values() for seed in own})
        rows = [HoleRow(task, name, {seed: own.get(seed, "") for seed in seeds}) for name, own in methods.items()]
        if any(set(row.states.values()) != {"finished"} for row in rows):
            found += rows
    return found


def gap_lines(report: Report) -> list[tuple[str, Gap, list[int]]]:
    """Gaps in few lines: those that differ in nothing but the seed together."""
    found: dict[tuple[str, Gap], list[int]] = {}
    for state, gaps in (("not finished", report.missing), ("failed", report.failed)):
        for gap in gaps:
            alike = Gap(task_name(gap.task), method_name(gap.algorithm), None, gap.reason, gap.tuning)
            seeds = found.setdefault((state, alike), [])
            if gap.seed is not None and gap.seed not in seeds:
                seeds.append(gap.seed)
    return [(state, gap, sorted(seeds)) for (state, gap), seeds in found.items()]
