"""`playerfl multiverse`: the ranking of methods under every combination of protocol choices."""

from __future__ import annotations

import json
import math
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from playerfl.cli.messages import say
from playerfl.cli.options import DataDir, Quiet, RetryFailed, Workers, examples

if TYPE_CHECKING:
    from playerfl.report.compute.multiverse import Multiverse
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
    workers: Workers = None,
    dry_run: Annotated[
        bool,
        typer.Option(
            "--dry-run", help="Count protocols and runs, and estimate the time from a few timed steps; start none."
        ),
    ] = False,
    retry_failed: RetryFailed = False,
    backend: Annotated[str, typer.Option(help="processes, or serial (in this process).")] = "processes",
    data_dir: DataDir = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the summary as JSON on stdout.")] = False,
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
    from playerfl.time_left import left_text

    @contextmanager
    def listening(universe: Universe, number: int, seconds: float | None) -> Iterator[StatusListener]:
        if not quiet:
            left = "" if seconds is None else f" ({left_text(seconds)} for all)"
            say(f"universe {number} of {len(plan.universes)}: {universe.name}{left}")
        with shown_study(quiet=quiet) as listener:
            yield listener

    def read(done: int, total: int) -> None:
        if not quiet:
            say(f"read the runs of {done} of {total} universes")

    plan, path = read_plan(file, out)
    if dry_run:
        _estimate(plan, path, workers, data_dir, retry_failed=retry_failed, as_json=as_json)
        return
    try:
        result = run_multiverse(
            plan,
            path,
            listening,
            read,
            workers=workers,
            backend=backend,
            retry_failed=retry_failed,
            data_dir=data_dir,
        )
    except KeyboardInterrupt:
        started = path if path.exists() else file
        say(f"interrupted; finished runs are saved: continue with  playerfl multiverse {started}")
        sys.exit(130)
    if as_json:
        typer.echo(json.dumps({"directory": str(path), **_as_json(result)}, indent=1))
    else:
        _show(result.ranked)
    for failure in result.failures:
        say(f"failed: {failure}")
    if result.failures:
        say(f"try them again with  playerfl multiverse {path} --retry-failed")
    say(f"results: {path}; see them with  playerfl report {path}")
    if result.failures:
        raise typer.Exit(1)


def _as_json(result: MultiverseResult) -> dict[str, Any]:
    return {
        "protocols": len(result.ranked.protocols),
        "summary": [asdict(line) for line in result.ranked.summary],
        "failures": [vars(failure) for failure in result.failures],
    }


def _estimate(
    plan: MultiversePlan, path: Path, workers: int | None, data_dir: Path | None, *, retry_failed: bool, as_json: bool
) -> None:
    """Prints the number of protocols, and the missing runs and estimated time of every universe."""
    from playerfl.cli.progress import step_counter
    from playerfl.cli.tables.estimate import print_universes
    from playerfl.data.download.directory import use_data_directory
    from playerfl.studies.estimate import estimate
    from playerfl.studies.multiverse.api import universe_path
    from playerfl.studies.scheduler import prepare

    estimates = {}
    with use_data_directory(data_dir), step_counter("universes", len(plan.universes)) as tick:
        for universe in plan.universes:
            estimates[universe.name] = estimate(
                prepare(universe.study), universe_path(path, universe), workers, retry_failed=retry_failed
            )
            tick()
    protocols = len(plan.universes) * math.prod(len(f.values) for f in plan.factors if f.kind == "computed")
    # A worker starts as this process did: it imports everything and reads the data.
    start = time.process_time()
    seconds = sum(e.seconds + start for e in estimates.values() if e.runs_left)
    if as_json:
        content = {
            "directory": str(path),
            "protocols": protocols,
            "universes": {
                name: {"runs_left": e.runs_left, "seconds": e.seconds + start if e.runs_left else 0.0}
                for name, e in estimates.items()
            },
            "seconds": seconds,
        }
        typer.echo(json.dumps(content, indent=1))
    else:
        print_universes(estimates, protocols, seconds)


def _show(ranked: Multiverse) -> None:
    from rich.table import Table

    from playerfl.cli.tables.console import wide_console
    from playerfl.report.names import method_name

    lines = sorted(ranked.summary, key=lambda line: (line.median_rank, -line.first))
    rivals = list(dict.fromkeys(rival for line in lines for rival in line.ahead_of))
    table = Table(title=f"{len(ranked.protocols)} protocols")
    table.add_column("method", no_wrap=True)
    for heading in ("median rank", "range", "first", "top three", *(f"ahead of {method_name(r)}" for r in rivals)):
        table.add_column(heading, justify="right")
    table.add_column("most decisive choice")
    for line in lines:
        table.add_row(
            method_name(line.method),
            f"{line.median_rank:g}",
            f"{line.best_rank} to {line.worst_rank}",
            f"{line.first:.0%}",
            f"{line.top_three:.0%}",
            *(f"{line.ahead_of[rival]:.0%}" if rival in line.ahead_of else "" for rival in rivals),
            f"{line.decided_by} ({line.decided_share:.0%})",
        )
    wide_console().print(table)
