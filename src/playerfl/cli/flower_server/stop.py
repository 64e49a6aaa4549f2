"""`playerfl flower stop`: at the server the whole job, at a site its part in the job."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from playerfl.cli.flower_jobs import status_line
from playerfl.cli.options import examples
from playerfl.cli.site import jobs

STOP_EXAMPLES = examples(
    "flower stop heart --home /var/lib/playerfl",
    "flower stop heart --home /var/lib/playerfl --final",
    "flower stop heart --state /var/lib/playerfl",
)


def stop(
    job: Annotated[str, typer.Argument()],
    home: Annotated[Path | None, typer.Option(help="At the server: its directory. The whole job stops.")] = None,
    state: Annotated[Path | None, typer.Option(help="At a site: its directory. Nothing more leaves this site.")] = None,
    final: Annotated[
        bool, typer.Option("--final", help="At the server: end the job for good, so that it cannot be resumed.")
    ] = False,
) -> None:
    """Stop a job (at the server, --home), or this site's part in it (--state).

    At the server, complete rounds are kept, and playerfl flower run resumes the job, unless --final is given. Sites
    keep their state; work on a round that was not completed is undone.
    """
    from playerfl.errors import ConfigError
    from playerfl.flower.operate.job_monitor import stop_job
    from playerfl.flower.operate.launch import ServerHome

    if (home is None) == (state is None):
        raise ConfigError("give --home DIR at the server, or --state DIR at a site")
    if state is not None:
        if final:
            raise ConfigError("--final is for the server; leave it out at a site")
        jobs.stop(job, state)
        return
    assert home is not None
    server = ServerHome(home)
    _ = server.port
    typer.echo(status_line(stop_job(server, job, final=final)))
