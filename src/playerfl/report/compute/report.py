"""Report: everything computed from a collection of runs, for all formats."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

from playerfl.errors import ConfigError, one_of
from playerfl.paper.printed import Printed, printed_for
from playerfl.report.compute.collected import Collected, Gap
from playerfl.report.compute.comparison import metrics_of
from playerfl.report.compute.cost import Cost, costs
from playerfl.report.compute.curves import Curve, curves
from playerfl.report.compute.grid import MAJORITY, F1Labels, RunGrid, arrange
from playerfl.report.compute.learnt import not_judged, not_learnt
from playerfl.report.compute.multiverse import Multiverse
from playerfl.report.compute.ranking import Ranking, rankings
from playerfl.report.compute.sites import MethodGains, SiteComparison, UnseenRow, method_gains, site_tables, unseen_rows
from playerfl.report.compute.statistics import ENOUGH_RUNS
from playerfl.report.compute.tables import Choices, ScoreTable, tables
from playerfl.report.compute.what_if import LayerScores, layer_scores
from playerfl.report.formats import listed
from playerfl.report.names import method_name
from playerfl.runs.measures.calibration import Calibration, baseline_calibration, calibrations
from playerfl.runs.measures.declared import Declared, declared_as


@dataclass(frozen=True)
class Report:
    """A report before it is written. Parts that only some formats need are computed on first use."""

    grid: RunGrid
    choices: Choices
    metric: str
    """The metric to show first."""
    missing: tuple[Gap, ...]
    failed: tuple[Gap, ...]
    tuning_runs: int
    """Finished runs that chose learning rates and are not reported."""
    notes: tuple[str, ...]
    data_notes: tuple[str, ...] = ()
    """How the tasks read their data."""
    paper: Printed | None = None
    """What the paper prints for these tasks; None unless requested."""
    f1_labels: str = "true_or_predicted"
    """The classes that macro-F1 averages over; see `RunResult.f1`."""
    multiverses: tuple[Multiverse, ...] = ()
    """Rankings under many protocols, each of one task."""

    @cached_property
    def tables(self) -> list[ScoreTable]:
        return sorted(tables(self.grid, self.choices), key=lambda table: table.metric != self.metric)

    def table(self, name: str) -> ScoreTable | None:
        return next((table for table in self.tables if table.name == name), None)

    @cached_property
    def rankings(self) -> dict[str, list[Ranking]]:
        """By table."""
        keep = {self.subject, *self.choices.baselines}
        apart = not self.grid.tasks_overlap
        return {
            table.name: rankings(table, keep, self.grid.alike, self.not_learnt, over_tasks=apart)
            for table in self.tables
        }

    @cached_property
    def not_learnt(self) -> tuple[str, ...]:
        """The tasks on which no method is clearly ahead of the baseline."""
        return not_learnt(self.tables)

    @cached_property
    def not_judged(self) -> tuple[str, ...]:
        """The tasks for which no baseline says whether they were learnt."""
        return not_judged(self.tables)

    @cached_property
    def sites(self) -> list[SiteComparison]:
        return site_tables(self.grid, self.choices)

    def method_gains(self, metric: str) -> list[MethodGains]:
        """What every method means to every site, by one metric."""
        if metric not in self._method_gains:
            self._method_gains[metric] = method_gains(self.grid, self.choices, metric)
        return self._method_gains[metric]

    @cached_property
    def _method_gains(self) -> dict[str, list[MethodGains]]:
        return {}

    @cached_property
    def unseen(self) -> list[UnseenRow]:
        return unseen_rows(self.grid)

    def site_table(self, task: str, algorithm: str, metric: str) -> SiteComparison | None:
        wanted = (task, algorithm, metric)
        return next((t for t in self.sites if (t.task, t.algorithm, t.metric) == wanted), None)

    @property
    def declared(self) -> Declared:
        """The metric to show first."""
        return self.grid.declared.get(self.metric) or declared_as(self.metric)

    @cached_property
    def has_rows(self) -> bool:
        """Whether any run holds the outcomes of its test rows."""
        return any(run.result.outcomes for run in self.grid.runs)

    @cached_property
    def calibrations(self) -> list[Calibration]:
        """Of the run of each method with the first seed."""
        return [
            calibration
            for task, algorithm, runs in self.grid.cells()
            for calibration in calibrations(runs[min(runs)], task, algorithm, self.grid.sites(task))
        ]

    @cached_property
    def baseline_calibrations(self) -> list[Calibration]:
        """By task, that of always saying how frequent each class is."""
        first = {task: runs[min(runs)] for task, _, runs in reversed(list(self.grid.cells()))}
        every = (baseline_calibration(first[t], t, MAJORITY, self.grid.sites(t)) for t in self.grid.tasks if t in first)
        return [calibration for calibration in every if calibration is not None]

    @property
    def for_own_data(self) -> bool:
        """Whether readers want to know about their data rather than about methods: all tasks are folders of their own,
        with fewer runs of each method than statistics over runs need."""
        runs = self.grid.runs
        return bool(runs) and all(run.result.of_folder for run in runs) and self.most_runs < ENOUGH_RUNS

    @cached_property
    def most_runs(self) -> int:
        """The largest number of runs of a method on a task."""
        return max((len(results) for _, _, results in self.grid.cells()), default=0)

    def test_rows(self, task: str, metric: str) -> list[tuple[str, int | None]]:
        """The sites of a task where this metric has a value, and their test rows, if these are known."""
        table = next(table for table in self.sites if (table.task, table.metric) == (task, metric))
        return sorted((row.site, row.test_rows) for row in table.rows if not row.undefined)

    @cached_property
    def costs(self) -> list[Cost]:
        return costs(self.grid)

    @cached_property
    def curves(self) -> list[Curve]:
        return curves(self.grid)

    @cached_property
    def layer_scores(self) -> list[LayerScores]:
        return layer_scores(self.grid)

    def table_ranking(self, table: ScoreTable) -> Ranking | None:
        """The ranking a table shows: over its tasks, or over the runs of its only task."""
        over_tasks = len(table.tasks) > 1
        return next((r for r in self.rankings[table.name] if (r.over == "tasks") == over_tasks), None)

    @cached_property
    def subject(self) -> str:
        """The algorithm the summary is about: PLayer-FL, or else the first that is not a baseline."""
        names = [name for name in self.grid.algorithms if name not in self.choices.baselines]
        return next(iter(self.grid.player_fl_first(names) or reversed(self.grid.algorithms)), "")


def build_report(
    collected: Collected,
    *,
    baseline_local: str | None = None,
    baseline_global: str | None = None,
    metric: str | None = None,
    client_average: Literal["samples", "uniform"] = "samples",
    per_run: bool = False,
    paper: bool = False,
    f1_labels: F1Labels = "true_or_predicted",
    methods: Literal["paper"] | Sequence[str] | None = None,
) -> Report:
    """A report on these runs. Baselines are names of algorithms (default: `local` and `fedavg`).

    If no run has finished yet, the report lists what is missing. `paper` adds what the PLayer-FL paper prints.
    `f1_labels`: the classes that macro-F1 averages over; any but the default need the runs' confusion matrices.
    `methods`: the report leaves out all others, as if they had not been run ("paper": those of the paper's tables).
    """
    collected = collected if methods is None else collected.only(methods)
    recorded = f1_labels == "true_or_predicted"
    results = collected.results if recorded else [result.with_f1_over(f1_labels) for result in collected.results]
    grid = arrange(results, f1_labels)
    if metric is not None and grid.runs and metric not in grid.metrics:
        raise ConfigError(one_of(metric, grid.metrics, "metric"))
    local, global_ = _baseline(grid, baseline_local, "local"), _baseline(grid, baseline_global, "fedavg")
    if local is not None and local == global_:
        raise ConfigError(f"the two baselines must be different algorithms, not both {local!r}")
    report = Report(
        grid=grid,
        choices=Choices(local, global_, client_average=client_average, per_run=per_run),
        metric=metric or next(iter(grid.metrics), "f1"),
        missing=tuple(collected.missing),
        failed=tuple(collected.failed),
        tuning_runs=collected.tuning_runs,
        notes=(),
        paper=printed_for(grid) if paper else None,
        f1_labels=f1_labels,
        multiverses=tuple(collected.multiverses),
    )
    notes = (
        *_together(collected.notes),
        *grid.notes,
        *_diverged(grid),
        *_alike(grid),
        *_redrawn_sites(grid, report.choices),
        *_without_majority(grid),
        *(_lacking(report.choices) if grid.runs else ()),
        *_other_rounds(grid, report.choices),
        *_variants(report, baseline_local, baseline_global),
    )
    data_notes = dict.fromkeys(f"{run.task}: {note}" for run in grid.runs for note in run.result.data.get("notes", []))
    return replace(report, notes=notes, data_notes=tuple(data_notes))


def _together(notes: Sequence[str]) -> list[str]:
    """Notes of the form "METHOD on TASK: …" that differ only in the method, as one.

    >>> _together(["local on heart: a", "fedavg on heart: a", "fedper on heart: b"])
    ['Local and FedAvg on heart: a', 'FedPer on heart: b']
    """
    methods: dict[str, list[str]] = {}
    for note in notes:
        method, on, rest = note.partition(" on ")
        methods.setdefault(on + rest, []).append(method_name(method) if on else note)
    return [note for rest, names in methods.items() for note in ([f"{listed(names)}{rest}"] if rest else names)]


def _baseline(grid: RunGrid, wanted: str | None, usual: str) -> str | None:
    """The label of a baseline: an exact one, or the variant of the named algorithm with the most runs."""
    name = wanted or usual
    if name in grid.algorithms or not grid.runs:
        return name if grid.runs else None
    variants = _variants_of(grid, name)
    if wanted is not None and len(variants) != 1:
        if variants:
            raise ConfigError(
                f"{wanted!r} ran with several settings here; name one of {', '.join(map(repr, variants))}"
            )
        known = {*grid.algorithms, *(grid.plain_name(label) for label in grid.algorithms)}
        raise ConfigError(one_of(wanted, known, "baseline"))
    return max(variants, key=lambda label: sum(run.algorithm == label for run in grid.runs), default=None)


def _variants_of(grid: RunGrid, name: str) -> list[str]:
    return [label for label in grid.algorithms if grid.plain_name(label) == name]


def _variants(report: Report, *named: str | None) -> list[str]:
    """Notes on which variant was used, for algorithms that ran with several settings."""
    notes = []
    for label, given, role, option in zip(
        (report.choices.baseline_local, report.choices.baseline_global, report.subject),
        (*named, None),
        ("the baseline for training alone", "the baseline for plain averaging", "the method the summary is about"),
        ("; choose another with --baseline-local", "; choose another with --baseline-global", ""),
        strict=True,
    ):
        if label and given is None:
            others = [other for other in _variants_of(report.grid, report.grid.plain_name(label)) if other != label]
            if others:
                notes.append(f"{label} is used as {role}, not {' or '.join(others)}{option}")
    return notes


def _alike(grid: RunGrid) -> list[str]:
    groups: dict[tuple[str, ...], list[str]] = {}
    for task, of_task in grid.alike.items():
        for group in of_task:
            groups.setdefault(group, []).append(task)
    return [
        f"{listed(group)} give identical numbers on {listed(tasks)}, so they count as one method under {len(group)} "
        "names: they share one place, and methods behind them do not rank lower"
        for group, tasks in groups.items()
    ]


def _redrawn_sites(grid: RunGrid, choices: Choices) -> list[str]:
    tasks = [task for task in grid.tasks if grid.redraws_sites(task)]
    if not tasks:
        return []
    per_run = "" if choices.per_run else "; --per-run computes fairness and incentive within runs"
    return [
        f"the sites of {listed(tasks)} are drawn anew in every run, so a median over runs of one site mixes different "
        f"sites with the same name{per_run}"
    ]


def _without_majority(grid: RunGrid) -> list[str]:
    with_classes = dict.fromkeys(run.task for run in grid.runs if {"f1", "accuracy"} & set(metrics_of(run.result)))
    tasks = [task for task in grid.tasks if task in with_classes and not grid.results(task, MAJORITY)]
    if not tasks:
        return []
    return [
        f"the majority class is not shown on {listed(tasks)}, because the runs do not record how many examples of each "
        "class a site has"
    ]


def _other_rounds(grid: RunGrid, choices: Choices) -> list[str]:
    """A note if FedAvg's sites report different rounds, and so different models."""
    name = choices.baseline_global
    if name is None or choices.baseline_local is None or grid.plain_name(name) != "fedavg":
        return []
    apart = []
    for task in grid.tasks:
        runs = grid.results(task, name).values()
        if different := sum(not run.reports_one_round for run in runs):
            apart.append(f"{different} of {len(runs)} runs on {task}")
    if not apart:
        return []
    return [
        f"incentive compares with one global model per run of {name}, that of the round with the lowest average "
        f"validation loss, because the sites report different rounds in {listed(apart)}"
    ]


def _diverged(grid: RunGrid) -> list[str]:
    counts = Counter((run.algorithm, run.task) for run in grid.runs if run.result.diverged)
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
    return [f"this report has no runs of {' and '.join(lacking)}, so gains over them and incentive are not shown"]
