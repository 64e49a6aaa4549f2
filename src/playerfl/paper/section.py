"""The sections that `--paper` adds: PLayer-FL and its rivals, agreement with the paper, the paper's own arithmetic."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from playerfl.paper import facts as paper
from playerfl.paper.agreement import Agreement, Rho, agreements
from playerfl.paper.arithmetic import Recomputed, recomputed
from playerfl.paper.printed import Printed
from playerfl.paper.rivals import TASKS, Duel, duels
from playerfl.report.compute.statistics import ENOUGH_RUNS
from playerfl.report.formats import difference, number, p_text, p_value, signed, small, table_name
from playerfl.report.view.parts import NOTHING, Column, Facts, Head, Points, Section, TableCell, TableView, fields

if TYPE_CHECKING:
    from playerfl.report.compute.report import Report

# Printed and recomputed mean ranks further apart than this are set in bold.
_FAR = 0.5


def paper_section(printed: Printed) -> Section:
    """What the paper's printed cells give, alongside the ranks and p-values it prints."""
    title = "The paper’s own arithmetic"
    if not printed.tasks:
        return Section("paper", title, "None of these tasks is in the PLayer-FL paper, so there is nothing to compare.")
    return Section(
        "paper",
        title,
        "Ranks and p-values recomputed from the cells the PLayer-FL paper prints, alongside those it prints. "
        "Algorithms are the treatments, its seven datasets the blocks, and ties share the average rank. The printed "
        "cells are rounded, which limits this check.",
        (_tests().table("p-values recomputed from the printed cells"), _rank_table(), Points(_oddities(), "Oddities")),
    )


def comparison_sections(report: Report) -> list[Section]:
    """PLayer-FL against its rivals, and the agreement with the paper, each if there is something to compare."""
    sections, fought, agreed = [], rivals(report), agreement(report)
    if fought.items:
        intro = (
            "Mean differences over the runs of a task (or over tasks) in favour of PLayer-FL, with their 95 % "
            f"bootstrap interval, or their range where there are fewer than {ENOUGH_RUNS} runs. p is Wilcoxon’s, with "
            "Holm’s correction over these rivals. The last number is how large a mean difference would have been shown "
            "with a power of 80 % (a paired t-test at 5 %, from the spread of the differences)."
        )
        tables = [
            fought.table(f"PLayer-FL and its rivals by {small(table_name(name))}", items)
            for name in dict.fromkeys(duel.table for duel in fought.items)
            if (items := [duel for duel in fought.items if duel.table == name])
        ]
        sections.append(Section("rivals", "PLayer-FL and its rivals", intro, tuple(tables)))
    if agreed.items:
        intro = (
            "Spearman’s correlation over the methods that the paper compares, with 95 % bootstrap intervals over runs: "
            "of our medians with the printed values, and of our mean ranks over runs with the ranks of the printed "
            "values. The paper’s own uncertainty is not included."
        )
        table = agreed.table("Rank correlation with the printed numbers")
        sections.append(Section("agreement", "Agreement with the paper", intro, (table,)))
    return sections


def paper_facts(report: Report) -> list[Facts[Any]]:
    """The same for CSV and JSON."""
    if report.paper is None:
        return []
    compared: list[Facts[Any]] = [rivals(report), agreement(report)]
    return [*compared, _tests(), _ranks()] if report.paper.tasks else compared


def rivals(report: Report) -> Facts[Duel]:
    """PLayer-FL against each rival."""
    declared = report.grid.declared

    def points(duel: Duel, value: float) -> str:
        return difference(value, declared[duel.table]) or "–"

    return Facts(
        "paper_rivals",
        [
            Column("table", "", lambda d: d.table),
            Column("over", "over", lambda d: d.over, lambda d: f"{d.blocks} {_blocks(d)}", words=True),
            Column("rival", "rival", lambda d: d.rival, words=True),
            Column("rank", "mean rank", lambda d: d.rank, lambda d: f"{d.rank:.1f}"),
            Column("rival_rank", "of the rival", lambda d: d.rival_rank, lambda d: f"{d.rival_rank:.1f}"),
            Column("difference", "difference", lambda d: d.difference, lambda d: points(d, d.difference)),
            *fields("low", "high"),
            Column(
                "",
                "interval or range",
                lambda d: None,
                lambda d: f"{points(d, d.low)} to {points(d, d.high)}",
            ),
            Column("ahead", "ahead in", lambda d: d.ahead),
            *fields("behind", "blocks"),
            Column("p", "p", lambda d: d.p, lambda d: p_value(d.p)),
            Column(
                "detectable",
                "could have shown",
                lambda d: d.detectable,
                lambda d: number(d.detectable, "score", declared[d.table]),
            ),
            Column("verdict", "PLayer-FL is", lambda d: d.verdict, words=True),
        ],
        duels(report),
    )


def _blocks(duel: Duel) -> str:
    return "tasks" if duel.over == TASKS else f"runs on {duel.over}"


def agreement(report: Report) -> Facts[Agreement]:
    """The rank correlation with the paper, for every score and task that it prints."""
    return Facts(
        "paper_agreement",
        [
            Column("table", "measure", lambda a: a.table, lambda a: table_name(a.table), words=True),
            Column("task", "task", lambda a: a.task, words=True),
            *fields("methods", "runs"),
            *_rho_columns("values", "ρ of the values"),
            *_rho_columns("ranks", "ρ of the ranks"),
            Column("", "methods", lambda a: a.methods),
        ],
        agreements(report),
    )


def _rho_columns(name: str, title: str) -> list[Column[Agreement]]:
    def rho(item: Agreement) -> Rho:
        found: Rho = getattr(item, name)
        return found

    def shown(item: Agreement) -> TableCell:
        value, low, high = (signed(x, 2) for x in (rho(item).value, rho(item).low, rho(item).high))
        return TableCell(f"{value} ({low} to {high})", rho(item).value)

    return [
        Column(f"{name}_rho", title, lambda a: rho(a).value, shown),
        Column(f"{name}_low", "", lambda a: rho(a).low),
        Column(f"{name}_high", "", lambda a: rho(a).high),
    ]


def _tests() -> Facts[Recomputed]:
    return Facts(
        "paper_tests",
        [
            Column("table", "table", lambda t: t.name, lambda t: table_name(t.name), words=True),
            Column(
                "printed",
                "printed",
                lambda t: t.printed_p,
                lambda t: t.printed_p.replace("<", "\u00a0<\u00a0").replace("=", "\u00a0=\u00a0"),
                words=True,
            ),
            Column("p", "Friedman p", lambda t: t.friedman.p, lambda t: p_value(t.friedman.p)),
            Column("iman_davenport_p", "Iman-Davenport p", lambda t: t.friedman.f_p, lambda t: p_value(t.friedman.f_p)),
            Column("", "χ² (df)", lambda t: t.friedman.chi2, lambda t: f"{t.friedman.chi2:.2f} ({t.friedman.df})"),
            Column("transposed_p", "", lambda t: t.transposed.p),
            Column("agrees", "", lambda t: t.agrees),
            Column("explained_by_transposing", "", lambda t: t.explained_by_transposing),
            Column("", "verdict", lambda t: None, _verdict, words=True),
        ],
        recomputed(),
    )


def _verdict(table: Recomputed) -> str:
    """Whether the printed p-value follows from the printed cells."""
    if table.agrees:
        return "follows from the printed cells"
    if table.explained_by_transposing:
        transposed = p_text(table.transposed.p)
        return f"does not follow; consistent with the transposed table (datasets as treatments): {transposed}"
    return "does not follow, transposed or not"


def _ranks() -> Facts[tuple[Recomputed, str, float]]:
    return Facts(
        "paper_ranks",
        [
            Column("table", "", lambda r: r[0].name),
            Column("algorithm", "", lambda r: r[1]),
            Column("printed", "", lambda r: r[0].printed_ranks[r[1]]),
            Column("recomputed", "", lambda r: r[2]),
            Column("printed_minus_recomputed", "", lambda r: r[0].printed_ranks[r[1]] - r[2]),
        ],
        [
            (table, algorithm, float(mean))
            for table in recomputed()
            for algorithm, mean in zip(table.ranking.algorithms, table.ranking.mean_ranks, strict=True)
        ],
    )


def _rank_table() -> TableView:
    facts = _ranks()
    tables = list(dict.fromkeys(table.name for table, _, _ in facts.items))
    cells = {}
    for table, algorithm, mean in facts.items:
        printed = table.printed_ranks[algorithm]
        difference = printed - mean
        notes = (f"printed {printed:.1f}", signed(difference, 2))
        cells[algorithm, table.name] = TableCell(f"{mean:.2f}", mean, bold=abs(difference) >= _FAR, notes=notes)
    rows = [
        (TableCell(name), *(cells.get((name, table), NOTHING) for table in tables))
        for name in dict.fromkeys(algorithm for algorithm, _ in cells)
    ]
    return TableView(
        "Mean ranks over seven datasets: recomputed, printed, difference",
        (Head("method", words=True), *(Head(table_name(table)) for table in tables)),
        tuple(rows),
        remark="Bold: printed and recomputed mean rank differ by half a rank or more.",
        sortable=True,
    )


def _oddities() -> tuple[str, ...]:
    missing = [
        f"{table_name(table.name)}: best of its column but not in bold: {', '.join(table.missing_bold)}"
        for table in recomputed()
        if table.missing_bold
    ]
    return (*missing, *paper.facts()["anomalies"])
