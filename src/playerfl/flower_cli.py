"""`playerfl flower`: the same algorithms across institutions, on Flower."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from playerfl.flower.deployment import Deployment

flower_app = typer.Typer(
    name="flower",
    help="Run across institutions, on Flower: keys, server, sites, jobs.",
    epilog="""[bold]Examples[/bold]

  playerfl flower demo

  playerfl flower up /var/lib/playerfl --name fl.example.org

  playerfl flower site --name north --key north.key --ca ca.crt --server fl.example.org:443 --state /var/lib/playerfl
""",
    no_args_is_help=True,
    rich_markup_mode="rich",
)

_UNGUARDED = (
    "WARNING: Flower's control interface has NO AUTHENTICATION and shares the SuperLink's port. Whoever reaches it can "
    "run code at every site. It listens on loopback only; let others in only through the proxy that "
    "`playerfl flower files` writes, which passes the fleet interface alone."
)
_Home = Annotated[Path, typer.Argument(metavar="HOME", help="The server's directory.")]


@flower_app.callback()
def _needs_flower() -> None:
    from importlib.util import find_spec

    from playerfl.errors import ConfigError

    if find_spec("flwr") is None:
        raise ConfigError("Flower is not installed; pip install 'playerfl[flower]'")


def _say(line: str) -> None:
    typer.echo(line, err=True)


@flower_app.command(epilog="[bold]Examples[/bold]\n\n  playerfl flower keys north --out /etc/playerfl\n")
def keys(
    name: Annotated[str, typer.Argument()],
    out: Annotated[Path, typer.Option(metavar="DIR", help="Where to write them.")] = Path(),
) -> None:
    """Make a site's key pair: NAME.key stays at the site, NAME.pub goes to the server."""
    from playerfl.flower.keys import write_key_pair

    private, public = write_key_pair(name, out)
    typer.echo(private)
    typer.echo(public)
    _say(f"keep {private} here and to yourself; send {public} to whoever runs the server")


@flower_app.command(epilog="[bold]Examples[/bold]\n\n  playerfl flower up /var/lib/playerfl --name fl.example.org\n")
def up(
    home: _Home,
    name: Annotated[
        list[str] | None, typer.Option(help="A name or address sites reach the server by; repeat for several.")
    ] = None,
    port: Annotated[int, typer.Option(help="On loopback.")] = 8000,
) -> None:
    """Start the server (a SuperLink) with TLS and node authentication, until Ctrl-C.

    Makes certificates on the first start; those that are there are kept.
    """
    from playerfl.flower.launch import Running, ServerHome, ending_on_signals, wait_for_port

    server = ServerHome(home)
    server.prepare(name or (), port)
    _say(_UNGUARDED)
    with ending_on_signals(), Running(server.superlink(port), server.environment()) as link:
        wait_for_port(port, link)
        _say(f"the server listens on 127.0.0.1:{port}; give sites {server.authority}; jobs are kept in {server.jobs}")
        raise typer.Exit(link.process.wait())


@flower_app.command(
    epilog="[bold]Examples[/bold]\n\n  playerfl flower files conf --home /var/lib/playerfl --name fl.example.org\n"
)
def files(
    folder: Annotated[Path, typer.Argument(metavar="DIR")],
    home: Annotated[Path, typer.Option(help="The server's directory.")],
    name: Annotated[str, typer.Option(help="The name sites reach the server by.")],
    port: Annotated[int, typer.Option(help="Of the server, on loopback.")] = 8000,
    listen: Annotated[int, typer.Option(help="The port sites connect to.")] = 443,
    site: Annotated[str, typer.Option(help="The site in the example of a site's service.")] = "north",
) -> None:
    """Write an nginx configuration that passes the fleet interface alone, and systemd services, ready to use."""
    from playerfl.flower.files import write_files

    for file in write_files(folder, home, name, port, listen, site):
        typer.echo(file)


@flower_app.command(epilog="[bold]Examples[/bold]\n\n  playerfl flower register /var/lib/playerfl north.pub\n")
def register(
    home: _Home,
    public_key: Annotated[Path, typer.Argument()],
    name: Annotated[str | None, typer.Option(help="The site's name; the file's if not given.")] = None,
) -> None:
    """Let a site in: its key, under the name it takes part by. The server must be running."""
    from playerfl.errors import ConfigError
    from playerfl.flower.following import nodes_of
    from playerfl.flower.launch import CONNECTION, ServerHome
    from playerfl.flower.letters import check_site

    server = ServerHome(home)
    chosen = check_site(name or public_key.stem)
    if any(node["name"] == chosen and node["status"] != "unregistered" for node in nodes_of(server)):
        raise ConfigError(f"{chosen} is registered already; playerfl flower unregister it first if its key has changed")
    said = server.flwr("supernode", "register", str(public_key), CONNECTION, "--name", chosen)
    typer.echo(said["node-id"])


@flower_app.command(epilog="[bold]Examples[/bold]\n\n  playerfl flower unregister /var/lib/playerfl north\n")
def unregister(home: _Home, name: Annotated[str, typer.Argument()]) -> None:
    """Shut a site out: its key is no longer accepted."""
    from playerfl.errors import ConfigError, one_of
    from playerfl.flower.following import nodes_of
    from playerfl.flower.launch import CONNECTION, ServerHome

    server = ServerHome(home)
    known = {node["name"]: node["node-id"] for node in nodes_of(server) if node["status"] != "unregistered"}
    if name not in known:
        raise ConfigError(one_of(name, known, "site"))
    server.flwr("supernode", "unregister", known[name], CONNECTION)


_INIT_EXAMPLES = """
[bold]Examples[/bold]

  playerfl flower init job --config experiment.toml --site north --site south --site west

  playerfl flower init job --config experiment.toml --min-sites 2 --deadline 7200
"""


@flower_app.command(epilog=_INIT_EXAMPLES)
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
    from playerfl.flower.app_folder import write_app_folder
    from playerfl.flower.coordinator import experiment_of
    from playerfl.flower.letters import Privacy
    from playerfl.flower.privacy import epsilon

    privacy = Privacy(clip, noise, sensitivity_noise, secure_range)
    made = _deployment(config, site or [], job, min_sites, deadline, norm_bound, privacy)
    rounds = experiment_of(made).rounds
    typer.echo(write_app_folder(folder, made))
    _say(f"job {made.job}: {', '.join(made.sites)}; a round needs {made.needed} of them")
    if noise:
        _say(
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
    import re

    from playerfl.errors import ConfigError
    from playerfl.experiment import Experiment, find_task, read_toml
    from playerfl.flower.deployment import Deployment
    from playerfl.flower.site import TEMPLATE

    experiment = Experiment.resolve({"device": "cpu", **read_toml(config)})
    if not sites:
        task = find_task(experiment.task)
        options = experiment.data_options(task)
        sites = [name for name in sorted(task.for_options(options).load_sites(options)) if name != TEMPLATE]
    if min_sites is not None and min_sites < 1:
        raise ConfigError(f"--min-sites must be at least 1, not {min_sites}")
    task_name = re.sub(r"[^\w.-]+", "-", Path(experiment.task).name).strip("-.") or "task"
    return Deployment(
        job=job or f"{task_name}-{experiment.algorithm['name']}-seed{experiment.seed}",
        sites=tuple(sites),
        experiment=experiment.to_toml(),
        min_sites=min_sites or 0,
        deadline=deadline,
        norm_bound=norm_bound,
        privacy=privacy,
    )


_SITE_EXAMPLES = """
[bold]Examples[/bold]

  playerfl flower site --name north --key north.key --ca ca.crt --server fl.example.org:443 --state /var/lib/playerfl

  playerfl flower site --name north --key north.key --ca ca.crt --server fl.example.org:443 --state state --task ./data
"""


@flower_app.command(epilog=_SITE_EXAMPLES)
def site(
    name: Annotated[str, typer.Option(help="The name the site takes part by.")],
    key: Annotated[Path, typer.Option(help="The site's private key.")],
    ca: Annotated[Path, typer.Option(help="The server's ca.crt.")],
    server: Annotated[str, typer.Option(metavar="NAME:PORT", help="Where the server is.")],
    state: Annotated[Path, typer.Option(help="The site's own directory: private layers, log. Back it up.")],
    task: Annotated[
        str | None,
        typer.Option(help="The site's data as a task (a folder, FILE.py:NAME); the experiment's if not given."),
    ] = None,
    data_dir: Annotated[Path | None, typer.Option(help="Where dataset files are.")] = None,
    device: Annotated[str | None, typer.Option(help="cpu, cuda or mps; the experiment's if not given.")] = None,
    port: Annotated[int, typer.Option(help="Of this machine's loopback; each site on a machine needs its own.")] = 9094,
    retry: Annotated[float, typer.Option(help="Seconds before a node that ended is started again; 0: never.")] = 15.0,
) -> None:
    """Take part as a site (a SuperNode), until Ctrl-C. Connections only go out, to the server."""
    from playerfl.flower.launch import Running, SiteNode, ending_on_signals
    from playerfl.locking import DirectoryLock

    node = SiteNode(name, key, server, ca, state, task, data_dir, device, port)
    node.check()
    # Two sites in one directory would take turns in overwriting each other's private layers.
    lock = DirectoryLock(state)
    lock.take()
    try:
        with ending_on_signals():
            while True:
                with Running(node.supernode(), node.environment()) as running:
                    code = running.process.wait()
                if code == 0:
                    return
                _say(
                    f"the node ended with exit code {code}; most often its key is not registered yet, or the server "
                    "has not yet noticed that the node of before is gone (up to a minute)"
                )
                if not retry:
                    raise typer.Exit(1)
                time.sleep(retry)
    finally:
        lock.release()


@flower_app.command(epilog="[bold]Examples[/bold]\n\n  playerfl flower run /var/lib/playerfl job\n")
def run(
    home: _Home,
    app: Annotated[Path, typer.Argument(metavar="DIR")],
    readmit: Annotated[
        list[str] | None, typer.Option(help="A site that lost its state and may start again as a new one.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="The result as JSON on stdout.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress.")] = False,
) -> None:
    """Submit the job in DIR and follow it; the same job again goes on where it stands.

    Ends with exit code 1 if the run failed. Ctrl-C stops following, not the job.
    """
    from playerfl.flower.app_folder import read_app_folder
    from playerfl.flower.following import follow, submit
    from playerfl.flower.launch import ServerHome

    server = ServerHome(home)
    job = read_app_folder(app).job
    run_id = submit(server, app, tuple(readmit or ()))
    try:
        ended = follow(server, job, run_id, (lambda _: None) if quiet else _show_status)
    except KeyboardInterrupt:
        _say(f"the job goes on at the server; playerfl flower status {home} shows how far it is")
        raise
    folder = server.jobs / job
    if as_json:
        found = {"job": job, "completed": ended.completed, "detail": ended.detail, "folder": str(folder)}
        typer.echo(json.dumps({**found, "bytes_in": ended.bytes_in, "bytes_out": ended.bytes_out}, indent=1))
    elif ended.completed:
        typer.echo(folder)
    if not ended.completed:
        _say(f"playerfl: the job failed: {ended.detail}")
        raise typer.Exit(1)


def _show_status(status: dict[str, Any]) -> None:
    if not status:
        return
    done = "" if status["round"] is None else f", round {status['round']} of {status['rounds']}"
    sites = ", ".join(f"{site} {key or '-'}" for site, key in status["sites"].items())
    _say(f"{time.strftime('%H:%M:%S')} {status['state']}{done} ({sites})")


@flower_app.command(epilog="[bold]Examples[/bold]\n\n  playerfl flower status /var/lib/playerfl --json\n")
def status(
    home: _Home,
    as_json: Annotated[bool, typer.Option("--json", help="As JSON on stdout.")] = False,
) -> None:
    """Show who is on-line and how far each job is. Ends with exit code 1 if the server cannot be reached."""
    from playerfl.flower.coordinator import read_status
    from playerfl.flower.following import nodes_of
    from playerfl.flower.launch import FlowerError, ServerHome

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
        _say(f"playerfl: the server on port {port} cannot be reached: {problem}")
        raise typer.Exit(1)


def _print_status(nodes: list[dict[str, Any]], jobs: list[dict[str, Any]]) -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console(highlight=False)
    console = console if console.is_terminal else Console(highlight=False, width=120)
    table = Table("site", "node")
    for node in nodes:
        table.add_row(node["name"], node["status"])
    console.print(table)
    table = Table("job", "state", "round", "last answers", "updated")
    for job in jobs:
        answers = ", ".join(f"{site} {key or '-'}" for site, key in job["sites"].items())
        done = "-" if job["round"] is None else str(job["round"])
        table.add_row(job["job"], job["state"], f"{done}/{job['rounds']}", answers, job["updated"])
    console.print(table)
    for job in jobs:
        if job["detail"]:
            console.print(f"{job['job']}: {job['detail']}", soft_wrap=True, markup=False)


@flower_app.command(
    epilog="[bold]Examples[/bold]\n\n  playerfl flower demo\n\n  playerfl flower demo --out demo --rounds 3\n"
)
def demo(
    rounds: Annotated[int, typer.Option(help="Communication rounds.", min=1)] = 2,
    out: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Keep everything here; a temporary folder if not given.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="The result as JSON on stdout.")] = False,
) -> None:
    """Run a whole federation on this machine: a server, three sites, TLS, keys, and PLayer-FL on digits.

    A few minutes on two cores. Everything is shut down at the end, also on Ctrl-C. Ends with exit code 1 if the
    result does not equal the run in one process, bit for bit.
    """
    import tempfile

    from playerfl.errors import ConfigError
    from playerfl.flower.demo import demonstrate

    begun = time.monotonic()

    def say(line: str) -> None:
        _say(f"{time.monotonic() - begun:5.0f} s  {line}")

    def seen(status: dict[str, Any]) -> None:
        if status:
            done = "" if status["round"] is None else f", round {status['round']} of {status['rounds']}"
            sites = ", ".join(f"{site} {key or '-'}" for site, key in status["sites"].items())
            say(f"{status['state']}{done} ({sites})")

    if out is not None and out.exists() and any(out.iterdir()):
        raise ConfigError(f"{out} is not empty; choose another folder for --out")
    with tempfile.TemporaryDirectory(prefix="playerfl-demo-") as temporary:
        try:
            shown = demonstrate(out or Path(temporary), rounds, say, seen)
        except KeyboardInterrupt:
            say("interrupted; everything is shut down")
            raise
    if as_json:
        found = {"equal": shown.equal, "models": shown.over_flower, "in_process": shown.in_process}
        traffic = {"bytes_in": shown.ended.bytes_in, "bytes_out": shown.ended.bytes_out}
        typer.echo(json.dumps({**found, **traffic, "seconds": round(shown.seconds, 1)}, indent=1))
    else:
        for name, fingerprint in shown.over_flower.items():
            typer.echo(f"{name}: model {fingerprint} over Flower, {shown.in_process[name]} in one process")
        typer.echo(f"through the server: {shown.ended.bytes_in:,} bytes in, {shown.ended.bytes_out:,} bytes out")
        verdict = "equals" if shown.equal else "DOES NOT EQUAL"
        typer.echo(f"the result {verdict} the run in one process, bit for bit ({shown.seconds:.0f} s)")
    if out is not None:
        _say(f"everything is in {out}; the job's results in {shown.folder}")
    if not shown.equal:
        sys.exit(1)
