"""The paper's arithmetic: ranks and p-values recomputed from its printed cells, alongside those it prints."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache

import numpy as np

from playerfl.paper import facts as paper
from playerfl.report.compute.ranking import Ranking, rank
from playerfl.report.compute.statistics import Friedman, friedman

# Relative difference up to which a printed "p = …" counts as the computed one; the cells are rounded.
_CLOSE = 0.02


@dataclass(frozen=True)
class Recomputed:
    """One printed table: what follows from its cells."""

    name: str
    description: str
    ranking: Ranking
    """Algorithms as treatments, datasets as blocks."""
    printed_ranks: dict[str, float]
    printed_p: str
    transposed: Friedman
    """Datasets as treatments: this tests whether datasets differ, which is not the question."""
    missing_bold: tuple[str, ...]
    """The best cells of their columns that are not printed in bold."""

    @property
    def friedman(self) -> Friedman:
        assert self.ranking.friedman is not None
        return self.ranking.friedman

    @property
    def agrees(self) -> bool:
        """Whether the printed p-value follows from the cells."""
        return fits(self.printed_p, self.friedman.p)

    @property
    def explained_by_transposing(self) -> bool:
        """Whether the printed p-value is that of the transposed table, and not that of the table."""
        return not self.agrees and fits(self.printed_p, self.transposed.p)


@cache
def recomputed() -> tuple[Recomputed, ...]:
    """The nine tables of the paper."""
    return tuple(_recomputed(name, table) for name, table in paper.facts()["tables"].items() if "better" in table)


def _recomputed(name: str, table: dict[str, object]) -> Recomputed:
    rows = table["rows"]
    assert isinstance(rows, dict)
    datasets = paper.facts()["datasets"]
    lower = table["better"] == "lower"
    values = np.array([[rows[algorithm][dataset]["value"] for algorithm in rows] for dataset in datasets])
    best = values.min(axis=1) if lower else values.max(axis=1)
    missing = [
        f"{algorithm} on {dataset} ({rows[algorithm][dataset]['printed']})"
        for row, dataset in enumerate(datasets)
        for column, algorithm in enumerate(rows)
        if values[row, column] == best[row] and not rows[algorithm][dataset].get("bold") and len(set(values[row])) > 1
    ]
    return Recomputed(
        name=name,
        description=str(table["description"]),
        ranking=rank(values, tuple(rows), datasets, name, "tasks", lower),
        printed_ranks={algorithm: float(cells["mean_rank"]["value"]) for algorithm, cells in rows.items()},
        printed_p=str(table["friedman_printed"]),
        transposed=friedman(values.T),
        missing_bold=tuple(missing),
    )


def fits(printed: str, p: float) -> bool:
    """Whether a computed p-value agrees with the printed one.

    >>> fits("p<5e-3", 0.0013), fits("p<5e-3", 0.0126), fits("p=0.084", 0.0834)
    (True, False, True)
    """
    relation, number = re.fullmatch(r"p([<=])(\S+)", printed).groups()  # type: ignore[union-attr]
    return p < float(number) if relation == "<" else abs(p - float(number)) <= _CLOSE * float(number)
