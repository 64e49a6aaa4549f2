"""Every fact of a report with its columns. A column is defined here once and appears in every format."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from playerfl.paper.printed import printed_text
from playerfl.paper.section import paper_facts
from playerfl.report.compute.cost import Cost
from playerfl.report.compute.curves import Curve
from playerfl.report.compute.grid import MAJORITY
from playerfl.report.compute.missing_runs import MARKS, MissingRuns, SeedRow, missing_runs, seed_rows
from playerfl.report.compute.ranking import Ranking
from playerfl.report.compute.report import Report
from playerfl.report.compute.tables import ScoreCell, ScoreTable
from playerfl.report.compute.what_if import LayerScores
from playerfl.report.formats import (
    difference,
    duration,
    interval,
    number,
    p_value,
    ranges,
    share,
    signed,
    size,
    table_name,
)
from playerfl.report.view.gains import gains
from playerfl.report.view.hospital import calibration_bins
from playerfl.report.view.multiverse import multiverse_facts
from playerfl.report.view.parts import NOTHING, Column, Facts, TableCell, Value, fields
from playerfl.report.view.site_facts import sites, unseen
from playerfl.runs.result import RunResult


def all_facts(report: Report) -> list[Facts[Any]]:
    """The tables of CSV and JSON, in order."""
    return [
        scores(report),
        ranks(report),
        tests(report),
        pairs(report),
        sites(report),
        gains(report),
        *([unseen(report)] if report.unseen else []),
        costs(report),
        curves(report),
        cuts(report),
        runs(report),
        gaps(report),
        calibration_bins(report),
        *multiverse_facts(report),
        *paper_facts(report),
    ]


def records(report: Report) -> dict[str, list[dict[str, Value]]]:
    """Every fact by the name of its table; a record maps columns to values."""
    return {facts.name: facts.records() for facts in all_facts(report)}


@dataclass(frozen=True)
class ShownCell:
    """One cell of a score table."""

    table: ScoreTable
    task: str
    algorithm: str
    cell: ScoreCell
    printed: str
    """What the paper prints for it; empty unless the report shows the paper."""
    learnt: bool = True
    """Whether the task was learnt; otherwise no method is marked as the best."""

    @property
    def shown(self) -> TableCell:
        tie = "≈" if self.cell.tie and self.learnt else ""
        text = number(self.cell.value, self.table.kind, self.table.declared) + tie
        value = self.cell.value if math.isfinite(self.cell.value) else math.nan
        alone = len(self.table.algorithms) == 1
        return TableCell(text, value, bold=self.cell.best and self.learnt and not alone)

    @property
    def over_rows(self) -> str:
        low, high = (number(end, "score", self.table.declared) for end in self.cell.rows)
        return "" if math.isnan(self.cell.rows[0]) else f"[{low}, {high}]"

    @property
    def printed_shown(self) -> str:
        return printed_text(self.table.name, self.printed)


def scores(report: Report, table: ScoreTable | None = None) -> Facts[ShownCell]:
    """Algorithms × tasks of one score table, or of all."""
    columns: list[Column[ShownCell]] = [
        Column("table", "", lambda s: s.table.name),
        *fields("task", "algorithm"),
        Column("value", "value", lambda s: s.cell.value, lambda s: s.shown),
        *fields("cell.low", "cell.high"),
        Column("", "interval", lambda s: None, lambda s: interval(s.cell, s.table)),
        Column("rows_low", "", lambda s: s.cell.rows[0]),
        Column("rows_high", "", lambda s: s.cell.rows[1]),
        Column("", "95 % interval over test rows", lambda s: None, lambda s: s.over_rows, note="rows {}"),
        Column("runs", "runs", lambda s: s.cell.runs, note="n={}"),
        *fields("cell.best", "cell.tie"),
        Column("diverged_runs", "", lambda s: sum(not math.isfinite(value) for value in s.cell.per_run)),
        Column("ranked", "", lambda s: s.algorithm in s.table.ranked),
        Column("baseline", "", lambda s: s.algorithm == MAJORITY),
    ]
    printed = report.paper.cells if report.paper else {}
    if printed:
        columns.append(Column("paper", "paper", lambda s: s.printed, lambda s: s.printed_shown, note="paper {}"))
    items = [
        ShownCell(
            one, task, algorithm, cell, printed.get((one.name, algorithm, task), ""), task not in report.not_learnt
        )
        for one in ([table] if table else report.tables)
        for task in one.tasks
        for algorithm in (*one.algorithms, MAJORITY)
        if (cell := one.majority.get(task) if algorithm == MAJORITY else one.cells.get((algorithm, task)))
    ]
    return Facts("cells", columns, items)


def ranks(report: Report) -> Facts[tuple[Ranking, str, float]]:
    return Facts(
        "ranks",
        [
            Column("table", "", lambda r: r[0].table),
            Column("over", "", lambda r: r[0].over),
            Column("algorithm", "", lambda r: r[1]),
            Column("mean_rank", "", lambda r: r[2]),
            Column("blocks", "", lambda r: len(r[0].blocks)),
            Column("blocks_left_out", "", lambda r: " ".join(r[0].blocks_left_out)),
            Column("not_learnt", "", lambda r: " ".join(r[0].not_learnt)),
            Column("same_as", "", lambda r: r[0].same_as.get(r[1], "")),
        ],
        [(ranking, algorithm, mean) for ranking in _rankings(report) for algorithm, mean in ranking.rank_of.items()],
    )


def _rankings(report: Report) -> list[Ranking]:
    return [ranking for of_table in report.rankings.values() for ranking in of_table]


def tests(report: Report) -> Facts[Ranking]:
    return Facts(
        "tests",
        [
            Column("table", "measure", lambda r: r.table, lambda r: table_name(r.table), words=True),
            Column("over", "blocks", lambda r: r.over, lambda r: r.block_name, words=True),
            Column("algorithms", "methods", lambda r: r.tested.treatments),
            Column("blocks", "N", lambda r: r.tested.blocks),
            Column("chi2", "χ²", lambda r: r.tested.chi2, lambda r: f"{r.tested.chi2:.2f}"),
            *fields("tested.df"),
            Column("p", "Friedman p", lambda r: r.tested.p, lambda r: p_value(r.tested.p)),
            Column("iman_davenport_f", "", lambda r: r.tested.f),
            Column("iman_davenport_p", "Iman-Davenport p", lambda r: r.tested.f_p, lambda r: p_value(r.tested.f_p)),
            Column("kendall_w", "Kendall W", lambda r: r.tested.kendall_w, lambda r: f"{r.tested.kendall_w:.2f}"),
            Column(
                "critical_difference",
                "CD (Nemenyi)",
                lambda r: r.critical_difference,
                lambda r: f"{r.critical_difference:.2f}",
            ),
        ],
        [ranking for ranking in _rankings(report) if ranking.friedman],
    )


@dataclass(frozen=True)
class Pair:
    """Two methods in one ranking, by their positions."""

    ranking: Ranking
    first: int
    second: int

    def name(self, position: int) -> str:
        return self.ranking.algorithms[position]

    def label(self, position: int) -> str:
        return self.ranking.labels[position]

    def of(self, matrix: str) -> float:
        return float(getattr(self.ranking, matrix)[self.first, self.second])


def pairs(report: Report) -> Facts[Pair]:
    return Facts(
        "pairs",
        [
            *fields("ranking.table", "ranking.over"),
            Column("algorithm", "method", lambda p: p.name(p.first), lambda p: p.label(p.first), words=True),
            Column("other", "other method", lambda p: p.name(p.second), lambda p: p.label(p.second), words=True),
            Column("nemenyi_p", "Nemenyi p", lambda p: p.of("nemenyi"), lambda p: p_value(p.of("nemenyi"))),
            Column("wilcoxon_p", "", lambda p: p.of("wilcoxon")),
            Column("wilcoxon_holm_p", "Wilcoxon-Holm p", lambda p: p.of("holm"), lambda p: p_value(p.of("holm"))),
            Column("rank_biserial", "rank-biserial", lambda p: p.of("effect"), lambda p: signed(p.of("effect"), 2)),
            Column(
                "difference",
                "mean difference",
                lambda p: p.of("difference"),
                lambda p: difference(p.of("difference"), report.declared) or "–",
            ),
            Column(
                "detectable",
                "could have shown",
                lambda p: p.of("detectable"),
                lambda p: number(p.of("detectable"), "score", report.declared),
            ),
        ],
        [
            Pair(ranking, first, second)
            for ranking in _rankings(report)
            if ranking.effect is not None
            for first in range(len(ranking.algorithms))
            for second in range(first + 1, len(ranking.algorithms))
        ],
    )


def costs(report: Report) -> Facts[Cost]:
    return Facts(
        "costs",
        [
            Column("algorithm", "method", lambda c: c.algorithm, words=True),
            Column("task", "task", lambda c: c.task, words=True),
            *fields("runs", "rounds"),
            Column(
                "down_per_round", "to sites per round", lambda c: c.down_per_round, lambda c: size(c.down_per_round)
            ),
            Column("up_per_round", "from sites per round", lambda c: c.up_per_round, lambda c: size(c.up_per_round)),
            *(
                [
                    Column[Cost](
                        "full_fine_tuning",
                        "with full fine-tuning",
                        lambda c: c.full_fine_tuning,
                        lambda c: NOTHING if c.full_fine_tuning is None else size(c.full_fine_tuning),
                    )
                ]
                if any(cost.full_fine_tuning is not None for cost in report.costs)
                else []
            ),
            *fields("down", "up"),
            Column("", "in total", lambda c: c.down + c.up, lambda c: size(c.down + c.up)),
            Column(
                "never_leaves",
                "never leaves a site",
                lambda c: c.never_leaves,
                lambda c: NOTHING if c.never_leaves is None else TableCell(share(c.never_leaves), c.never_leaves),
            ),
            Column(
                "seconds",
                "wall time",
                lambda c: c.seconds,
                lambda c: TableCell(
                    duration(c.seconds),
                    c.seconds,
                    notes=(f"({c.side_by_side} side by side)",) if c.side_by_side > 1 else (),
                ),
            ),
            *fields("side_by_side"),
        ],
        report.costs,
    )


def curves(report: Report) -> Facts[tuple[Curve, int]]:
    return Facts(
        "curves",
        [
            Column("task", "", lambda c: c[0].task),
            Column("algorithm", "", lambda c: c[0].algorithm),
            Column("metric", "", lambda c: c[0].metric),
            Column("split", "", lambda c: c[0].split),
            Column("round", "", lambda c: c[0].rounds[c[1]]),
            Column("median", "", lambda c: float(c[0].middle[c[1]])),
            Column("lower_quartile", "", lambda c: float(c[0].low[c[1]])),
            Column("upper_quartile", "", lambda c: float(c[0].high[c[1]])),
            Column("diverged_runs", "", lambda c: c[0].diverged),
        ],
        [(curve, position) for curve in report.curves for position in range(len(curve.rounds))],
    )


def cuts(report: Report) -> Facts[tuple[LayerScores, int, int]]:
    printed = report.paper.cuts if report.paper else {}
    columns: list[Column[tuple[LayerScores, int, int]]] = [
        Column("task", "", lambda c: c[0].task),
        Column("algorithm", "", lambda c: c[0].algorithm),
        Column("seed", "", lambda c: c[1]),
        Column("cut", "", lambda c: c[2]),
        Column("layers", "", lambda c: len(c[0].layers)),
        Column("federated", "", lambda c: " ".join(c[0].layers[: c[2]])),
    ]
    if printed:
        columns.append(Column("paper", "", lambda c: printed.get(c[0].task)))
    items = [(scores, seed, cut) for scores in report.layer_scores for seed, cut in scores.cuts.items()]
    return Facts("cuts", columns, items)


Method = tuple[str, str, dict[int, RunResult]]
"""Task, algorithm and its runs by seed."""


def runs(report: Report) -> Facts[Method]:
    """What was run: one item per method and task."""

    def experiment(item: Method) -> Mapping[str, Any]:
        return next(iter(item[2].values())).experiment

    def rate(item: Method) -> str:
        training = experiment(item).get("training")
        return f"{training['learning_rate']:g}" if training else ""

    def options(item: Method) -> str:
        given = {k: v for k, v in experiment(item)["algorithm"].items() if k != "name" and v is not None}
        return ", ".join(f"{key} = {json.dumps(value)}" for key, value in given.items())

    return Facts(
        "runs",
        [
            Column("algorithm", "method", lambda r: r[1], words=True),
            Column("task", "task", lambda r: r[0], words=True),
            Column("runs", "runs", lambda r: len(r[2])),
            Column("seeds", "seeds", lambda r: ranges(sorted(r[2])), words=True),
            Column("rounds", "rounds", lambda r: int(experiment(r)["rounds"])),
            Column("learning_rate", "learning rate", rate),
            Column("hyper_parameters", "hyper-parameters", options, words=True),
        ],
        list(report.grid.cells()),
    )


def gaps(report: Report, *, grouped: bool = False) -> Facts[MissingRuns]:
    """Runs that are missing, and why."""
    return Facts(
        "missing",
        [
            Column("state", "state", lambda g: g.state, words=True),
            Column("task", "task", lambda g: g.task, words=True),
            Column("algorithm", "method", lambda g: g.algorithm, words=True),
            Column(
                "seed",
                "seeds",
                lambda g: g.seeds[0] if g.seeds else None,
                lambda g: ranges(g.seeds) + (" (to choose the rate)" if g.tuning else ""),
                words=True,
            ),
            Column("chooses_rate", "", lambda g: g.tuning),
            Column("reason", "why", lambda g: g.reason, words=True),
        ],
        missing_runs(report, grouped=grouped),
    )


def seed_states(report: Report) -> Facts[SeedRow]:
    """Which seeds of each method have finished. For documents only: CSV lists missing runs one by one."""
    return Facts(
        "seeds",
        [
            Column("", "method", lambda r: r.algorithm, words=True),
            Column("", "task", lambda r: r.task, words=True),
            Column("", "seeds", lambda r: r.drawn, words=True),
            *(
                Column("", state, lambda r, state=state: ranges(r.seeds(state)) or "–", words=True)  # type: ignore[misc]
                for state in MARKS
                if state != "not planned"
            ),
        ],
        seed_rows(report),
    )
