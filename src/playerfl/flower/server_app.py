"""The app a SuperLink runs: a coordinator over Flower's grid."""

from __future__ import annotations

import logging
import os
from pathlib import Path

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from playerfl.errors import ConfigError
from playerfl.flower.coordinator.coordinator import Coordinator
from playerfl.flower.deployment import Deployment

JOBS = "PLAYERFL_FLOWER_JOBS"
"""Where jobs are kept: set by whoever starts the SuperLink, so that no job can choose it."""

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Runs or resumes the job that the app folder describes."""
    jobs = os.environ.get(JOBS)
    if not jobs:
        raise ConfigError(f"{JOBS} is not set; start the SuperLink with playerfl flower up")
    say = logging.getLogger("flwr").info
    Coordinator(grid, Deployment.from_run_config(context.run_config), Path(jobs), say=say).run()
