"""Which tasks were learnt. Where no method is ahead of the majority class, the order of the methods is only noise."""

from __future__ import annotations

from collections.abc import Sequence

from playerfl.report.compute.tables import ScoreTable

LEARNT_MARGIN = 0.05
"""How far one method must be ahead of the majority class, in accuracy and in macro-F1: five points of each."""
JUDGING = ("accuracy", "f1")
"""The metrics that decide it."""


def not_learnt(tables: Sequence[ScoreTable]) -> tuple[str, ...]:
    """The tasks on which no method is ahead of the majority class by the margin, in both accuracy and macro-F1.

    Tasks for which the majority class is not known are not judged.
    """
    judging = [table for table in tables if table.kind == "score" and table.metric in JUDGING]
    tasks = dict.fromkeys(task for table in judging for task in table.tasks)
    return tuple(task for task in tasks if _judged(judging, task) and not _learnt(judging, task))


def _judged(tables: Sequence[ScoreTable], task: str) -> bool:
    return any(task in table.majority for table in tables)


def _learnt(tables: Sequence[ScoreTable], task: str) -> bool:
    judging = [table for table in tables if task in table.majority]
    methods = dict.fromkeys(name for table in judging for name in table.algorithms)
    return any(all(_ahead(table, name, task) for table in judging) for name in methods)


def _ahead(table: ScoreTable, name: str, task: str) -> bool:
    cell = table.cells.get((name, task))
    # Without the rounding, 0.35 would not be 0.05 ahead of 0.3.
    return cell is not None and round(cell.value - table.majority[task].value - LEARNT_MARGIN, 12) >= 0
