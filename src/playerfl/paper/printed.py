"""What the paper prints for the tasks of a report: cells and cuts, to show next to the results."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from playerfl.paper import facts as paper

if TYPE_CHECKING:
    from playerfl.report.compute.grid import RunGrid

# The paper's losses are in hundredths.
_HUNDREDTHS = "loss"


@dataclass(frozen=True)
class Printed:
    """Printed values, under the report's names."""

    tasks: tuple[str, ...]
    """The tasks that are in the paper."""
    cells: Mapping[tuple[str, str, str], str]
    """By table, algorithm and task."""
    cuts: Mapping[str, int]
    """By task."""

    def cut_text(self, task: str) -> str:
        """A sentence on the printed cut of a task, or nothing."""
        return f"The paper prints a cut after layer {self.cuts[task]} for this dataset." if task in self.cuts else ""

    def number(self, table: str, algorithm: str, task: str) -> float | None:
        """A printed cell on the scale of the report's figures."""
        printed = self.cells.get((table, algorithm, task))
        if printed is None:
            return None
        return float(printed.split(" ")[0]) / (100 if table == _HUNDREDTHS else 1)


def printed_text(table: str, printed: str) -> str:
    """A printed cell with its unit.

    >>> printed_text("f1", "42.0 +/- 0.8"), printed_text("loss", "27.1 +/- 0.2")
    ('42.0 ± 0.8', '27.1 ± 0.2 ×10⁻²')
    """
    text = printed.replace("+/-", "±")
    return f"{text} ×10⁻²" if text and table == _HUNDREDTHS else text


def printed_for(grid: RunGrid) -> Printed:
    """What the paper prints for these tasks and algorithms."""
    datasets = {task: name for task in grid.tasks if (name := grid.printed_name(task))}
    cells = {}
    for table, content in paper.facts()["tables"].items():
        for algorithm in grid.algorithms:
            row = content["rows"].get(paper.ALGORITHM_NAMES.get(grid.plain_name(algorithm), ""), {})
            for task, dataset in datasets.items():
                if dataset in row:
                    cells[table, algorithm, task] = str(row[dataset]["printed"])
    cuts = {task: int(paper.protocol(dataset)["cut"]) for task, dataset in datasets.items()}
    return Printed(tuple(datasets), cells, cuts)
