"""The report as a document: one set of tables, which a writer sets in Markdown or in LaTeX."""

from __future__ import annotations

from playerfl.report.compute.findings import findings
from playerfl.report.compute.missing_runs import MARKS, gap_lines, holes
from playerfl.report.compute.report import Report
from playerfl.report.compute.sites import Difference
from playerfl.report.compute.statistics import ENOUGH_RUNS
from playerfl.report.compute.tables import Table
from playerfl.report.write.formats import (
    difference,
    duration,
    interval,
    metric_name,
    number,
    p_said,
    p_value,
    size,
    table_title,
)
from playerfl.report.write.markup import Text, Writer
from playerfl.report.write.wording import (
    gaps_lead,
    interval_head,
    lead,
    methods,
    paper_meaning,
    paper_title,
    printed_value,
    ranges,
    ranges_only,
    table_ranking,
    table_remarks,
    table_rule,
)


def document(report: Report, title: str, writer: Writer) -> str:
    """The whole report, in the order of the page."""
    writer.heading(title, 1)
    writer.paragraph(lead(report))
    for finding in findings(report):
        writer.heading(finding.question, 3)
        writer.items(finding.sentences)
    if report.notes:
        writer.heading("To bear in mind", 3)
        writer.items(report.notes)
    _missing(report, writer)
    if report.grid.runs:
        writer.heading("Tables")
        writer.paragraph(table_rule(report))
        for table in report.tables:
            _table(report, table, writer)
        _tests(report, writer)
        _sites(report, writer)
        _costs(report, writer)
    _paper(report, writer)
    writer.heading("How this was made")
    writer.items(methods(report))
    return writer.finished()


def _missing(report: Report, writer: Writer) -> None:
    if not (report.missing or report.failed):
        return
    writer.heading("What is missing")
    writer.paragraph(gaps_lead(report))
    if grid := holes(report):
        rows = [(row.algorithm, row.task, *(ranges(row.seeds(state)) or "–" for state in MARKS)) for row in grid]
        writer.table("Seeds of every method", ("method", "task", *MARKS), rows)
    writer.table(
        "Why",
        ("state", "task", "method", "seeds", "why"),
        [
            (
                state,
                gap.task,
                gap.algorithm,
                ranges(seeds) + (" (to choose the rate)" if gap.tuning else ""),
                gap.reason,
            )
            for state, gap, seeds in gap_lines(report)
        ],
    )


def _table(report: Report, table: Table, writer: Writer) -> None:
    ranking = table_ranking(report, table)
    mean = dict(zip(ranking.algorithms, ranking.mean_ranks, strict=True)) if ranking else {}
    one_task = len(table.tasks) == 1
    rows = []
    for name in (*table.ranked, *(name for name in table.algorithms if name not in table.ranked)):
        row: list[str | Text] = [name if name in table.ranked else f"{name} (not ranked)"]
        for task in table.tasks:
            cell = table.cells.get((name, task))
            if cell is None:
                row.append("–")
                continue
            value = number(cell.value, table.kind, table.metric) + ("≈" if cell.tie else "")
            ends = interval(cell, table.kind, table.metric, name_range=not ranges_only(table))
            printed = printed_value(table, name, task)
            if one_task:
                row += [Text(value, bold=cell.best), ends or "–", str(cell.runs)]
                row += [printed or "–"] if table.printed else []
            else:
                parts = (ends, f"n={cell.runs}", f"paper {printed}" if printed else "")
                row.append(Text(value, bold=cell.best, rest=tuple(filter(None, parts))))
        rows.append([*row, f"{mean[name]:.2f}" if name in mean else "–"])
    of_one = (interval_head(table), "runs", *(("paper",) if table.printed else ())) if one_task else ()
    writer.table(table_title(table.kind, table.metric), ("method", *table.tasks, *of_one, "mean rank"), rows)
    if remarks := table_remarks(report, table):
        writer.paragraph(" ".join(remarks))


def _tests(report: Report, writer: Writer) -> None:
    rows = []
    for table in report.tables:
        for ranking in report.rankings[table.name]:
            test = ranking.friedman
            if test is None or ranking.critical_difference is None:
                continue
            rows.append(
                (
                    paper_title(table.name),
                    ranking.over if ranking.over == "tasks" else f"runs on {ranking.over}",
                    str(test.treatments),
                    str(test.blocks),
                    f"{test.chi2:.2f}",
                    p_value(test.p),
                    p_value(test.f_p),
                    f"{test.kendall_w:.2f}",
                    f"{ranking.critical_difference:.2f}",
                )
            )
    writer.heading("Ranks and tests")
    if not rows:
        writer.paragraph("No test: these need three methods and two tasks, or two runs of a task.")
        return
    head = ("measure", "blocks", "methods", "N", "chi2", "Friedman p", "Iman-Davenport p", "Kendall W", "CD (Nemenyi)")
    writer.table("Do the methods differ?", head, rows)
    if any(ranking.over != "tasks" for ranking in report.rankings[report.metric]):
        writer.paragraph("Over the runs of one task a test is about that dataset only: its runs share the data.")
    for ranking in report.rankings[report.metric][:1]:
        if ranking.nemenyi is not None and ranking.holm is not None and ranking.effect is not None:
            pairs = [
                (
                    f"{first} – {ranking.algorithms[j]}",
                    p_value(float(ranking.nemenyi[i, j])),
                    p_value(float(ranking.holm[i, j])),
                    f"{ranking.effect[i, j]:+.2f}".replace("-", "−"),
                )
                for i, first in enumerate(ranking.algorithms)
                for j in range(i + 1, len(ranking.algorithms))
            ]
            columns = ("pair", "Nemenyi p", "Wilcoxon-Holm p", "rank-biserial")
            writer.table(f"Pairs of methods, {metric_name(report.metric)}, over {ranking.over}", columns, pairs)


def _sites(report: Report, writer: Writer) -> None:
    writer.heading("Who gains, who loses")
    for task in report.grid.tasks:
        table = report.site_table(task, report.subject, report.metric)
        if table is None:
            continue
        head = ["site", "examples", metric_name(report.metric)]
        shown = [
            (label, [row.to_local if label == report.choices.baseline_local else row.to_global for row in table.rows])
            for label in report.choices.baselines
            if label != report.subject
        ]
        head += [f"against {label}" for label, _ in shown]
        rows: list[tuple[str | Text, ...]] = [
            (
                row.site,
                f"{row.examples:,}",
                number(row.score, "score", table.metric),
                *(_difference(found[i], table.metric) for _, found in shown),
            )
            for i, row in enumerate(table.rows)
        ]
        writer.table(f"{report.subject} on {task}, the worst off first", head, rows)
        writer.paragraph(
            "Medians over seeds of the difference, positive is better for the site; in brackets the 95 % interval, or "
            f"the range where there are fewer than {ENOUGH_RUNS} runs; p is Wilcoxon’s over seeds, with Holm’s "
            "correction over the sites. Bold: worse than the baseline with p below 0.05."
        )


def _difference(found: Difference | None, metric: str) -> Text:
    if found is None:
        return Text("–")
    said = difference(found.value, metric)
    if low := difference(found.low, metric):
        said += f" [{low}, {difference(found.high, metric)}]"
    if found.runs > 1:
        said += f" {p_said(found.p)}"
    return Text(f"{said} n={found.runs}", bold=found.verdict == "loses")


def _costs(report: Report, writer: Writer) -> None:
    writer.heading("Cost")
    rows = [
        (
            f"{cost.algorithm} on {cost.task}",
            size(cost.down_per_round),
            size(cost.up_per_round),
            size(cost.down + cost.up),
            "–" if cost.never_leaves is None else f"{100 * cost.never_leaves:.1f} %",
            duration(cost.seconds) + (f" ({cost.side_by_side} side by side)" if cost.side_by_side > 1 else ""),
        )
        for cost in report.costs
    ]
    head = ("method", "to sites, a round", "from sites, a round", "in total", "never leaves a site", "wall time")
    writer.table("Bytes, exposure and time", head, rows)


def _paper(report: Report, writer: Writer) -> None:
    writer.heading("The paper’s own arithmetic")
    rows = [
        (
            paper_title(table.name),
            table.printed_p,
            p_value(table.friedman.p),
            p_value(table.friedman.f_p),
            paper_meaning(table),
        )
        for table in report.recomputed
    ]
    head = ("table", "printed", "Friedman p", "Iman-Davenport p", "meaning")
    writer.table("p-values recomputed from the printed cells", head, rows)
    names = list(report.recomputed[0].printed_ranks)
    ranks = []
    for name in names:
        row = [name]
        for table in report.recomputed:
            if name not in table.printed_ranks:
                row.append("–")
                continue
            mean = float(table.ranking.mean_ranks[table.ranking.algorithms.index(name)])
            row.append(f"{table.printed_ranks[name]:.1f} / {mean:.2f}")
        ranks.append(row)
    columns = ("method", *(paper_title(table.name) for table in report.recomputed))
    writer.table("Mean ranks over seven datasets: printed / recomputed", columns, ranks)
