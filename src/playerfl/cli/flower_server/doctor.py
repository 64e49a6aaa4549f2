"""`playerfl flower doctor`: what would fail later, before anything starts."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from playerfl.cli.messages import say
from playerfl.cli.options import DataDir, Json, examples

DOCTOR_EXAMPLES = examples(
    "flower doctor --home /var/lib/playerfl",
    "flower doctor --server fl.example.org:443 --ca ca.crt --key north.key --state /var/lib/playerfl --task ./data "
    "--policy site.toml",
)


def doctor(
    home: Annotated[Path | None, typer.Option(help="Check the server in this directory.")] = None,
    server: Annotated[
        str | None, typer.Option(metavar="NAME:PORT", help="Check a site that connects to this server.")
    ] = None,
    ca: Annotated[Path, typer.Option(help="For a site: the server's ca.crt.")] = Path("ca.crt"),
    key: Annotated[Path, typer.Option(help="For a site: its private key.")] = Path("site.key"),
    state: Annotated[Path, typer.Option(help="For a site: its directory.")] = Path("state"),
    task: Annotated[str | None, typer.Option(help="For a site: its data, a folder or FILE.py:NAME.")] = None,
    policy: Annotated[Path | None, typer.Option(help="For a site: its site.toml.")] = None,
    data_dir: DataDir = None,
    as_json: Json = False,
) -> None:
    """Check versions, ports, TLS, clocks, permissions, policy and data, at the server (--home) or at a site (--server).

    Run it as the user that the service runs as. Exits with code 1 if something would fail.
    """
    from playerfl.errors import ConfigError
    from playerfl.flower.operate.launch import ServerHome
    from playerfl.flower.operate.preflight import check_machine, check_server, check_site

    if home is None and server is None:
        raise ConfigError("give --home DIR to check the server, or --server NAME:PORT to check a site")
    findings = list(check_machine())
    if home is not None:
        findings += check_server(ServerHome(home))
    if server is not None:
        data = (lambda: _data(task, data_dir)) if task is not None else None
        findings += check_site(server, ca, key, state, data, policy)
    if as_json:
        typer.echo(json.dumps([asdict(finding) for finding in findings], indent=1))
    else:
        for finding in findings:
            typer.echo(f"{finding.outcome:8} {finding.check}: {finding.message}")
    failures = sum(finding.outcome == "failure" for finding in findings)
    if failures:
        say(f"playerfl: {failures} of {len(findings)} checks failed")
        raise typer.Exit(1)


def _data(task: str, data_dir: Path | None) -> str:
    """The site's data in a few words; an error that says what is wrong with them."""
    from playerfl.data.download.directory import use_data_directory
    from playerfl.runs.experiment import Experiment
    from playerfl.tasks.load import load_task

    with use_data_directory(data_dir):
        loaded = load_task(task)
        options = Experiment.resolve({"device": "cpu"}, loaded).data_options(loaded)
        sites = loaded.for_options(options).load_sites(options)
    return f"{task}: " + ", ".join(f"{name} ({len(data.train)} training rows)" for name, data in sites.items())
