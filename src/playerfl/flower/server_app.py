"""The app that a SuperLink runs: one job over Flower's grid."""

from __future__ import annotations

import logging
import os
from pathlib import Path

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from playerfl.errors import ConfigError
from playerfl.flower.deployment import Deployment
from playerfl.flower.operate.launch import JOBS, SERVER
from playerfl.flower.operate.processes import end_with
from playerfl.flower.operate.register import names_by_key
from playerfl.flower.server.run_job import run_job

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Runs or resumes the job that the app folder describes."""
    jobs = os.environ.get(JOBS)
    if not jobs:
        raise ConfigError(f"{JOBS} is not set; start the SuperLink with playerfl flower up")
    # Flower signals a job that its SuperLink is gone, but its endless retries (pauses of up to 20 s, which its threads
    # take in turns) can delay the signal by minutes. Until then, the job could not be resumed.
    end_with(os.environ.get(SERVER, ""))
    say = logging.getLogger("flwr").info
    deployment = Deployment.from_run_config(context.run_config)
    run_job(grid, deployment, Path(jobs), say=say, name_of=names_by_key(Path(jobs).parent))
