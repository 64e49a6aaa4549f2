"""`playerfl flower`: the same algorithms across institutions, on Flower."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Annotated, Any

import typer

from playerfl.cli.flower_jobs import INIT_EXAMPLES, RUN_EXAMPLES, STATUS_EXAMPLES, init, run, say, status, status_line
from playerfl.cli.options import Home

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


@flower_app.callback()
def _needs_flower() -> None:
    from importlib.util import find_spec

    from playerfl.errors import ConfigError

    if find_spec("flwr") is None:
        raise ConfigError("Flower is not installed; pip install 'playerfl[flower]'")


@flower_app.command(epilog="[bold]Examples[/bold]\n\n  playerfl flower keys north --out /etc/playerfl\n")
def keys(
    name: Annotated[str, typer.Argument()],
    out: Annotated[Path, typer.Option(metavar="DIR", help="Where to write them.")] = Path(),
) -> None:
    """Make a site's key pair: NAME.key stays at the site, NAME.pub goes to the server."""
    from playerfl.flower.operate.keys import write_key_pair

    private, public = write_key_pair(name, out)
    typer.echo(private)
    typer.echo(public)
    say(f"keep {private} here and to yourself; send {public} to whoever runs the server")


@flower_app.command(epilog="[bold]Examples[/bold]\n\n  playerfl flower up /var/lib/playerfl --name fl.example.org\n")
def up(
    home: Home,
    name: Annotated[
        list[str] | None, typer.Option(help="A name or address sites reach the server by; repeat for several.")
    ] = None,
    port: Annotated[int, typer.Option(help="On loopback.")] = 8000,
) -> None:
    """Start the server (a SuperLink) with TLS and node authentication, until Ctrl-C.

    Makes certificates on the first start; those that are there are kept.
    """
    from playerfl.flower.operate.launch import Running, ServerHome, ending_on_signals, wait_for_port

    server = ServerHome(home)
    server.prepare(name or (), port)
    say(_UNGUARDED)
    with ending_on_signals(), Running(server.superlink(port), server.environment()) as link:
        wait_for_port(port, link)
        say(f"the server listens on 127.0.0.1:{port}; give sites {server.authority}; jobs are kept in {server.jobs}")
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
    from playerfl.flower.operate.files import write_files

    for file in write_files(folder, home, name, port, listen, site):
        typer.echo(file)


@flower_app.command(epilog="[bold]Examples[/bold]\n\n  playerfl flower register /var/lib/playerfl north.pub\n")
def register(
    home: Home,
    public_key: Annotated[Path, typer.Argument()],
    name: Annotated[str | None, typer.Option(help="The site's name; the file's if not given.")] = None,
) -> None:
    """Let a site in: its key, under the name it takes part by. The server must be running."""
    from playerfl.errors import ConfigError
    from playerfl.flower.operate.job_monitor import nodes_of
    from playerfl.flower.operate.launch import CONNECTION, ServerHome
    from playerfl.flower.wire.envelopes import check_site

    server = ServerHome(home)
    chosen = check_site(name or public_key.stem)
    if any(node["name"] == chosen and node["status"] != "unregistered" for node in nodes_of(server)):
        raise ConfigError(f"{chosen} is registered already; playerfl flower unregister it first if its key has changed")
    said = server.flwr("supernode", "register", str(public_key), CONNECTION, "--name", chosen)
    typer.echo(said["node-id"])


@flower_app.command(epilog="[bold]Examples[/bold]\n\n  playerfl flower unregister /var/lib/playerfl north\n")
def unregister(home: Home, name: Annotated[str, typer.Argument()]) -> None:
    """Shut a site out: its key is no longer accepted."""
    from playerfl.errors import ConfigError, one_of
    from playerfl.flower.operate.job_monitor import nodes_of
    from playerfl.flower.operate.launch import CONNECTION, ServerHome

    server = ServerHome(home)
    known = {node["name"]: node["node-id"] for node in nodes_of(server) if node["status"] != "unregistered"}
    if name not in known:
        raise ConfigError(one_of(name, known, "site"))
    server.flwr("supernode", "unregister", known[name], CONNECTION)


flower_app.command(epilog=INIT_EXAMPLES)(init)


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
    from playerfl.flower.operate.launch import Running, SiteNode, ending_on_signals
    from playerfl.storage.locking import DirectoryLock

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
                say(
                    f"the node ended with exit code {code}; most often its key is not registered yet, or the server "
                    "has not yet noticed that the node of before is gone (up to a minute)"
                )
                if not retry:
                    raise typer.Exit(1)
                time.sleep(retry)
    finally:
        lock.release()


flower_app.command(epilog=RUN_EXAMPLES)(run)
flower_app.command(epilog=STATUS_EXAMPLES)(status)


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
    from playerfl.flower.operate.demo import demonstrate

    begun = time.monotonic()

    def say_after(line: str) -> None:
        say(f"{time.monotonic() - begun:5.0f} s  {line}")

    def seen(status: dict[str, Any]) -> None:
        if status:
            say_after(status_line(status))

    if out is not None and out.exists() and any(out.iterdir()):
        raise ConfigError(f"{out} is not empty; choose another folder for --out")
    with tempfile.TemporaryDirectory(prefix="playerfl-demo-") as temporary:
        try:
            shown = demonstrate(out or Path(temporary), rounds, say_after, seen)
        except KeyboardInterrupt:
            say_after("interrupted; everything is shut down")
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
        say(f"everything is in {out}; the job's results in {shown.folder}")
    if not shown.equal:
        sys.exit(1)
