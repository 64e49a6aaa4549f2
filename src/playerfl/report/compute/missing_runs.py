"""Which seeds of each method have finished, and why the others have not."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from playerfl.report.compute.collected import Gap
from playerfl.report.compute.report import Report
from playerfl.report.names import method_name, task_name

# How a seed is drawn in a row of seeds.
MARKS = {"finished": "■", "not finished": "·", "failed": "✕", "not planned": "–"}


@dataclass(frozen=True)
class SeedRow:
    """One method on one task: the state of every seed that any method has on this task."""

    task: str
    algorithm: str
    states: Mapping[int, str]

    def seeds(self, state: str) -> list[int]:
        return [seed for seed, known in self.states.items() if known == state]

    @property
    def drawn(self) -> str:
        """One mark per seed of the task, in order."""
        return "".join(MARKS[state] for state in self.states.values())


@dataclass(frozen=True)
class MissingRuns:
    """Runs that are missing for one reason: one run, or several that differ only in the seed."""

    state: str
    task: str
    algorithm: str
    seeds: tuple[int, ...]
    reason: str
    tuning: bool


def seed_rows(report: Report) -> list[SeedRow]:
    """Methods × seeds of every task that lacks a run; runs that only choose learning rates do not count."""
    states: dict[str, dict[str, dict[int, str]]] = {}
    for run in report.grid.runs:
        states.setdefault(run.task, {}).setdefault(run.algorithm, {})[run.seed] = "finished"
    for state, gap in _gaps(report):
        if gap.seed is not None and not gap.tuning:
            known = states.setdefault(task_name(gap.task), {}).setdefault(method_name(gap.algorithm), {})
            # The same seed may have finished in another folder.
            known.setdefault(gap.seed, state)
    rows = []
    for task, methods in states.items():
        seeds = sorted({seed for known in methods.values() for seed in known})
        task_rows = [
            SeedRow(task, name, {seed: known.get(seed, "not planned") for seed in seeds})
            for name, known in methods.items()
        ]
        if any(set(row.states.values()) != {"finished"} for row in task_rows):
            rows += task_rows
    return rows


def missing_runs(report: Report, *, grouped: bool) -> list[MissingRuns]:
    """Every missing run, or (grouped) one entry for those that differ only in the seed."""
    single = [
        MissingRuns(
            state,
            task_name(gap.task),
            method_name(gap.algorithm),
            () if gap.seed is None else (gap.seed,),
            gap.reason,
            gap.tuning,
        )
        for state, gap in _gaps(report)
    ]
    if not grouped:
        return single
    groups: dict[tuple[str, str, str, str, bool], set[int]] = {}
    for run in single:
        groups.setdefault((run.state, run.task, run.algorithm, run.reason, run.tuning), set()).update(run.seeds)
    return [
        MissingRuns(state, task, algorithm, tuple(sorted(seeds)), reason, tuning)
        for (state, task, algorithm, reason, tuning), seeds in groups.items()
    ]


def _gaps(report: Report) -> list[tuple[str, Gap]]:
    return [("not finished", gap) for gap in report.missing] + [("failed", gap) for gap in report.failed]
