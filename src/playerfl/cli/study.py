"""`playerfl study`: many runs on every core, resumed where they stopped."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from playerfl.cli.messages import say
from playerfl.cli.options import DataDir, Json, Quiet, RetryFailed, StopAfter, Workers, examples
from playerfl.wording import counted

if TYPE_CHECKING:
    from playerfl.studies.api import StudyResult
    from playerfl.studies.plan import Study

STUDY_EXAMPLES = examples(
    "study experiments/digits.toml",
    "study experiments/heart.toml --dry-run",
    "study experiments/heart.toml --workers 8 --out runs/heart",
    "study runs/heart --retry-failed",
    "study runs/heart --archive results/heart",
    "study experiments/heart.toml --backend ray --ray-address auto",
)


def study(
    file: Annotated[Path, typer.Argument(metavar="FILE")],
    out: Annotated[Path | None, typer.Option(help="Study directory (default: runs/NAME).")] = None,
    workers: Workers = None,
    dry_run: Annotated[
        bool,
        typer.Option(
            "--dry-run", help="Count the runs and estimate their time from a few timed steps; start none of them."
        ),
    ] = False,
    retry_failed: RetryFailed = False,
    backend: Annotated[str, typer.Option(help="processes, ray, or serial (in this process).")] = "processes",
    ray_address: Annotated[
        str | None, typer.Option(help="Address of a Ray cluster (default: start Ray on this machine).")
    ] = None,
    data_dir: DataDir = None,
    archive: Annotated[
        Path | None,
        typer.Option(
            help="Also write the reported runs to this folder as small tables, which `playerfl report` can read."
        ),
    ] = None,
    stop_after: StopAfter = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Run tasks x algorithms x learning rates x seeds, skipping what is already done.

    FILE is a study file (TOML), or the directory of an earlier study. After an interruption, the same command
    continues it. Exits with code 1 if some runs failed.
    """
    from playerfl.cli.tables.study import shown_study
    from playerfl.observers.stopping import TimeBudget
    from playerfl.runs.run import StopRun
    from playerfl.studies.api import both, check_backend, read_study, result_of, run_study

    plan, path = read_study(file, out)
    if plan.protocol != type(plan).model_fields["protocol"].default:
        say(f"protocol: {plan.protocol}")
    if dry_run:
        check_backend(plan, backend, ray_address)
        _estimate(plan, path, workers, data_dir, retry_failed=retry_failed, as_json=as_json)
        return
    try:
        with shown_study(quiet=quiet) as listener:
            directory = run_study(
                plan,
                path,
                both(listener, None if stop_after is None else TimeBudget(60 * stop_after)),
                workers=workers,
                backend=backend,
                ray_address=ray_address,
                retry_failed=retry_failed,
                data_dir=data_dir,
            )
    except (KeyboardInterrupt, StopRun) as stopped:
        started = path if (path / "study.toml").is_file() else file
        say(f"{str(stopped) or 'interrupted'}; finished runs are saved: continue with  playerfl study {started}")
        sys.exit(130)
    result = result_of(directory)
    if archive:
        from playerfl.studies.archive import write_archive

        say(f"wrote {counted(write_archive(directory, archive), 'run')} to {archive}")
    _show(plan, result, directory.num_other_runs, as_json=as_json)
    if result.failures:
        raise typer.Exit(1)


def _show(plan: Study, result: StudyResult, other_runs: int, *, as_json: bool) -> None:
    from playerfl.cli.tables.study import medians, print_medians
    from playerfl.report.compute.comparison import without_nan

    rows = medians(result)
    if as_json:
        content = {
            "study": plan.name,
            "directory": str(result.path),
            "results": rows,
            "failures": [vars(failure) for failure in result.failures],
        }
        typer.echo(json.dumps(without_nan(content), indent=1))
    else:
        print_medians(rows)
    notes = (*result.tuning_notes, *(note for run in result.results for note in run.data["notes"]))
    for note in dict.fromkeys(notes):
        say(f"note: {note}")
    for failure in result.failures:
        say(f"failed: {failure}")
    if any(failure.key for failure in result.failures):
        say(f"tracebacks: {result.path / 'failed'}; try them again with  playerfl study {result.path} --retry-failed")
    if other_runs:
        say(f"finished runs with other settings, which are kept: {other_runs}")
    say(f"results: {result.path}")


def _estimate(
    plan: Study, path: Path, workers: int | None, data_dir: Path | None, *, retry_failed: bool, as_json: bool
) -> None:
    from playerfl.cli.tables.estimate import print_estimate
    from playerfl.data.download.directory import use_data_directory
    from playerfl.studies.estimate import estimate
    from playerfl.studies.scheduler import prepare

    with use_data_directory(data_dir):
        prepared = prepare(plan)
        # A worker starts as this process did: it imports everything and reads the data.
        estimated = estimate(prepared, path, workers, retry_failed=retry_failed, start=time.process_time())
    if as_json:
        typer.echo(json.dumps(estimated.as_json(), indent=1))
    else:
        print_estimate(estimated)
