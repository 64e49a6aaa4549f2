"""A report's answers, for the terminal."""

from __future__ import annotations

from rich.markup import escape
from rich.padding import Padding
from rich.table import Table

from playerfl.cli.tables.console import wide_console
from playerfl.report.compute.report import Report
from playerfl.report.compute.tables import ScoreTable
from playerfl.report.formats import interval, interval_head, number, size, table_title
from playerfl.report.view.first_screen import answer, other_answers
from playerfl.wording import counted

# With more tasks, a question has more sentences than a terminal has room for.
_SHOWN = 3


def print_report(report: Report) -> None:
    """The answer in one sentence, the methods of a single task as a table, and the other answers; on stderr."""
    console = wide_console(stderr=True)
    if first := answer(report):
        console.print(f"[bold]{escape(first)}[/bold]\n")
    table = report.table(report.metric)
    if table and len(table.tasks) == 1:
        console.print(_methods(report, table, table.tasks[0]))
        console.print()
    for one in other_answers(report):
        console.print(f"[bold]{escape(one.question)}[/bold]")
        for sentence in one.sentences[:_SHOWN]:
            console.print(Padding(escape(sentence), (0, 0, 0, 2), expand=False))
        if (more := len(one.sentences) - _SHOWN) > 0:
            console.print(f"  … and {counted(more, 'more sentence')} in the report.")


def _methods(report: Report, table: ScoreTable, task: str) -> Table:
    """Each method's score, whom it leaves better or worse off than training alone, and its traffic."""
    shown = Table(title=escape(f"{task}: {table_title('score', table.declared)}"), title_justify="left")
    shown.add_column("method", overflow="fold")
    heads = ["median" if report.most_runs > 1 else "value"]
    heads += [interval_head(table)] if report.most_runs > 1 else []
    gains = report.choices.baseline_local is not None
    heads += ["better off than alone", "worse off"] if gains else []
    for head in (*heads, "sent by the sites"):
        shown.add_column(head, justify="right")
    sent = {cost.algorithm: cost.up for cost in report.costs if cost.task == task}
    for name in table.algorithms:
        cell = table.cells[name, task]
        row = [number(cell.value, "score", table.declared)]
        row += [interval(cell, table)] if report.most_runs > 1 else []
        if gains:
            sites = report.site_table(task, name, table.metric)
            moved = [site.to_local.value for site in sites.rows if site.to_local] if sites else []
            row += [str(sum(x > 0 for x in moved)), str(sum(x < 0 for x in moved))] if moved else ["", ""]
        shown.add_row(escape(name), *map(escape, row), size(sent.get(name, 0)))
    if majority := table.majority.get(task):
        shown.add_section()
        shown.add_row(
            f"[dim]{escape(table.baseline_name.lower())}[/dim]", number(majority.value, "score", table.declared)
        )
    return shown
