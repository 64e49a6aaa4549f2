"""`playerfl flower init`, `run` and `status`: a job, from its folder to its end."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from playerfl.cli.options import Home, Json, Quiet

if TYPE_CHECKING:
    from playerfl.flower.deployment import Deployment

INIT_EXAMPLES = """
[bold]Examples[/bold]

  playerfl flower init job --config experiment.toml --site north --site south --site west

  playerfl flower init job --config experiment.toml --min-sites 2 --deadline 7200
"""


def init(
    folder: Annotated[Path, typer.Argument(metavar="DIR")],
    config: Annotated[Path, typer.Option(help="Experiment file (TOML).")],
    site: Annotated[
        list[str] | None, typer.Option(help="A site that takes part; repeat. The task's own sites if not given.")
    ] = None,
    job: Annotated[str | None, typer.Option(help="Names the job; task, algorithm and seed if not given.")] = None,
    min_sites: Annotated[
        int | None, typer.Option(help="A round goes on with at least so many; more than half if not given.")
    ] = None,
    deadline: Annotated[float, typer.Option(help="Seconds a round waits for sites that have not answered.")] = 3600.0,
    norm_bound: Annotated[
        float, typer.Option(help="Refuse uploads that moved so many times as far as the round's median; 0: none.")
    ] = 20.0,
    clip: Annotated[float, typer.Option(help="Experimental: largest update of a site; 0 is off.")] = 0.0,
    noise: Annotated[float, typer.Option(help="Experimental: noise on updates, in units of --clip.")] = 0.0,
    sensitivity_noise: Annotated[
        float, typer.Option(help="Experimental: noise on the logarithm of layers' importances.")
    ] = 0.0,
    secure_range: Annotated[
        float, typer.Option(help="Experimental: SecAgg+ for weights from -this to this, e.g. 8; 0 is off.")
    ] = 0.0,
) -> None:
    """Make the folder that a job is submitted from: it names the installed package, and holds settings, no code."""
    from playerfl.flower.coordinator.coordinator import experiment_of
    from playerfl.flower.operate.app_folder import write_app_folder
    from playerfl.flower.site.privacy import epsilon
    from playerfl.flower.wire.envelopes import Privacy

    privacy = Privacy(clip, noise, sensitivity_noise, secure_range)
    made = _deployment(config, site or [], job, min_sites, deadline, norm_bound, privacy)
    rounds = experiment_of(made).rounds
    typer.echo(write_app_folder(folder, made))
    say(f"job {made.job}: {', '.join(made.sites)}; a round needs {made.needed} of them")
    if noise:
        say(
            f"experimental: what a site uploads in {rounds} rounds is (ε = {epsilon(noise, rounds):.3g}, δ = 1e-5) "
            "private, its scores and its number of examples are not"
        )


def _deployment(
    config: Path,
    sites: list[str],
    job: str | None,
    min_sites: int | None,
    deadline: float,
    norm_bound: float,
    privacy: Any,
) -> Deployment:
    from playerfl.errors import ConfigError
    from playerfl.flower.deployment import Deployment
    from playerfl.flower.site.site import TEMPLATE
    from playerfl.runs.experiment import Experiment, find_task, read_toml

    experiment = Experiment.resolve({"device": "cpu", **read_toml(config)})
    if not sites:
        task = find_task(experiment.task)
        options = experiment.data_options(task)
        sites = [name for name in sorted(task.for_options(options).load_sites(options)) if name != TEMPLATE]
    if min_sites is not None and min_sites < 1:
        raise ConfigError(f"--min-sites must be at least 1, not {min_sites}")
    return Deployment(
        job=job or f"{experiment.task_file_name}-{experiment.algorithm['name']}-seed{experiment.seed}",
        sites=tuple(sites),
        experiment=experiment.to_toml(),
        min_sites=min_sites or 0,
        deadline=deadline,
        norm_bound=norm_bound,
        privacy=privacy,
    )


RUN_EXAMPLES = "[bold]Examples[/bold]\n\n  playerfl flower run /var/lib/playerfl job\n"


def run(
    home: Home,
    app: Annotated[Path, typer.Argument(metavar="DIR")],
    readmit: Annotated[
        list[str] | None, typer.Option(help="A site that lost its state and may start again as a new one.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="The result as JSON on stdout.")] = False,
    quiet: Quiet = False,
) -> None:
    """Submit the job in DIR and follow it; the same job again goes on where it stands.

    Ends with exit code 1 if the run failed. Ctrl-C stops following, not the job.
    """
    from playerfl.flower.operate.app_folder import read_app_folder
    from playerfl.flower.operate.job_monitor import follow, submit
    from playerfl.flower.operate.launch import ServerHome

    server = ServerHome(home)
    job = read_app_folder(app).job
    run_id = submit(server, app, tuple(readmit or ()))
    try:
        ended = follow(server, job, run_id, (lambda _: None) if quiet else _show_status)
    except KeyboardInterrupt:
        say(f"the job goes on at the server; playerfl flower status {home} shows how far it is")
        raise
    folder = server.jobs / job
    if as_json:
        found = {"job": job, "completed": ended.completed, "detail": ended.detail, "folder": str(folder)}
        typer.echo(json.dumps({**found, "bytes_in": ended.bytes_in, "bytes_out": ended.bytes_out}, indent=1))
    elif ended.completed:
        typer.echo(folder)
    if not ended.completed:
        say(f"playerfl: the job failed: {ended.detail}")
        raise typer.Exit(1)


def _show_status(status: dict[str, Any]) -> None:
    if status:
        say(f"{time.strftime('%H:%M:%S')} {status_line(status)}")


def status_line(status: dict[str, Any]) -> str:
    """How far a job is, and what each site answered last."""
    done = "" if status["round"] is None else f", round {status['round']} of {status['rounds']}"
    return f"{status['state']}{done} ({_answers(status)})"


def _answers(status: dict[str, Any]) -> str:
    return ", ".join(f"{site} {key or '-'}" for site, key in status["sites"].items())


STATUS_EXAMPLES = "[bold]Examples[/bold]\n\n  playerfl flower status /var/lib/playerfl --json\n"


def status(
    home: Home,
    as_json: Json = False,
) -> None:
    """Show who is on-line and how far each job is. Ends with exit code 1 if the server cannot be reached."""
    from playerfl.flower.coordinator.coordinator import read_status
    from playerfl.flower.operate.job_monitor import nodes_of
    from playerfl.flower.operate.launch import FlowerError, ServerHome

    server = ServerHome(home)
    port = server.port
    problem = None
    nodes: list[dict[str, Any]] = []
    try:
        nodes = list(nodes_of(server))
    except FlowerError as found:
        problem = str(found)
    jobs = [read_status(folder) for folder in sorted(server.jobs.iterdir()) if folder.is_dir()]
    if as_json:
        typer.echo(
            json.dumps({"port": port, "problem": problem, "sites": nodes, "jobs": [j for j in jobs if j]}, indent=1)
        )
    else:
        _print_status(nodes, [j for j in jobs if j])
    if problem:
        say(f"playerfl: the server on port {port} cannot be reached: {problem}")
        raise typer.Exit(1)


def _print_status(nodes: list[dict[str, Any]], jobs: list[dict[str, Any]]) -> None:
    from rich.table import Table

    from playerfl.cli.tables.console import wide_console

    console = wide_console()
    table = Table("site", "node")
    for node in nodes:
        table.add_row(node["name"], node["status"])
    console.print(table)
    table = Table("job", "state", "round", "last responses", "updated")
    for job in jobs:
        done = "-" if job["round"] is None else str(job["round"])
        table.add_row(job["job"], job["state"], f"{done}/{job['rounds']}", _answers(job), job["updated"])
    console.print(table)
    for job in jobs:
        if job["detail"]:
            console.print(f"{job['job']}: {job['detail']}", soft_wrap=True, markup=False)


def say(line: str) -> None:
    """Beside the result: on stderr."""
    typer.echo(line, err=True)
