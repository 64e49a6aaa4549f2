"""`playerfl flower init`, `run` and `status`: a job from start to finish."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from playerfl.cli.messages import say
from playerfl.cli.options import Home, Json, Quiet, examples

if TYPE_CHECKING:
    from playerfl.flower.operate.enrolment import SiteStatus
    from playerfl.flower.server.job_status import JobStatus

INIT_EXAMPLES = examples(
    "flower init job --config experiment.toml --site north --site south --site west",
    "flower init job --config experiment.toml --min-sites 2 --deadline 7200",
)


def init(
    folder: Annotated[Path, typer.Argument(metavar="DIR")],
    config: Annotated[Path, typer.Option(help="Experiment file (TOML).")],
    site: Annotated[
        list[str] | None, typer.Option(help="A site that takes part; can be repeated (default: the task's sites).")
    ] = None,
    job: Annotated[str | None, typer.Option(help="The job's name (default: task, algorithm and seed).")] = None,
    min_sites: Annotated[int | None, typer.Option(help="Minimum sites per round (default: more than half).")] = None,
    deadline: Annotated[float, typer.Option(help="Seconds a round waits for its sites.")] = 3600.0,
    norm_bound: Annotated[
        float,
        typer.Option(
            help="Refuse an upload that moved away from the common model by more than this many times the round's "
            "median distance (0: off)."
        ),
    ] = 6.0,
    max_weight: Annotated[
        float, typer.Option(help="The largest share of the mean that one site can have (1: no cap).")
    ] = 0.75,
    ask_again: Annotated[
        float, typer.Option(help="Seconds before a site that has not responded is asked again; doubles each time.")
    ] = 30.0,
    clip: Annotated[float, typer.Option(help="Experimental: clip a site's update to this norm (0: off).")] = 0.0,
    noise: Annotated[float, typer.Option(help="Experimental: noise on updates, in units of --clip (0: off).")] = 0.0,
    sensitivity_noise: Annotated[
        float, typer.Option(help="Experimental: noise on the logarithm of layer scores (0: off).")
    ] = 0.0,
    secure_range: Annotated[
        float,
        typer.Option(help="Experimental: SecAgg+ for weights between plus and minus this value, e.g. 8 (0: off)."),
    ] = 0.0,
) -> None:
    """Create DIR, the folder that a job is submitted from. It holds settings but no code."""
    from playerfl.errors import ConfigError
    from playerfl.flower.deployment import Deployment
    from playerfl.flower.operate.app_folder import write_app_folder
    from playerfl.flower.server.job import checked_experiment, merged_sites
    from playerfl.flower.site.policy import AcceptedJobs
    from playerfl.flower.site.privacy import epsilon
    from playerfl.flower.site.setup import TEMPLATE, experiment_sites
    from playerfl.flower.wire.envelopes import Privacy
    from playerfl.runs.experiment import Experiment
    from playerfl.runs.settings_table import read_toml
    from playerfl.wording import counted

    # One round for all sites needs all sites in every round, which a deployment does not promise.
    experiment = Experiment.resolve({"device": "cpu", "selection": "client_best", **read_toml(config)})
    if min_sites is not None and min_sites < 1:
        raise ConfigError(f"--min-sites must be at least 1, not {min_sites}")
    deployment = Deployment(
        job=job or f"{experiment.task_file_name}-{experiment.algorithm['name']}-seed{experiment.seed}",
        sites=tuple(site or (name for name in experiment_sites(experiment) if name != TEMPLATE)),
        experiment=experiment.to_toml(),
        min_sites=min_sites or 0,
        deadline=deadline,
        norm_bound=norm_bound,
        max_weight=max_weight,
        ask_again=ask_again,
        privacy=Privacy(clip, noise, sensitivity_noise, secure_range),
    )
    rounds = checked_experiment(deployment).rounds
    typer.echo(write_app_folder(folder, deployment))
    say(f"job {deployment.job}: {', '.join(deployment.sites)}; each round needs at least {deployment.needed} of them")
    merged = merged_sites(deployment, experiment)
    if merged < deployment.needed:
        say(
            f"participation = {experiment.participation:g}: rounds after the first merge {counted(merged, 'site')}; a "
            f"site whose policy asks for more (least_sites, by default {AcceptedJobs().least_sites}) refuses the job"
        )
    if noise:
        say(
            f"experimental: a site's uploads over {rounds} rounds are (ε = {epsilon(noise, rounds):.3g}, δ = 1e-5)-"
            "differentially private; its scores and its number of examples are not protected"
        )


RUN_EXAMPLES = examples("flower run /var/lib/playerfl job")


def run(
    home: Home,
    app: Annotated[Path, typer.Argument(metavar="DIR")],
    readmit: Annotated[
        list[str] | None, typer.Option(help="A site that lost its state and may rejoin as a new site; can be repeated.")
    ] = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Submit the job in DIR and follow it; an interrupted job is resumed.

    HOME is the directory of the server, which must be running. Exits with code 1 if the job failed. Ctrl-C stops
    following the job, but not the job itself.
    """
    from playerfl.flower.operate.app_folder import read_app_folder
    from playerfl.flower.operate.job_monitor import follow, submit
    from playerfl.flower.operate.launch import ServerHome

    server = ServerHome(home)
    job = read_app_folder(app).job
    _ = server.port
    show = (lambda _: None) if quiet else shown_changes(lambda line: say(f"{time.strftime('%H:%M:%S')} {line}"))
    run_id = submit(server, app, tuple(readmit or ()))
    try:
        ended = follow(server, job, run_id, show)
    except KeyboardInterrupt:
        say(f"the job keeps running at the server; playerfl flower status {home} shows its progress")
        raise
    folder = server.jobs / job
    if as_json:
        result = {"job": job, "completed": ended.completed, "detail": ended.detail, "folder": str(folder)}
        typer.echo(json.dumps({**result, "bytes_in": ended.bytes_in, "bytes_out": ended.bytes_out}, indent=1))
    elif ended.completed:
        typer.echo(folder)
        if sent := sent_per_round(folder):
            say(sent)
    if ended.stopped:
        say(f"playerfl: {ended.detail}")
        raise typer.Exit(1)
    if not ended.completed:
        say(f"playerfl: the job failed: {ended.detail}")
        raise typer.Exit(1)


def sent_per_round(folder: Path) -> str | None:
    """What a site sent per round of a finished job, compared with full fine-tuning; None if nothing is frozen."""
    from playerfl.cli.tables.comparison import beside_full_fine_tuning
    from playerfl.runs.api import load_result

    result = load_result(folder)
    full = result.full_fine_tuning_bytes
    return None if full is None else beside_full_fine_tuning({result.algorithm: result.bytes_up_per_round}, full)


def shown_changes(show: Callable[[str], None]) -> Callable[[JobStatus], None]:
    """Shows a job's status whenever it reads differently."""
    last = ""

    def on_change(status: JobStatus) -> None:
        nonlocal last
        line = status_line(status)
        if line != last:
            last = line
            show(line)

    return on_change


def status_line(status: JobStatus) -> str:
    """A job's progress, and which sites it waits for, unless they are simply at work."""
    from playerfl.flower.server.job_status import AT_WORK
    from playerfl.report.formats import listed

    done = "" if status.round is None else f", round {status.round} of {status.rounds}"
    waiting: dict[str, list[str]] = {}
    for site, one in status.missing.items():
        if one.get("why") != AT_WORK or one.get("asked", 0) > 1:
            waiting.setdefault(str(one.get("why", "?")), []).append(site)
    return "; ".join([f"{status.state}{done}", *(f"{listed(sites)}: {why}" for why, sites in waiting.items())])


def _last_responses(status: JobStatus) -> str:
    return ", ".join(f"{site} {key or '-'}" for site, key in status.sites.items())


def _missing(status: JobStatus) -> str:
    return "; ".join(
        f"{site} since {one.get('since', '?')} ({one.get('why', '?')}; asked {one.get('asked', 0)} times)"
        for site, one in status.missing.items()
    )


STATUS_EXAMPLES = examples("flower status /var/lib/playerfl --json")


def status(
    home: Home,
    as_json: Json = False,
) -> None:
    """Show which sites are online, each job's progress, who is missing, and when certificates expire.

    HOME is the server's directory. Exits with code 1 if the server cannot be reached.
    """
    from playerfl.flower.operate.certificates import expiry, expiry_warnings
    from playerfl.flower.operate.enrolment import site_statuses
    from playerfl.flower.operate.launch import ServerHome
    from playerfl.flower.operate.processes import FlowerError
    from playerfl.flower.operate.supervision import job_statuses

    server = ServerHome(home)
    port = server.port
    problem = None
    sites: list[SiteStatus] = []
    try:
        sites = site_statuses(server)
    except FlowerError as error:
        problem = str(error)
    jobs = job_statuses(server)
    expires = expiry(home / "server.pem")
    if as_json:
        table = {
            "port": port,
            "problem": problem,
            "certificate_expires": f"{expires:%Y-%m-%dT%H:%M:%SZ}",
            "sites": [_site_table(site) for site in sites],
            "jobs": [asdict(job) for job in jobs],
        }
        typer.echo(json.dumps(table, indent=1))
    else:
        _print_status(sites, jobs)
        typer.echo(f"the server's certificate is valid until {expires:%Y-%m-%d}")
    for warning in expiry_warnings(home):
        say(f"WARNING: {warning}")
    if problem:
        say(f"playerfl: the server on port {port} cannot be reached: {problem}")
        raise typer.Exit(1)


def _site_table(site: SiteStatus) -> dict[str, str]:
    return {
        "name": site.name,
        "status": site.status,
        "since": site.since,
        "node-id": site.node_id,
        "fingerprint": site.fingerprint,
        "registered": site.registered,
    }


def _print_status(sites: list[SiteStatus], jobs: list[JobStatus]) -> None:
    from rich.markup import escape
    from rich.table import Table

    from playerfl.cli.tables.console import wide_console

    console = wide_console()
    table = Table("site", "node", "since", "key")
    for site in sites:
        table.add_row(escape(site.name), site.status, site.since, site.fingerprint)
    console.print(table)
    table = Table("job", "state", "round", "last responses", "updated")
    for job in jobs:
        done = "-" if job.round is None else str(job.round)
        table.add_row(job.job, job.state, f"{done}/{job.rounds}", escape(_last_responses(job)), job.updated)
    console.print(table)
    for job in jobs:
        for line in filter(None, (job.detail, job.missing and f"missing: {_missing(job)}")):
            console.print(f"{job.job}: {line}", soft_wrap=True, markup=False)
