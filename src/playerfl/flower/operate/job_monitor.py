"""Submits a job to a SuperLink, follows it until it has ended, and stops it."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path

from playerfl.errors import ConfigError, one_of
from playerfl.flower.deployment import Deployment
from playerfl.flower.operate.app_folder import read_app_folder, write_app_folder
from playerfl.flower.operate.launch import CONNECTION, ServerHome
from playerfl.flower.operate.processes import FlowerError
from playerfl.flower.server.job_status import JobStatus, read_status, request_stop
from playerfl.flower.wire.envelopes import check_job
from playerfl.storage.atomic_files import RERUN_HINT, make_directory, write_atomically
from playerfl.storage.locking import locked
from playerfl.storage.ownership import as_owner_of

LOOK_SECONDS = 1.0
"""Between two reads of the job's status file."""
ASK_SECONDS = 15.0
"""Between two queries to Flower, each of which starts a process."""
LOST_SECONDS = 60.0
"""How long the SuperLink may be unreachable, and an interrupted job may wait to be submitted again."""
STARTING_SECONDS = 30.0
"""From the submission of a job until its process has taken its folder."""
RUN = "run.json"
STOPPED = ("stopped", "ended")
ENDED = ("finished", "failed", *STOPPED)


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
    def stopped(self) -> bool:
        """Whether an operator stopped it."""
        return self.status.removeprefix("finished:") in STOPPED

    @property
    def completed(self) -> bool:
        return self.status == "finished:completed"


def submit(home: ServerHome, app: Path, readmit: tuple[str, ...] = ()) -> str:
    """Starts or resumes a job; returns Flower's run ID. Keeps the app folder, to resume the job after a crash.

    A job that is under way, or was submitted a moment ago, is not submitted again: its run is returned.
    """
    deployment = read_app_folder(app)
    status = read_status(home.jobs / deployment.job)
    if status is not None and status.state == "ended":
        raise ConfigError(f"job {deployment.job} was ended for good; start a new job under another name")
    kept = home.submitted / deployment.job
    with as_owner_of(home.path):
        make_directory(kept)
    with locked(kept, wait=True):
        _check_unchanged(home, deployment)
        last = _last_submission(home, deployment.job)
        if last is not None and status is not None and (status.under_way or _is_starting(status, last[1])):
            return last[0]
        with as_owner_of(home.path):
            write_app_folder(kept / "app", deployment)
        extra = ["--run-config", f'readmit="{",".join(readmit)}"'] if readmit else []
        run_id = str(home.flwr("run", str(app.resolve()), CONNECTION, *extra)["run-id"])
        submission = {"run-id": run_id, "time": time.time()}
        with as_owner_of(home.path):
            write_atomically(kept / RUN, json.dumps(submission).encode(), RERUN_HINT)
    return run_id


def _check_unchanged(home: ServerHome, deployment: Deployment) -> None:
    """Refuses another experiment or other sites for a job that has begun.

    The job itself would refuse them too, but only after they have replaced the files that the server resumes it with.
    """
    begun, last = home.jobs / deployment.job / "experiment.toml", home.submitted / deployment.job / "app"
    if not begun.exists():
        return
    differs = ""
    if begun.read_text(encoding="utf-8") != deployment.experiment:
        differs = "a different experiment"
    elif last.is_dir() and set(read_app_folder(last).sites) != set(deployment.sites):
        differs = "different sites"
    if differs:
        raise ConfigError(f"job {deployment.job} was started with {differs}; give this one another name")


def _is_starting(status: JobStatus, submitted: float) -> bool:
    """Whether a job that was submitted a moment ago has not taken its folder yet.

    A status that is newer than the submission is the job's own: it has started, and was interrupted since.
    """
    return (
        status.state not in ENDED
        # Not if the clock was set back since: the submission would count as recent for as long.
        and 0 <= time.time() - submitted < STARTING_SECONDS
        and datetime.fromisoformat(status.updated).timestamp() <= submitted
    )


def last_run(home: ServerHome, job: str) -> str | None:
    """Flower's ID of the run that a job was last submitted as; None if it never was."""
    last = _last_submission(home, job)
    return last and last[0]


def _last_submission(home: ServerHome, job: str) -> tuple[str, float] | None:
    try:
        table = json.loads((home.submitted / job / RUN).read_text(encoding="utf-8"))
        return str(table["run-id"]), float(table["time"])
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None


def follow(
    home: ServerHome,
    job: str,
    run_id: str,
    on_change: Callable[[JobStatus], None],
    on_look: Callable[[], None] = lambda: None,
) -> FlowerRun:
    """Waits until a job has ended; calls `on_change` whenever its status changes, and `on_look` about once a second.

    `flwr run --stream` exits with 0 even if the run failed, so Flower's record of the run is read instead. A job that
    is interrupted continues as another run once the server has submitted it again.
    """
    last: JobStatus | None = None
    asked = reached = time.monotonic()
    interrupted: float | None = None
    while True:
        on_look()
        status = read_status(home.jobs / job)
        if status is not None and status != last:
            last = status
            on_change(status)
        run_id = last_run(home, job) or run_id
        now = time.monotonic()
        over = status is not None and status.state in ENDED
        if now - asked >= ASK_SECONDS or (over and now - asked >= 2):
            asked = now
            try:
                run = run_of(home, run_id)
                reached = now
                if run.ended and status is not None and status.under_way:
                    # Another run, which was submitted earlier, does the work.
                    continue
                if run.ended and status is not None and status.state == "interrupted":
                    interrupted = interrupted or now
                    if now - interrupted < LOST_SECONDS:
                        continue
                if run.ended:
                    return _ended(run, status)
            except FlowerError as problem:
                if now - reached > LOST_SECONDS:
                    raise FlowerError(
                        f"the SuperLink cannot be reached ({problem}); start it again with playerfl flower up: "
                        "the job then resumes where it stopped"
                    ) from problem
        time.sleep(LOOK_SECONDS)


def _ended(run: FlowerRun, status: JobStatus | None) -> FlowerRun:
    if status is not None and status.state in STOPPED:
        return replace(run, status=f"finished:{status.state}", detail=status.detail)
    detail = "" if run.completed else (status and status.detail) or run.detail or run.status
    return replace(run, detail=detail)


def stop_job(home: ServerHome, job: str, *, final: bool, seconds: float = 90.0) -> JobStatus:
    """Stops a job after its last complete round; with `final`, for good. Returns its last status.

    The job notices the request while it waits for sites. Flower ends a job that does not react in time.
    """
    folder = home.jobs / check_job(job)
    if not folder.is_dir():
        names = [path.name for path in home.jobs.iterdir() if path.is_dir()] if home.jobs.is_dir() else []
        raise ConfigError(one_of(job, names, "job"))
    with as_owner_of(home.path):
        request_stop(folder, final=final)
    ends = time.monotonic() + seconds
    while (status := read_status(folder)) is not None and status.under_way and time.monotonic() < ends:
        time.sleep(LOOK_SECONDS)
    if status is not None and status.under_way and (run_id := last_run(home, job)):
        home.flwr("stop", run_id, CONNECTION)
        while (status := read_status(folder)) is not None and status.under_way and time.monotonic() < ends + seconds:
            time.sleep(LOOK_SECONDS)
    if status is None or status.under_way:
        raise FlowerError(f"job {job} has not stopped; end its process at the server")
    if status.state not in (*STOPPED, "finished"):
        with as_owner_of(home.path):
            request_stop(folder, final=final)
    final_status = read_status(folder)
    assert final_status is not None
    return final_status


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
