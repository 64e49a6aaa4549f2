"""What `playerfl study --dry-run` prints: how many runs are missing, and how long they would take."""

from __future__ import annotations

from collections.abc import Mapping

from rich.markup import escape
from rich.table import Table

from playerfl.cli.tables.console import wide_console
from playerfl.studies.estimate import Estimate, run_counts
from playerfl.time_left import duration
from playerfl.wording import counted


def print_estimate(estimate: Estimate) -> None:
    console = wide_console()
    table = Table(title="Runs: done / failed / missing", title_justify="left")
    for heading in ("task", "algorithm"):
        table.add_column(heading, no_wrap=True)
    for heading in ("learning rates", "tuning", "evaluation", "seconds per run"):
        table.add_column(heading, justify="right", no_wrap=True)
    for status, seconds in zip(estimate.lines, estimate.seconds_per_run, strict=True):
        tuning, evaluation = run_counts(status, "tuning"), run_counts(status, "evaluation")
        table.add_row(
            escape(status.line.task),
            escape(status.line.algorithm),
            str(len(status.line.rates)),
            _in_words(tuning) if tuning["runs"] else "",
            _in_words(evaluation),
            f"{seconds:.3g}",
        )
    console.print(table)
    console.print(
        f"Missing runs: {estimate.runs_left}. They take about {duration(estimate.seconds)} with "
        f"{counted(estimate.workers, 'worker')} and about {estimate.memory / 1e9:.1f} GB of memory."
    )
    console.print(
        f"Estimated in {duration(estimate.calibration)}: training steps and scored rows were counted by running each "
        "algorithm for a few rounds with a trainer that only counts; a few real steps of each kind were timed on "
        "this machine. If other work runs alongside, the study takes longer."
    )


def print_universes(estimates: Mapping[str, Estimate], protocols: int, seconds: float) -> None:
    """What `playerfl multiverse --dry-run` prints. `seconds`: for all universes, one after the other."""
    console = wide_console()
    table = Table()
    table.add_column("universe", no_wrap=True)
    for heading in ("missing runs", "time"):
        table.add_column(heading, justify="right", no_wrap=True)
    for name, estimate in estimates.items():
        table.add_row(escape(name), str(estimate.runs_left), duration(estimate.seconds))
    console.print(table)
    runs = sum(estimate.runs_left for estimate in estimates.values())
    workers = counted(max(estimate.workers for estimate in estimates.values()), "worker")
    console.print(
        f"{protocols} protocols from {len(estimates)} trained universes. Missing runs: {runs}. They take about "
        f"{duration(seconds)} with {workers}."
    )


def _in_words(counts: dict[str, int]) -> str:
    return f"{counts['done']} / {counts['failed']} / {counts['missing']}"
