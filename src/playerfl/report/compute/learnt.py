"""Which tasks were learnt. Where no method is ahead of the baseline, the order of the methods is only noise."""

from __future__ import annotations

from collections.abc import Sequence

from playerfl.report.compute.tables import ScoreTable
from playerfl.report.formats import small

LEARNT_MARGIN = 0.05
"""How far one method must be ahead of the baseline: five points of a score, or an error that is 5 % smaller."""
_BOTH = ("accuracy", "f1")
# A constant prediction is well calibrated without having learnt anything.
_NO_JUDGES = ("ece",)


def not_learnt(tables: Sequence[ScoreTable]) -> tuple[str, ...]:
    """The tasks on which no method is ahead of the baseline by the margin, in all metrics that judge them."""
    return tuple(task for task in _tasks(tables) if (judges := judges_of(tables, task)) and not _learnt(judges, task))


def not_judged(tables: Sequence[ScoreTable]) -> tuple[str, ...]:
    """The tasks for which no baseline, or no metric with a known scale, says whether they were learnt."""
    return tuple(task for task in _tasks(tables) if not judges_of(tables, task))


def judges_of(tables: Sequence[ScoreTable], task: str) -> tuple[ScoreTable, ...]:
    """The tables that decide whether a task was learnt: accuracy and macro-F1, else the first that can, if any.

    A metric can if its baseline is known and a margin means something: for a share, a score of the catalogue between 0
    and 1, or an error. For other metrics of a user's own, nothing says how much counts.
    """
    known = [table for table in tables if table.kind == "score" and task in table.majority and _can_judge(table, task)]
    both = tuple(table for table in known if table.metric in _BOTH)
    return both or tuple(known[:1])


def behind(tables: Sequence[ScoreTable], task: str) -> tuple[ScoreTable, ...]:
    """Of the tables that decide, those in which no method is ahead; none if methods are ahead in one each."""
    return tuple(
        table for table in judges_of(tables, task) if not any(_ahead(table, name, task) for name in table.algorithms)
    )


def criterion(tables: Sequence[ScoreTable], task: str) -> str:
    """What a method must be to have learnt a task, in words."""
    judges = judges_of(tables, task)
    name = judges[0].baseline_name.lower()
    if judges[0].declared.lower_is_better:
        return f"{100 * LEARNT_MARGIN:g} % below the {name} in {small(judges[0].declared.title)}"
    titles = [small(table.declared.title) for table in judges]
    if judges[0].declared.in_percent:
        # Accuracy first, as in the documentation.
        points = " and of ".join(sorted(titles))
        return f"{100 * LEARNT_MARGIN:g} points of {points} ahead of the {name}"
    return f"{LEARNT_MARGIN:g} ahead of the {name} in {titles[0]}"


def _tasks(tables: Sequence[ScoreTable]) -> list[str]:
    return list(dict.fromkeys(task for table in tables if table.kind == "score" for task in table.tasks))


def _can_judge(table: ScoreTable, task: str) -> bool:
    declared = table.declared
    if table.metric in _NO_JUDGES:
        return False
    if declared.lower_is_better:
        return table.majority[task].value > 0
    return declared.in_percent or declared.bundled


def _learnt(judges: Sequence[ScoreTable], task: str) -> bool:
    methods = dict.fromkeys(name for table in judges for name in table.algorithms)
    return any(all(_ahead(table, name, task) for table in judges) for name in methods)


def _ahead(table: ScoreTable, name: str, task: str) -> bool:
    cell, baseline = table.cells.get((name, task)), table.majority[task].value
    if cell is None:
        return False
    if table.declared.lower_is_better:
        return round(baseline * (1 - LEARNT_MARGIN) - cell.value, 12) >= 0
    # Without the rounding, 0.35 would not be 0.05 ahead of 0.3.
    return round(cell.value - baseline - LEARNT_MARGIN, 12) >= 0
