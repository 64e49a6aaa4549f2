"""Submits a job to a SuperLink and follows it to its real end."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from playerfl.flower.coordinator.coordinator import read_status
from playerfl.flower.operate.app_folder import read_app_folder
from playerfl.flower.operate.launch import CONNECTION, FlowerError, ServerHome

LOOK_SECONDS = 1.0
ASK_SECONDS = 15.0
"""Between two questions to Flower: each is a process of its own."""
LOST_SECONDS = 60.0


@dataclass(frozen=True)
class Ended:
    """How a run ended, by Flower's own account."""

    completed: bool
    detail: str
    bytes_in: int
    bytes_out: int


def submit(home: ServerHome, app: Path, readmit: tuple[str, ...] = ()) -> str:
    """Starts a job, or takes it up again; gives Flower's number of the run."""
    read_app_folder(app)
    extra = ["--run-config", f'readmit="{",".join(readmit)}"'] if readmit else []
    return str(home.flwr("run", str(app.resolve()), CONNECTION, *extra)["run-id"])


def follow(home: ServerHome, job: str, run_id: str, seen: Callable[[dict[str, Any]], None]) -> Ended:
    """Waits for the end of a run; `seen` is told each time the job's status changes.

    Flower's own `flwr run --stream` ends with 0 even where the run failed, so the run's record is asked.
    """
    last: dict[str, Any] = {}
    asked = lost = time.monotonic()
    while True:
        status = read_status(home.jobs / job)
        if status != last:
            last = status
            seen(status)
        now = time.monotonic()
        if now - asked >= ASK_SECONDS or (status.get("state") in ("finished", "failed") and now - asked >= 2):
            asked = now
            try:
                run = run_of(home, run_id)
            except FlowerError as problem:
                if now - lost > LOST_SECONDS:
                    raise FlowerError(
                        f"the SuperLink cannot be reached ({problem}); start it again with playerfl flower up, then "
                        "run the same job again: it goes on where it stands"
                    ) from problem
            else:
                lost = now
                if run["status"].startswith("finished"):
                    return _ended(run, status)
        time.sleep(LOOK_SECONDS)


def _ended(run: dict[str, Any], status: dict[str, Any]) -> Ended:
    traffic = run.get("network-traffic") or {}
    completed = run["status"] == "finished:completed"
    detail = "" if completed else str(status.get("detail") or run.get("status-details") or run["status"])
    return Ended(completed, detail, int(traffic.get("inbound-bytes", 0)), int(traffic.get("outbound-bytes", 0)))


def run_of(home: ServerHome, run_id: str) -> dict[str, Any]:
    for run in home.flwr("list", CONNECTION)["runs"]:
        if str(run["run-id"]) == run_id:
            return dict(run)
    raise FlowerError(f"the SuperLink knows no run {run_id}")


def nodes_of(home: ServerHome) -> Iterator[dict[str, Any]]:
    """The registered sites, and whether they are on-line."""
    for node in home.flwr("supernode", "list", CONNECTION)["nodes"]:
        yield {"name": node.get("name") or "", "status": node["status"], "node-id": str(node["node-id"])}
