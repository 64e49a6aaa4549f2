"""The progress of a study on stderr (a live table on a terminal, else plain lines), and its results on stdout."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from statistics import median
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from playerfl.cli.tables.comparison import print_unseen
from playerfl.cli.tables.console import wide_console
from playerfl.report.compute.comparison import compare
from playerfl.studies.api import StudyResult
from playerfl.studies.directory import Phase
from playerfl.studies.scheduler import LineStatus, Status, StatusListener
from playerfl.time_left import duration, left_text
from playerfl.wording import counted

_SECONDS_BETWEEN_LINES = 10.0
_LINES_AROUND_THE_TABLE = 7


@contextmanager
def shown_study(*, quiet: bool = False) -> Iterator[StatusListener]:
    """A listener that shows the progress of a study."""
    if quiet:
        yield lambda status: None
    elif sys.stderr.isatty():
        console = Console(stderr=True, highlight=False)
        with Live(console=console, refresh_per_second=4, transient=False) as live:
            yield lambda status: live.update(_live(status, console.height))
    else:
        yield _lines()


def _live(status: Status, height: int) -> Group:
    return Group(_table(status, max(height - _LINES_AROUND_THE_TABLE, 4)), Text(_summary(status)))


def _table(status: Status, rows: int) -> Table:
    table = Table()
    for heading in ("task", "algorithm"):
        table.add_column(heading, no_wrap=True)
    for heading in ("tuning", "learning rate", "evaluation", "failed"):
        table.add_column(heading, justify="right", no_wrap=True)
    # Show what fits: first what is running, then what is still to come.
    lines = status.lines
    if len(lines) > rows:
        lines = sorted(lines, key=lambda line: (not line.running, not line.left))[: rows - 1]
    for line in lines:
        table.add_row(
            escape(line.line.task),
            f"[bold]{escape(line.line.algorithm)}[/bold]" if line.running else escape(line.line.algorithm),
            _done(line, "tuning"),
            "none usable" if line.rate_failed else "" if line.rate is None else f"{line.rate:g}",
            _done(line, "evaluation"),
            f"[red]{sum(line.failed.values())}[/red]" if any(line.failed.values()) else "",
        )
    if len(lines) < len(status.lines):
        table.add_row("…", f"and {len(status.lines) - len(lines)} more")
    return table


def _done(line: LineStatus, phase: Phase) -> str:
    total, done = line.totals[phase], line.done[phase]
    if not total:
        return ""
    colour = "green" if done == total else "default"
    return f"[{colour}]{done}/{total}[/{colour}]"


def _summary(status: Status) -> str:
    left = left_text(status.seconds_left)
    failed = sum(sum(line.failed.values()) for line in status.lines)
    runs = sum(sum(line.totals.values()) for line in status.lines)
    parts = (
        f"{sum(sum(line.done.values()) for line in status.lines)} of {runs} runs",
        f"{failed} failed" if failed else "",
        f"{duration(status.elapsed)} elapsed",
        left if any(line.left for line in status.lines) else "",
        counted(status.workers, "worker"),
        f"memory {_gigabytes(status.memory)} (peak {_gigabytes(status.peak_memory)})",
    )
    return ", ".join(part for part in parts if part)


def _lines() -> StatusListener:
    """One line every few seconds, and one whenever an algorithm is done with a task."""
    console = Console(stderr=True, highlight=False, soft_wrap=True)
    last = 0.0
    reported: set[tuple[str, str]] = set()

    def show(status: Status) -> None:
        nonlocal last
        for line in status.lines:
            name = (line.line.task, line.line.algorithm)
            if line.left == 0 and name not in reported:
                reported.add(name)
                rate = "no usable learning rate" if line.rate is None else f"learning rate {line.rate:g}"
                failed = sum(line.failed.values())
                trouble = f", {failed} failed" if failed else ""
                runs = line.done["evaluation"]
                console.print(f"{name[1]} on {name[0]}: done, {rate}, {counted(runs, 'run')}{trouble}", markup=False)
        now = time.monotonic()
        if now - last >= _SECONDS_BETWEEN_LINES or not any(line.left for line in status.lines):
            last = now
            console.print(_summary(status), markup=False)

    return show


def _gigabytes(count: int) -> str:
    return f"{count / 1e9:.2f} GB"


def medians(result: StudyResult) -> list[dict[str, Any]]:
    """For each task and algorithm: the median over runs of each metric's average over sites."""
    rows = []
    for (task, algorithm), runs in result.runs.items():
        averages = [compare([run])[0].average for run in runs]
        unseen = {
            site: _medians([run.unseen_scores[site] for run in runs])
            for site in (runs[0].unseen_scores if runs else ())
        }
        rows.append(
            {
                "task": task,
                "algorithm": algorithm,
                "learning_rate": result.chosen_rates[task, algorithm],
                "runs": len(runs),
                "median": _medians(averages),
                **({"unseen": unseen} if unseen else {}),
            }
        )
    return rows


def _medians(runs: Sequence[Mapping[str, float]]) -> dict[str, float]:
    return {metric: median(run[metric] for run in runs) for metric in runs[0]} if runs else {}


def print_medians(rows: Sequence[dict[str, Any]]) -> None:
    """Prints the results."""
    console = wide_console()
    tasks = dict.fromkeys(str(row["task"]) for row in rows)
    for task in tasks:
        task_rows = [row for row in rows if row["task"] == task]
        metrics = next((list(row["median"]) for row in task_rows if row["median"]), [])
        shown = sorted(metrics, key=lambda metric: (metric == "loss", metric != "f1", metric))
        table = Table(title=f"{escape(task)}: median over runs, test data", title_justify="left")
        table.add_column("algorithm", no_wrap=True)
        for heading in ("runs", "learning rate", *shown):
            table.add_column(heading, justify="right", no_wrap=True)
        for row in task_rows:
            rate, values = row["learning_rate"], row["median"]
            table.add_row(
                escape(str(row["algorithm"])),
                str(row["runs"]),
                "" if rate is None else f"{rate:g}",
                *(f"{values[metric]:.4f}" if values else "" for metric in shown),
            )
        console.print(table)
        print_unseen(
            [
                (str(row["algorithm"]), site, {metric: scores[metric] for metric in shown})
                for row in task_rows
                for site, scores in row.get("unseen", {}).items()
            ],
            f"{task}: unseen sites, median over runs, test data",
        )
