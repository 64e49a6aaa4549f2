"""`playerfl flower demo`: a whole federation on one machine."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from playerfl.cli.flower_jobs import sent_per_round, shown_changes
from playerfl.cli.messages import say
from playerfl.cli.options import Json, Settings, examples

if TYPE_CHECKING:
    from playerfl.flower.operate.demo import DemoResult, DemoSite

DEMO_EXAMPLES = examples(
    "flower demo",
    "flower demo --out demo --rounds 3",
    "flower demo ./hospitals --set data.drop_columns=patient --ask --out rehearsal",
    "flower demo --config experiment.toml",
)


def demo(
    task: Annotated[str | None, typer.Argument()] = None,
    rounds: Annotated[
        int | None, typer.Option(help="Communication rounds (default: the task's; 2 on digits).", min=1)
    ] = None,
    settings: Settings = None,
    config: Annotated[
        Path | None, typer.Option(metavar="FILE", help="An experiment of your own; TASK replaces its task.")
    ] = None,
    ask: Annotated[
        bool, typer.Option("--ask", help="Show the job at each site and ask you to approve it, as its administrator.")
    ] = False,
    out: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Keep all files here (default: a temporary folder).")
    ] = None,
    as_json: Json = False,
) -> None:
    """Run a whole federation on this machine, on digits or on your own data: a server, sites, TLS, keys, a job.

    TASK is any task that `playerfl run` accepts (default: digits); each site of a folder sees only its own file.
    Everything is shut down at the end, even after Ctrl-C. Takes one to three minutes on two cores. Exits with code 1 if
    the result differs by even one bit from a run in one process.
    """
    import tempfile

    from playerfl.errors import ConfigError
    from playerfl.flower.operate.demo import demo_experiment, demonstrate

    started = time.monotonic()

    def say_after(line: str) -> None:
        say(f"{time.monotonic() - started:5.0f} s  {line}")

    if out is not None and out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise ConfigError(f"{out} is not an empty folder; choose another one for --out")
    experiment = demo_experiment(task, rounds, settings or (), config)
    with tempfile.TemporaryDirectory(prefix="playerfl-demo-") as temporary:
        try:
            result = demonstrate(
                out or Path(temporary),
                experiment,
                say_after,
                shown_changes(say_after),
                _ask_about_jobs if ask else None,
            )
            sent = sent_per_round(result.folder)
        except KeyboardInterrupt:
            say_after("interrupted; everything has been shut down")
            raise
    if as_json:
        typer.echo(json.dumps(_table(result), indent=1))
    else:
        _show(result)
        if sent is not None:
            typer.echo(sent)
    if out is not None:
        _show_next(result, out)
    if result.equal is False:
        sys.exit(1)


def _ask_about_jobs(site: DemoSite) -> None:
    from playerfl.cli.site.jobs import ask_about_jobs

    ask_about_jobs(site.name, site.state)


def _table(result: DemoResult) -> dict[str, object]:
    return {
        "equal": result.equal,
        "models": result.over_flower,
        "in_process": result.in_process,
        "bytes_in": result.run.bytes_in,
        "bytes_out": result.run.bytes_out,
        "seconds": round(result.seconds, 1),
    }


def _show(result: DemoResult) -> None:
    for name, fingerprint in result.over_flower.items():
        beside = f", {result.in_process[name]} in one process" if result.in_process else ""
        typer.echo(f"{name}: model {fingerprint} over Flower{beside}")
    typer.echo(f"server traffic: {result.run.bytes_in:,} bytes in, {result.run.bytes_out:,} bytes out")
    if result.incomparable is not None:
        typer.echo(f"not compared with a run in one process: {result.incomparable} ({result.seconds:.0f} s)")
        return
    verdict = "equals" if result.equal else "DOES NOT EQUAL"
    typer.echo(f"the result {verdict} that of the run in one process, bit for bit ({result.seconds:.0f} s)")


def _show_next(result: DemoResult, out: Path) -> None:
    """What to do with the files, for the first site."""
    site = result.sites[0]
    job = result.folder.name
    say(f"\nall files are in {out}. Next:")
    say(f"  playerfl report {result.folder}")
    say(f"  playerfl flower audit --state {site.state}")
    say(f"  playerfl export --state {site.state / job} --task {site.task} --site {site.name} --out models/{site.name}")
