"""`playerfl flower`: the same algorithms across institutions, over Flower."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from playerfl.cli.flower_demo import DEMO_EXAMPLES, demo
from playerfl.cli.flower_jobs import INIT_EXAMPLES, RUN_EXAMPLES, STATUS_EXAMPLES, init, run, status
from playerfl.cli.flower_server.doctor import DOCTOR_EXAMPLES, doctor
from playerfl.cli.flower_server.plan import PLAN_EXAMPLES, plan
from playerfl.cli.flower_server.server import RENEW_EXAMPLES, UP_EXAMPLES, renew, up
from playerfl.cli.flower_server.sites import REGISTER_EXAMPLES, UNREGISTER_EXAMPLES, register, unregister
from playerfl.cli.flower_server.stop import STOP_EXAMPLES, stop
from playerfl.cli.messages import say
from playerfl.cli.options import examples
from playerfl.cli.site.audit import AUDIT_EXAMPLES, audit
from playerfl.cli.site.jobs import APPROVE_EXAMPLES, JOBS_EXAMPLES, REFUSE_EXAMPLES, approve, jobs, refuse
from playerfl.cli.site.run import SITE_EXAMPLES, site

flower_app = typer.Typer(
    name="flower",
    help="Run across institutions, over Flower: keys, server, sites, jobs.",
    epilog=examples(
        "flower demo",
        "flower up /var/lib/playerfl --name fl.example.org",
        "flower site --name north --key north.key --ca ca.crt --server fl.example.org:443 --state state --task ./data",
    ),
    no_args_is_help=True,
    rich_markup_mode="rich",
)


@flower_app.callback()
def _needs_flower() -> None:
    from importlib.util import find_spec

    from playerfl.errors import ConfigError

    if find_spec("flwr") is None:
        raise ConfigError("Flower is not installed; pip install 'playerfl[flower]'")


@flower_app.command(epilog=examples("flower keys north --out /etc/playerfl"))
def keys(
    name: Annotated[str, typer.Argument()],
    out: Annotated[Path, typer.Option(metavar="DIR", help="Where to write the key pair.")] = Path(),
) -> None:
    """Create a site's key pair: NAME.key stays at the site, NAME.pub goes to the server."""
    from playerfl.flower.operate.keys import fingerprint_of, write_key_pair

    private, public = write_key_pair(name, out)
    typer.echo(private)
    typer.echo(public)
    say(f"keep {private} secret; send {public} to the server's operator")
    say(f"fingerprint: {fingerprint_of(public.read_bytes())}; read it to the server's operator over the phone")


flower_app.command(epilog=UP_EXAMPLES)(up)
flower_app.command(epilog=RENEW_EXAMPLES)(renew)


@flower_app.command(epilog=examples("flower files conf --home /var/lib/playerfl --name fl.example.org"))
def files(
    folder: Annotated[Path, typer.Argument(metavar="DIR")],
    home: Annotated[Path, typer.Option(help="The server's directory.")],
    name: Annotated[str, typer.Option(help="The server's name, as sites see it.")],
    port: Annotated[int, typer.Option(help="The server's port on loopback.")] = 8000,
    listen: Annotated[int, typer.Option(help="The port sites connect to.")] = 443,
    site: Annotated[str, typer.Option(help="Name of the site in the generated service files.")] = "north",
) -> None:
    """Write systemd services, and an nginx configuration that forwards only the fleet interface, to DIR."""
    from playerfl.flower.operate.files import write_files

    for file in write_files(folder, home, name, port, listen, site):
        typer.echo(file)


flower_app.command(epilog=REGISTER_EXAMPLES)(register)
flower_app.command(epilog=UNREGISTER_EXAMPLES)(unregister)
flower_app.command(epilog=INIT_EXAMPLES)(init)


flower_app.command(epilog=SITE_EXAMPLES)(site)
flower_app.command(epilog=JOBS_EXAMPLES)(jobs)
flower_app.command(epilog=APPROVE_EXAMPLES)(approve)
flower_app.command(epilog=REFUSE_EXAMPLES)(refuse)
flower_app.command(epilog=AUDIT_EXAMPLES)(audit)
flower_app.command(epilog=RUN_EXAMPLES)(run)
flower_app.command(epilog=STATUS_EXAMPLES)(status)
flower_app.command(epilog=STOP_EXAMPLES)(stop)
flower_app.command(epilog=DOCTOR_EXAMPLES)(doctor)
flower_app.command(epilog=PLAN_EXAMPLES)(plan)
flower_app.command(epilog=DEMO_EXAMPLES)(demo)
