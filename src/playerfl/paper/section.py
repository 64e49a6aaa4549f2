"""The paper's own arithmetic as a section of a report: its ranks and p-values, recomputed from its printed cells."""

from __future__ import annotations

from typing import Any

from playerfl.paper import facts as paper
from playerfl.paper.arithmetic import Recomputed, recomputed
from playerfl.paper.printed import Printed
from playerfl.report.formats import p_said, p_value, signed, table_name
from playerfl.report.view.parts import NOTHING, Column, Facts, Head, Points, Section, TableCell, TableView

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


def paper_facts() -> list[Facts[Any]]:
    """The same for CSV and JSON."""
    return [_tests(), _ranks()]


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
        transposed = p_said(table.transposed.p)
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
