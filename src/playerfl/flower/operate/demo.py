"""A whole federation on one machine: certificates, keys, server, sites, a job, and the proof that nothing was lost."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from playerfl.flower.deployment import Deployment
from playerfl.flower.operate.app_folder import write_app_folder
from playerfl.flower.operate.job_monitor import Ended, follow, nodes_of, submit
from playerfl.flower.operate.keys import write_key_pair
from playerfl.flower.operate.launch import (
    CONNECTION,
    LOOPBACK,
    FlowerError,
    Running,
    ServerHome,
    SiteNode,
    ending_on_signals,
    free_port,
    wait_for_port,
)
from playerfl.runs.api import run_experiments
from playerfl.runs.experiment import Experiment
from playerfl.weights import digest

SITES = ("site-0", "site-1", "site-2")
JOB = "demo"


@dataclass(frozen=True)
class Shown:
    """What the demo found out."""

    ended: Ended
    folder: Path
    over_flower: dict[str, str]
    """Fingerprint of every site's model."""
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


def demonstrate(folder: Path, rounds: int, say: Callable[[str], None], seen: Callable[[dict[str, Any]], None]) -> Shown:
    """Builds everything in `folder`, runs the job, compares, and ends whatever it started."""
    begun = time.monotonic()
    experiment = demo_experiment(rounds)
    with ending_on_signals(), ExitStack() as stack:
        home, ended = _over_flower(folder, experiment, stack, say, seen)
    if not ended.completed:
        raise FlowerError(f"the job failed: {ended.detail}; logs are in {folder}")
    say("everything is shut down; now the same experiment in one process")
    [result] = run_experiments([experiment], [None])
    directory = home.jobs / JOB
    return Shown(
        ended,
        directory,
        _models(directory),
        {site: digest(weights) for site, weights in result.weights.items()},
        time.monotonic() - begun,
    )


def _over_flower(
    folder: Path,
    experiment: Experiment,
    stack: ExitStack,
    say: Callable[[str], None],
    seen: Callable[[dict[str, Any]], None],
) -> tuple[ServerHome, Ended]:
    home = ServerHome(folder / "server")
    port = free_port()
    home.prepare((), port)
    say(f"certificates are made; SuperLink starts on {LOOPBACK}:{port} with TLS and node authentication")
    link = stack.enter_context(Running(home.superlink(port), home.environment(), folder / "superlink.log"))
    wait_for_port(port, link)
    for site in SITES:
        private, public = write_key_pair(site, folder / site)
        home.flwr("supernode", "register", str(public), CONNECTION, "--name", site)
        node = SiteNode(site, private, f"{LOOPBACK}:{port}", home.authority, folder / site / "state", port=free_port())
        node.check()
        stack.enter_context(Running(node.supernode(), node.environment(), folder / f"{site}.log"))
        say(f"{site}: key made and registered, SuperNode started")
    app = folder / "app"
    write_app_folder(app, Deployment(JOB, SITES, experiment.to_toml(), min_sites=len(SITES), deadline=600.0))
    run_id = submit(home, app)
    say(f"job submitted; {sum(node['status'] == 'online' for node in nodes_of(home))} sites are on-line")
    return home, follow(home, JOB, run_id, seen)


def _models(directory: Path) -> dict[str, str]:
    found: dict[str, str] = json.loads((directory / "sites.json").read_text(encoding="utf-8"))["models"]
    return found
