"""Is PLayer-FL better than its rivals? One comparison per rival, task and measure, and what it could have shown."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from playerfl.report.compute.statistics import (
    ENOUGH_RUNS,
    Array,
    apart,
    bootstrap_interval,
    detectable,
    differences,
    holm,
    mean,
    wilcoxon,
)

if TYPE_CHECKING:
    from playerfl.report.compute.report import Report
    from playerfl.report.compute.tables import ScoreTable

SUBJECT = "player_fl"
RIVALS = ("local", "fedavg", "fedper", "player_fl_random")
"""Training alone, plain averaging, keeping the last layer private, and a cut at a random layer."""
TASKS = "tasks"
_LEVEL = 0.05


@dataclass(frozen=True)
class Duel:
    """PLayer-FL and one rival by one measure, over the runs of a task or over tasks. Positive: PLayer-FL is better."""

    table: str
    over: str
    """A task whose runs are the blocks, or "tasks"."""
    rival: str
    rank: float
    rival_rank: float
    """Mean ranks among all methods."""
    difference: float
    """The mean over blocks."""
    low: float
    high: float
    """Its 95 % bootstrap interval; with few blocks, the smallest and the largest difference."""
    ahead: int
    behind: int
    """In how many blocks."""
    blocks: int
    p: float
    """Wilcoxon's, with Holm's correction over the rivals."""
    detectable: float
    """The smallest mean difference that could have been shown; see `statistics.detectable`."""
    learnt: bool

    @property
    def verdict(self) -> str:
        """By the test; where there are too few blocks for one, by whether all of them agree."""
        if not self.learnt:
            return "not judged, because the task was not learnt"
        if not (self.ahead or self.behind):
            return "the same"
        if self.p < _LEVEL:
            return "better" if self.difference > 0 else "worse"
        if self.blocks < ENOUGH_RUNS and self.blocks in (self.ahead, self.behind):
            return f"{'ahead' if self.ahead else 'behind'} in all {self.blocks}, too few for a test"
        return "no difference shown"


def duels(report: Report, names: Sequence[str] = RIVALS) -> list[Duel]:
    """For every score: over the runs of each task, and over the tasks that were learnt if there are several."""
    labels = {report.grid.plain_name(label): label for label in reversed(report.grid.algorithms)}
    subject, rivals = labels.get(SUBJECT), [labels[name] for name in names if name in labels]
    if subject is None:
        return []
    every = list[Duel]()
    for table in report.tables:
        if table.kind == "score":
            for task in table.tasks:
                every += _corrected(list(_over_runs(report, table, task, subject, rivals)))
            every += _corrected(list(_over_tasks(report, table, subject, rivals)))
    return every


def _over_runs(
    report: Report, table: ScoreTable, task: str, subject: str, rivals: Sequence[str]
) -> Iterator[tuple[Duel, Array]]:
    for rival in rivals:
        cells = [table.cells.get((name, task)) for name in (subject, rival)]
        if cells[0] is None or cells[1] is None:
            continue
        seeds = [seed for seed in cells[0].seeds if seed in cells[1].seeds]
        if seeds:
            first, second = (np.array([c.per_run[c.seeds.index(seed)] for seed in seeds]) for c in cells if c)
            yield _duel(report, table, task, (subject, rival), first, second)


def _over_tasks(report: Report, table: ScoreTable, subject: str, rivals: Sequence[str]) -> Iterator[tuple[Duel, Array]]:
    for rival in rivals:
        tasks = [
            task
            for task in table.tasks
            if task not in report.not_learnt and {(subject, task), (rival, task)} <= table.cells.keys()
        ]
        if len(tasks) > 1:
            first, second = (np.array([table.cells[name, task].value for task in tasks]) for name in (subject, rival))
            yield _duel(report, table, TASKS, (subject, rival), first, second)


def _duel(
    report: Report, table: ScoreTable, over: str, names: tuple[str, str], first: Array, second: Array
) -> tuple[Duel, Array]:
    """The duel, before its p-value is corrected, and its differences."""
    gaps = apart(second, first) if table.lower_is_better else apart(first, second)
    low, high = bootstrap_interval(mean, gaps) if len(gaps) >= ENOUGH_RUNS else (gaps.min(), gaps.max())
    ranking = next((r for r in report.rankings[table.name] if r.over == over), None)
    places = ranking.rank_of if ranking else {}
    duel = Duel(
        table=table.name,
        over=over,
        rival=names[1],
        rank=places.get(names[0], np.nan),
        rival_rank=places.get(names[1], np.nan),
        difference=float(mean(gaps)),
        low=float(low),
        high=float(high),
        ahead=int(np.sum(gaps > 0)),
        behind=int(np.sum(gaps < 0)),
        blocks=len(gaps),
        p=1.0,
        detectable=float(detectable(gaps)),
        learnt=over not in report.not_learnt,
    )
    return duel, gaps


def _corrected(every: Sequence[tuple[Duel, Array]]) -> list[Duel]:
    """With the p-values of all rivals, corrected for their number."""
    if not every:
        return []
    raw = np.array([float(wilcoxon(differences(gaps, np.zeros_like(gaps))[None])[0]) for _, gaps in every])
    return [replace(duel, p=float(p)) for (duel, _), p in zip(every, holm(raw), strict=True)]
