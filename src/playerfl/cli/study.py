"""`playerfl study`: many runs, on every core, continued where they stopped."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from playerfl.cli.options import Quiet

if TYPE_CHECKING:
    from playerfl.studies.api import StudyResult
    from playerfl.studies.plan import Study
    from playerfl.studies.scheduler import Prepared

STUDY_EXAMPLES = """
[bold]Examples[/bold]

  playerfl study experiments/digits.toml

  playerfl study experiments/heart.toml --dry-run

  playerfl study experiments/heart.toml --workers 8 --out runs/heart

  playerfl study runs/heart --retry-failed

  playerfl study runs/heart --archive results/heart

  playerfl study experiments/heart.toml --backend ray --ray-address auto
"""


def study(
    file: Annotated[Path, typer.Argument(metavar="FILE")],
    out: Annotated[Path | None, typer.Option(help="Study directory; runs/NAME if not given.")] = None,
    workers: Annotated[
        int | None, typer.Option(help="Worker processes; one for each core if not given.", min=1)
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Count the runs and estimate the time, run nothing.")
    ] = False,
    retry_failed: Annotated[bool, typer.Option("--retry-failed", help="Run the failed runs again.")] = False,
    backend: Annotated[str, typer.Option(help="processes, ray or serial (in this process).")] = "processes",
    ray_address: Annotated[
        str | None, typer.Option(help="Of a Ray cluster; without it, Ray is started on this machine.")
    ] = None,
    data_dir: Annotated[
        Path | None, typer.Option(help="Where dataset files are; $PLAYERFL_DATA or your cache if not given.")
    ] = None,
    archive: Annotated[
        Path | None, typer.Option(help="Folder for the reported runs as small tables, which `report` reads too.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Results as JSON on stdout.")] = False,
    quiet: Quiet = False,
) -> None:
    """Run tasks x algorithms x learning rates x seeds: whatever of it is not there yet.

    FILE is a study file (TOML), or the directory of a study that was begun. Interrupted or killed, the same command
    goes on. Ends with exit code 1 if some runs failed.
    """
    from playerfl.cli.tables.study import shown_study
    from playerfl.data.download.directory import use_data_directory
    from playerfl.studies.api import check_backend, conduct, read_study, result_of
    from playerfl.studies.scheduler import prepare

    plan, path = read_study(file, out)
    check_backend(plan, backend, ray_address)
    with use_data_directory(data_dir):
        try:
            prepared = prepare(plan)
            if dry_run:
                _estimate(prepared, path, workers, retry_failed=retry_failed, as_json=as_json)
                return
            with shown_study(quiet=quiet) as watch:
                directory = conduct(
                    prepared,
                    path,
                    watch,
                    workers=workers,
                    backend=backend,
                    ray_address=ray_address,
                    retry_failed=retry_failed,
                    data_dir=data_dir,
                )
        except KeyboardInterrupt:
            begun = path if (path / "study.toml").is_file() else file
            _say(f"interrupted; what is finished is kept: continue with  playerfl study {begun}")
            sys.exit(130)
    result = result_of(directory)
    if archive:
        from playerfl.studies.archive import write_archive

        _say(f"{write_archive(directory, archive)} runs are in {archive}")
    _show(plan, result, directory.num_strangers, as_json=as_json)
    if result.failures:
        raise typer.Exit(1)


def _say(line: str) -> None:
    typer.echo(line, err=True)


def _show(plan: Study, result: StudyResult, strangers: int, *, as_json: bool) -> None:
    from playerfl.cli.tables.study import medians, print_medians
    from playerfl.report.compute.comparison import without_nan

    rows = medians(result)
    if as_json:
        found = {
            "study": plan.name,
            "directory": str(result.path),
            "results": rows,
            "failures": [vars(failure) for failure in result.failures],
        }
        typer.echo(json.dumps(without_nan(found), indent=1))
    else:
        print_medians(rows)
    for note in dict.fromkeys(note for run in result.results for note in run.data["notes"]):
        _say(f"note: {note}")
    for failure in result.failures:
        _say(f"failed: {failure}")
    if any(failure.key for failure in result.failures):
        _say(f"try those again with  playerfl study {result.path} --retry-failed")
    if strangers:
        _say(f"{strangers} finished runs of other settings are kept")
    _say(f"results: {result.path}")


def _estimate(prepared: Prepared, path: Path, workers: int | None, *, retry_failed: bool, as_json: bool) -> None:
    from playerfl.cli.tables.estimate import print_estimate
    from playerfl.studies.estimate import estimate

    # A worker begins as this process did: it starts, and reads the data.
    found = estimate(prepared, path, workers, retry_failed=retry_failed, start=time.process_time())
    if as_json:
        typer.echo(json.dumps(found.as_json(), indent=1))
    else:
        print_estimate(found)
