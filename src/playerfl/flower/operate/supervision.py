"""Supervisor: submits interrupted jobs again, while the server is up."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from playerfl.errors import PlayerflError
from playerfl.flower.operate.job_monitor import submit
from playerfl.flower.operate.launch import ServerHome
from playerfl.flower.server.job_status import JobStatus, read_status

LOOK_SECONDS = 5.0
FIRST_SECONDS = 5.0
"""Before an interrupted job is submitted again: a job that ends has released its folder a moment earlier."""
MOST_ATTEMPTS = 5
"""Without a round in between. A job that fails this often needs a person."""


@dataclass
class _Attempts:
    """The attempts to resume one interrupted job."""

    round: int | None
    count: int = 0
    not_before: float = 0.0


@dataclass
class Supervisor:
    """Watches the jobs of a server. A job that was stopped, or that failed with a reason, is left alone."""

    home: ServerHome
    say: Callable[[str], None]
    clock: Callable[[], float] = time.monotonic
    submit: Callable[..., str] = submit
    _attempts: dict[str, _Attempts] = field(default_factory=dict)

    def look(self) -> None:
        """Submits jobs that were interrupted a moment ago, with growing pauses."""
        now = self.clock()
        for status in job_statuses(self.home):
            if status.state != "interrupted":
                continue
            attempts = self._attempts.get(status.job)
            if attempts is None or attempts.round != status.round:
                attempts = self._attempts[status.job] = _Attempts(status.round, not_before=now + FIRST_SECONDS)
            if now < attempts.not_before or attempts.count >= MOST_ATTEMPTS:
                continue
            attempts.count += 1
            attempts.not_before = now + 30.0 * 2**attempts.count
            self._resume(status, attempts.count)

    def _resume(self, status: JobStatus, attempt: int) -> None:
        app = self.home.submitted / status.job / "app"
        if not app.is_dir():
            self.say(f"job {status.job} was interrupted; playerfl flower run resumes it")
            self._attempts[status.job].count = MOST_ATTEMPTS
            return
        try:
            self.submit(self.home, app)
        except PlayerflError as problem:
            self.say(f"job {status.job} was interrupted and cannot be submitted again: {problem}")
            return
        self.say(f"job {status.job} was interrupted after round {status.round or 0}; submitted again")
        if attempt == MOST_ATTEMPTS:
            self.say(f"job {status.job}: that was the last attempt; see {self.home.jobs / status.job}")


def job_statuses(home: ServerHome) -> list[JobStatus]:
    """The jobs of a server by name. A folder whose status cannot be read is left out."""
    statuses = []
    for folder in sorted(home.jobs.iterdir()) if home.jobs.is_dir() else []:
        try:
            status = read_status(folder) if folder.is_dir() else None
        except PlayerflError:
            continue
        if status is not None:
            statuses.append(status)
    return statuses
