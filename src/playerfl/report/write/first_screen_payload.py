"""The numbers of the pictures on the first screen: methods by score, and sites by what they gain."""

from __future__ import annotations

import math
from typing import Any

from playerfl.report.compute.grid import TRAINING_MEAN
from playerfl.report.compute.report import Report
from playerfl.report.compute.sites import SiteComparison, SiteRow
from playerfl.report.compute.statistics import ENOUGH_RUNS
from playerfl.report.compute.tables import ScoreCell, ScoreTable
from playerfl.report.formats import interval_name, table_title
from playerfl.report.view.answers import leaders
from playerfl.report.view.first_screen import answer, clear, methods_finding, sites_finding


def scores_payload(report: Report) -> dict[str, Any]:
    """By metric and task: every method's score with its intervals over runs and over test rows."""
    return {
        table.metric: {
            "answer": answer(report, table.metric),
            "leaders": leaders(report, table),
            "title": table_title("score", table.declared),
            "tasks": {task: _task(report, table, task) for task in table.tasks},
        }
        for table in report.tables
        if table.kind == "score"
    }


def _task(report: Report, table: ScoreTable, task: str) -> dict[str, Any]:
    cells = {name: table.cells[name, task] for name in table.algorithms if (name, task) in table.cells}
    runs = [cell.runs for cell in cells.values()]
    baseline = report.grid.baseline_name([task])
    return {
        "finding": methods_finding(report, table, task),
        "runs": max(runs),
        "over": _over(min(runs), max(runs)),
        "methods": [[name, *_numbers(cell)] for name, cell in cells.items()],
        "baseline": baseline,
        "predicts": "mean" if baseline == TRAINING_MEAN else "most frequent class",
        "majority": table.majority[task].value if task in table.majority else None,
    }


def _over(fewest: int, most: int) -> str:
    """What the thick lines are.

    >>> _over(3, 3), _over(2, 3), _over(3, 50), _over(50, 50)
    ('range of 3 runs', 'range of a few runs', '95 % interval over runs or range of a few', '95 % interval over runs')
    """
    if most < ENOUGH_RUNS:
        return interval_name(most) if fewest == most else "range of a few runs"
    return "95 % interval over runs" + ("" if fewest >= ENOUGH_RUNS else " or range of a few")


def _numbers(cell: ScoreCell) -> list[float]:
    return [short(x) for x in (cell.value, cell.low, cell.high, *cell.rows)]


def gains_payload(report: Report, table: SiteComparison) -> dict[str, Any]:
    """What each site gains over training alone, in the order of the table; its score where there is no comparison."""
    compared = any(row.to_local for row in table.rows)
    return {
        "finding": sites_finding(report, table),
        "compared": compared,
        "runs": max((row.to_local.runs for row in table.rows if row.to_local), default=0),
        "sites": [_gain(row) if compared else _score(row) for row in table.rows],
    }


def _gain(row: SiteRow) -> list[Any] | None:
    gained = row.to_local
    if gained is None:
        return None
    return [int(clear(gained)), *_known(gained.value, gained.low, gained.high, *gained.rows)]


def _score(row: SiteRow) -> list[Any] | None:
    if row.undefined:
        return None
    return [1, *_known(row.score, math.nan, math.nan, *row.rows)]


def _known(*numbers: float) -> list[float]:
    """Rounded, without those at the end that are unknown."""
    shown = [short(x) for x in numbers]
    while len(shown) > 1 and math.isnan(shown[-1]):
        shown.pop()
    return shown


def short(value: float, digits: int = 5) -> float:
    """Rounded to significant digits; five are more than the page shows."""
    return float(f"{value:.{digits}g}")
