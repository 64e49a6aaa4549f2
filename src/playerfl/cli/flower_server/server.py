"""`playerfl flower up` and `renew`: the server and its certificates."""

from __future__ import annotations

import subprocess
from contextlib import nullcontext
from pathlib import Path
from typing import Annotated

import typer

from playerfl.cli.messages import say
from playerfl.cli.options import Home, examples

_UNGUARDED = (
    "WARNING: Flower's control interface has NO AUTHENTICATION and shares the SuperLink's port. Anyone who reaches it "
    "can run code on this server and submit jobs to every site. It listens on loopback only. Give others access only "
    "through the proxy that `playerfl flower files` configures: it forwards nothing but the fleet interface."
)
UP_EXAMPLES = examples("flower up /var/lib/playerfl --name fl.example.org")
RENEW_EXAMPLES = examples("flower renew /var/lib/playerfl", "flower renew /var/lib/playerfl --activate")


def up(
    home: Home,
    name: Annotated[
        list[str] | None, typer.Option(help="A name or address of the server, as sites see it; can be repeated.")
    ] = None,
    port: Annotated[int, typer.Option(help="Port on loopback.")] = 8000,
    metrics_port: Annotated[
        int, typer.Option(help="Serve metrics for Prometheus on this port, at /metrics (0: no metrics).")
    ] = 0,
    metrics_host: Annotated[str, typer.Option(help="The address that metrics are served on.")] = "127.0.0.1",
) -> None:
    """Run the server (a SuperLink) with TLS and node authentication, until Ctrl-C.

    HOME is the server's directory. The first start creates it with new certificates; existing ones are kept. Jobs that
    a crash interrupted are submitted again.
    """
    from playerfl.flower.operate.certificates import expiry_warnings
    from playerfl.flower.operate.launch import ServerHome
    from playerfl.flower.operate.metrics import serving_metrics
    from playerfl.flower.operate.processes import Running, ending_on_signals, wait_for_port, wait_until_free
    from playerfl.flower.operate.supervision import LOOK_SECONDS, Supervisor
    from playerfl.storage.ownership import check_owner

    check_owner(home)
    server = ServerHome(home)
    wait_until_free(port)
    server.prepare(name or (), port)
    say(_UNGUARDED)
    for warning in expiry_warnings(home):
        say(f"WARNING: {warning}")
    metrics = serving_metrics(server, metrics_host, metrics_port) if metrics_port else nullcontext()
    with ending_on_signals(), metrics, Running(server.superlink(port), server.environment()) as link:
        wait_for_port(port, link)
        say(
            f"the server is listening on 127.0.0.1:{port}; sites need {server.authority}; "
            f"jobs are stored in {server.jobs}"
        )
        if metrics_port:
            say(f"metrics: http://{metrics_host}:{metrics_port}/metrics")
        supervisor = Supervisor(server, say)
        while True:
            try:
                raise typer.Exit(link.process.wait(LOOK_SECONDS))
            except subprocess.TimeoutExpired:
                supervisor.look()


def renew(
    home: Home,
    activate: Annotated[
        bool, typer.Option("--activate", help="Switch to the new certificate, once every site has the new ca.crt.")
    ] = False,
    drop_old: Annotated[
        bool, typer.Option("--drop-old", help="With --activate: sites no longer trust the old certificate.")
    ] = False,
) -> None:
    """Renew the server's certificate in two steps, without interrupting jobs.

    First, a new certificate is created, and ca.crt holds the old authority and the new one: send it to every site.
    Later, --activate puts the new certificate in place; then reload nginx. The SuperLink keeps the old one until it is
    restarted, which is fine: sites trust both.
    """
    from playerfl.errors import ConfigError
    from playerfl.flower.operate.certificates import activate_renewal, expiry, prepare_renewal
    from playerfl.flower.operate.launch import ServerHome
    from playerfl.storage.ownership import as_owner_of

    server = ServerHome(home)
    _ = server.port
    if drop_old and not activate:
        raise ConfigError("--drop-old needs --activate: until then, the server uses the old certificate")
    if not activate:
        with as_owner_of(home):
            typer.echo(prepare_renewal(home))
        say(
            "send this ca.crt to every site, to replace the old one there and restart the node; then run "
            f"playerfl flower renew {home} --activate"
        )
        return
    with as_owner_of(home):
        activate_renewal(home, drop_old=drop_old)
    certificate = Path(home) / "server.pem"
    typer.echo(certificate)
    say(f"valid until {expiry(certificate):%Y-%m-%d}; reload nginx to use it (systemctl reload nginx)")
