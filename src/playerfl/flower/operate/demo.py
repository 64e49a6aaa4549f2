"""A whole federation on one machine: certificates, keys, a server, sites, a job, and a check of its result."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from playerfl.flower.deployment import Deployment
from playerfl.flower.operate.app_folder import write_app_folder
from playerfl.flower.operate.enrolment import enrol, site_statuses
from playerfl.flower.operate.job_monitor import FlowerRun, follow, submit
from playerfl.flower.operate.keys import write_key_pair
from playerfl.flower.operate.launch import ServerHome, safe_environment
from playerfl.flower.operate.processes import (
    LOOPBACK,
    FlowerError,
    Running,
    ending_on_signals,
    free_port,
    wait_for_port,
)
from playerfl.flower.server.files import SITES as SITES_FILE
from playerfl.flower.server.job_status import JobStatus
from playerfl.runs.api import run_experiments
from playerfl.runs.experiment import Experiment
from playerfl.storage.atomic_files import write_atomically
from playerfl.weights import digest

SITES = ("site-0", "site-1", "site-2")
JOB = "demo"


@dataclass(frozen=True)
class DemoResult:
    """The fingerprint of every site's model, over Flower and in one process."""

    run: FlowerRun
    folder: Path
    over_flower: dict[str, str]
    in_process: dict[str, str]
    seconds: float

    @property
    def equal(self) -> bool:
        return self.over_flower == self.in_process


def demo_experiment(rounds: int) -> Experiment:
    return Experiment.resolve(
        {
            "task": "digits",
            "rounds": rounds,
            "device": "cpu",
            "algorithm": {"name": "player_fl"},
            "data": {"sites": len(SITES)},
        }
    )


def demonstrate(
    folder: Path, rounds: int, say: Callable[[str], None], on_change: Callable[[JobStatus], None]
) -> DemoResult:
    """Sets everything up in `folder`, runs the job, shuts everything down, and compares."""
    started = time.monotonic()
    experiment = demo_experiment(rounds)
    with ending_on_signals(), ExitStack() as stack:
        home, run = _over_flower(folder, experiment, stack, say, on_change)
    if not run.completed:
        raise FlowerError(f"the job failed: {run.detail}; logs are in {folder}")
    say("everything is shut down; running the same experiment in one process")
    [result] = run_experiments([experiment], [None])
    directory = home.jobs / JOB
    return DemoResult(
        run,
        directory,
        json.loads((directory / SITES_FILE).read_text(encoding="utf-8"))["models"],
        {site: digest(weights) for site, weights in result.weights.items()},
        time.monotonic() - started,
    )


def start_site(name: str, key: Path, server: str, home: ServerHome, folder: Path, task: str) -> Running:
    """Starts a site as its administrator would. Its policy lets jobs start at once, since nobody is there to ask."""
    policy = folder / name / "site.toml"
    write_atomically(policy, b'approval = "automatic"\n')
    command = [
        *(sys.executable, "-m", "playerfl", "flower", "site", "--name", name, "--task", task),
        *("--key", str(key), "--ca", str(home.authority), "--server", server, "--policy", str(policy)),
        *("--state", str(folder / name / "state"), "--port", str(free_port())),
    ]
    return Running(command, safe_environment(folder / name / "flwr"), folder / f"{name}.log")


def _over_flower(
    folder: Path,
    experiment: Experiment,
    stack: ExitStack,
    say: Callable[[str], None],
    on_change: Callable[[JobStatus], None],
) -> tuple[ServerHome, FlowerRun]:
    home = ServerHome(folder / "server")
    port = free_port()
    home.prepare((), port)
    say(f"certificates created; starting the SuperLink on {LOOPBACK}:{port} with TLS and node authentication")
    link = stack.enter_context(Running(home.superlink(port), home.environment(), folder / "superlink.log"))
    wait_for_port(port, link)
    for site in SITES:
        private, public = write_key_pair(site, folder / site)
        enrol(home, public, site)
        stack.enter_context(start_site(site, private, f"{LOOPBACK}:{port}", home, folder, experiment.task))
        say(f"{site}: key created and registered, site started")
    app = folder / "app"
    write_app_folder(app, Deployment(JOB, SITES, experiment.to_toml(), min_sites=len(SITES), deadline=600.0))
    run_id = submit(home, app)
    say(f"job submitted; {sum(site.status == 'online' for site in site_statuses(home))} sites are online")
    return home, follow(home, JOB, run_id, on_change)
