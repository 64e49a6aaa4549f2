"""Submits a job to a SuperLink and follows it until Flower says that it has ended."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from playerfl.flower.operate.app_folder import read_app_folder
from playerfl.flower.operate.launch import CONNECTION, ServerHome
from playerfl.flower.operate.processes import FlowerError
from playerfl.flower.server.files import JobStatus, read_status

LOOK_SECONDS = 1.0
"""Between two reads of the job's status file."""
ASK_SECONDS = 15.0
"""Between two queries to Flower, each of which starts a process."""
LOST_SECONDS = 60.0
"""How long the SuperLink may be unreachable."""


@dataclass(frozen=True)
class FlowerRun:
    """Flower's record of a run."""

    status: str
    detail: str
    """Why it failed."""
    bytes_in: int
    bytes_out: int

    @property
    def ended(self) -> bool:
        return self.status.startswith("finished")

    @property
    def completed(self) -> bool:
        return self.status == "finished:completed"


@dataclass(frozen=True)
class RegisteredSite:
    """A site whose key the server knows."""

    name: str
    status: str
    """online, offline, registered or unregistered."""
    node_id: str


def submit(home: ServerHome, app: Path, readmit: tuple[str, ...] = ()) -> str:
    """Starts or resumes a job; returns Flower's run ID."""
    read_app_folder(app)
    extra = ["--run-config", f'readmit="{",".join(readmit)}"'] if readmit else []
    return str(home.flwr("run", str(app.resolve()), CONNECTION, *extra)["run-id"])


def follow(home: ServerHome, job: str, run_id: str, on_change: Callable[[JobStatus], None]) -> FlowerRun:
    """Waits until a run has ended; calls `on_change` whenever the job's status changes.

    `flwr run --stream` exits with 0 even if the run failed, so Flower's record of the run is read instead.
    """
    last: JobStatus | None = None
    asked = reached = time.monotonic()
    while True:
        status = read_status(home.jobs / job)
        if status is not None and status != last:
            last = status
            on_change(status)
        now = time.monotonic()
        over = status is not None and status.state in ("finished", "failed")
        if now - asked >= ASK_SECONDS or (over and now - asked >= 2):
            asked = now
            try:
                run = run_of(home, run_id)
                reached = now
                if run.ended:
                    detail = "" if run.completed else (status and status.detail) or run.detail or run.status
                    return replace(run, detail=detail)
            except FlowerError as problem:
                if now - reached > LOST_SECONDS:
                    raise FlowerError(
                        f"the SuperLink cannot be reached ({problem}); start it again with playerfl flower up, then "
                        "run the same job again: it resumes where it stopped"
                    ) from problem
        time.sleep(LOOK_SECONDS)


def run_of(home: ServerHome, run_id: str) -> FlowerRun:
    for run in home.flwr("list", CONNECTION)["runs"]:
        if str(run["run-id"]) == run_id:
            traffic = run.get("network-traffic") or {}
            return FlowerRun(
                run["status"],
                str(run.get("status-details") or ""),
                int(traffic.get("inbound-bytes", 0)),
                int(traffic.get("outbound-bytes", 0)),
            )
    raise FlowerError(f"the SuperLink has no run {run_id}")


def registered_sites(home: ServerHome) -> list[RegisteredSite]:
    nodes = home.flwr("supernode", "list", CONNECTION)["nodes"]
    return [RegisteredSite(node.get("name") or "", node["status"], str(node["node-id"])) for node in nodes]
