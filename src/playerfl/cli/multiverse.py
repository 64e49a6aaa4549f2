"""`playerfl multiverse`: the ranking of methods under every combination of protocol choices."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from playerfl.cli.options import DataDir, Quiet, examples

if TYPE_CHECKING:
    from playerfl.studies.multiverse.api import MultiverseResult
    from playerfl.studies.multiverse.plan import MultiversePlan

MULTIVERSE_EXAMPLES = examples(
    "multiverse experiments/heart_multiverse.toml --dry-run",
    "multiverse experiments/heart_multiverse.toml --out runs/heart-multiverse",
    "multiverse runs/heart-multiverse",
)


def multiverse(
    file: Annotated[Path, typer.Argument(metavar="FILE")],
    out: Annotated[Path | None, typer.Option(help="Multiverse directory (default: runs/NAME-multiverse).")] = None,
    workers: Annotated[int | None, typer.Option(help="Worker processes (default: one per core).", min=1)] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Count the protocols, and estimate the first universe; run nothing.")
    ] = False,
    backend: Annotated[str, typer.Option(help="processes, or serial (in this process).")] = "processes",
    data_dir: DataDir = None,
    quiet: Quiet = False,
) -> None:
    """Rank methods under every combination of choices, and show which choice decides the ranking.

    FILE is a multiverse file (TOML), or the directory of an earlier one. After an interruption, the same command
    continues. Exits with code 1 if some runs failed.
    """
    from playerfl.cli.tables.study import shown_study
    from playerfl.studies.multiverse.api import read_plan, run_multiverse
    from playerfl.studies.multiverse.plan import Universe
    from playerfl.studies.scheduler import StatusListener

    @contextmanager
    def listening(universe: Universe, number: int) -> Iterator[StatusListener]:
        if not quiet:
            _say(f"universe {number} of {len(plan.universes)}: {universe.name}")
        with shown_study(quiet=quiet) as listener:
            yield listener

    def read(done: int, total: int) -> None:
        if not quiet:
            _say(f"read the runs of {done} of {total} universes")

    plan, path = read_plan(file, out)
    if dry_run:
        _estimate(plan, path, workers, data_dir)
        return
    try:
        result = run_multiverse(plan, path, listening, read, workers=workers, backend=backend, data_dir=data_dir)
    except KeyboardInterrupt:
        started = path if path.exists() else file
        _say(f"interrupted; finished runs are saved: continue with  playerfl multiverse {started}")
        sys.exit(130)
    _show(result)
    for failure in result.failures:
        _say(f"failed: {failure}")
    _say(f"results: {path}; see them with  playerfl report {path}")
    if result.failures:
        raise typer.Exit(1)


def _say(line: str) -> None:
    typer.echo(line, err=True)


def _estimate(plan: MultiversePlan, path: Path, workers: int | None, data_dir: Path | None) -> None:
    """Prints the number of protocols, and the missing runs and estimated time of the first universe."""
    import time

    from playerfl.cli.tables.estimate import print_estimate
    from playerfl.data.download.directory import use_data_directory
    from playerfl.studies.estimate import estimate
    from playerfl.studies.scheduler import prepare

    protocols = len(plan.universes)
    for factor in plan.factors:
        if factor.kind == "computed":
            protocols *= len(factor.values)
    typer.echo(f"{protocols} protocols from {len(plan.universes)} trained universes; in the first universe:")
    first = plan.universes[0]
    with use_data_directory(data_dir):
        prepared = prepare(first.study)
        estimated = estimate(
            prepared, path / "universes" / first.name, workers, retry_failed=False, start=time.process_time()
        )
    print_estimate(estimated)


def _show(result: MultiverseResult) -> None:
    from rich.table import Table

    from playerfl.cli.tables.console import wide_console
    from playerfl.report.compute.grid import method_name

    rows = sorted(result.summary, key=lambda row: (row["median_rank"], -row["first"]))
    rivals = list(dict.fromkeys(rival for row in rows for rival in row["ahead_of"]))
    table = Table("method", title=f"{len(result.rankings)} protocols")
    for heading in ("median rank", "range", "first", "top three", *(f"ahead of {method_name(r)}" for r in rivals)):
        table.add_column(heading, justify="right")
    table.add_column("decided most by")
    for row in rows:
        table.add_row(
            method_name(row["method"]),
            f"{row['median_rank']:g}",
            f"{row['best_rank']} to {row['worst_rank']}",
            f"{row['first']:.0%}",
            f"{row['top_three']:.0%}",
            *(f"{row['ahead_of'][rival]:.0%}" if rival in row["ahead_of"] else "" for rival in rivals),
            f"{row['decided_by']} ({row['decided_share']:.0%})",
        )
    wide_console().print(table)
