"""Report: everything that can be said about a collection of runs, computed once and shown in several ways."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from playerfl.errors import ConfigError, one_of
from playerfl.report.collected import Collected, Gap
from playerfl.report.cost import Cost, costs
from playerfl.report.curves import Curve, curves
from playerfl.report.grid import Grid, arrange
from playerfl.report.paper_arithmetic import Recomputed, recomputed
from playerfl.report.ranking import Ranking, rankings
from playerfl.report.sites import SiteTable, site_tables
from playerfl.report.tables import Choices, Table, tables
from playerfl.report.what_if import Measured, measured


@dataclass(frozen=True)
class Report:
    """Computed, not yet shown. Parts that only some formats need are computed when they are asked for."""

    grid: Grid
    choices: Choices
    metric: str
    """The one that is shown first."""
    missing: tuple[Gap, ...]
    failed: tuple[Gap, ...]
    notes: tuple[str, ...]

    @cached_property
    def tables(self) -> list[Table]:
        found = tables(self.grid, self.choices)
        return sorted(found, key=lambda table: table.metric != self.metric)

    def table(self, name: str) -> Table | None:
        return next((table for table in self.tables if table.name == name), None)

    @cached_property
    def rankings(self) -> dict[str, list[Ranking]]:
        """By table."""
        return {table.name: rankings(table) for table in self.tables}

    @cached_property
    def sites(self) -> list[SiteTable]:
        return site_tables(self.grid, self.choices)

    def site_table(self, task: str, algorithm: str, metric: str) -> SiteTable | None:
        wanted = (task, algorithm, metric)
        return next((t for t in self.sites if (t.task, t.algorithm, t.metric) == wanted), None)

    @cached_property
    def costs(self) -> list[Cost]:
        return costs(self.grid)

    @cached_property
    def curves(self) -> list[Curve]:
        return curves(self.grid)

    @cached_property
    def measured(self) -> list[Measured]:
        return measured(self.grid)

    @cached_property
    def recomputed(self) -> list[Recomputed]:
        """The paper's own tables."""
        return recomputed()

    @cached_property
    def subject(self) -> str:
        """The algorithm the summary speaks of: PLayer-FL, or else the first that is no baseline."""
        own = [name for name in self.grid.algorithms if name not in self.choices.baselines]
        own.sort(key=lambda name: self.grid.plain_name(name) != "player_fl")
        return (own or list(reversed(self.grid.algorithms)))[0]


def build_report(
    collected: Collected,
    *,
    baseline_local: str | None = None,
    baseline_global: str | None = None,
    metric: str | None = None,
    client_average: Literal["samples", "uniform"] = "samples",
    per_run: bool = False,
) -> Report:
    """A report on these runs. Baselines are named as algorithms are; where not given, `local` and `fedavg`."""
    if not collected.results:
        reasons = "; ".join(
            f"{gap.algorithm} on {gap.task}: {gap.reason}" for gap in (*collected.missing, *collected.failed)
        )
        raise ConfigError(f"no run has finished yet, so there is nothing to report ({reasons})")
    grid = arrange(collected.results)
    metrics = grid.metrics
    if metric is not None and metric not in metrics:
        raise ConfigError(one_of(metric, metrics, "metric"))
    choices = Choices(
        baseline_local=_baseline(grid, baseline_local, "local"),
        baseline_global=_baseline(grid, baseline_global, "fedavg"),
        client_average=client_average,
        per_run=per_run,
    )
    if choices.baseline_local is not None and choices.baseline_local == choices.baseline_global:
        raise ConfigError(f"the two baselines must be different algorithms, not both {choices.baseline_local!r}")
    return Report(
        grid=grid,
        choices=choices,
        metric=metric or metrics[0],
        missing=tuple(collected.missing),
        failed=tuple(collected.failed),
        notes=(*grid.notes, *_diverged(grid), *_lacking(choices), *_data_notes(grid)),
    )


def _baseline(grid: Grid, wanted: str | None, usual: str) -> str | None:
    """The label that is meant: an exact one, or the first variant of a named algorithm."""
    name = wanted or usual
    for label in grid.algorithms:
        if name in (label, grid.plain_name(label)):
            return label
    if wanted is not None:
        known = {*grid.algorithms, *(grid.plain_name(label) for label in grid.algorithms)}
        raise ConfigError(one_of(wanted, known, "baseline"))
    return None


def _diverged(grid: Grid) -> list[str]:
    counts: dict[tuple[str, str], int] = {}
    for run in grid.runs:
        if run.result.diverged:
            counts[run.algorithm, run.task] = counts.get((run.algorithm, run.task), 0) + 1
    return [
        f"{algorithm} on {task}: a loss became NaN in {count} of {len(grid.results(task, algorithm))} runs; "
        "a score that is not a number counts as worse than any number"
        for (algorithm, task), count in counts.items()
    ]


def _lacking(choices: Choices) -> list[str]:
    lacking = [
        name
        for name, label in (("training alone (local)", choices.baseline_local), ("FedAvg", choices.baseline_global))
        if label is None
    ]
    if not lacking:
        return []
    return [f"there are no runs of {' and '.join(lacking)}, so gains over them and incentive cannot be shown"]


def _data_notes(grid: Grid) -> list[str]:
    notes = {f"{run.task}: {note}": None for run in grid.runs for note in run.result.data.get("notes", [])}
    return list(notes)
