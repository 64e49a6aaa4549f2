"""JobStatus: how far a job has got, and an operator's wish to stop it, as files that every command can read quickly.

Nothing here imports torch: `playerfl flower up` looks at these files for as long as the server runs.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from playerfl.errors import ConfigError, RunDirectoryError
from playerfl.storage.atomic_files import RERUN_HINT, write_atomically
from playerfl.storage.locking import in_use

if TYPE_CHECKING:
    from playerfl.federation.messages import SiteId

STATUS = "status.json"
STOP = "stop.json"
"""An operator's request, which the job looks for while it waits."""
UNDER_WAY = ("waiting for sites", "running")
AT_WORK = "it is working, or its response was lost"
"""Why a site that is online has not responded yet."""
PARTICIPATION = "participation.csv"


@dataclass(frozen=True)
class JobStatus:
    """The content of status.json: a job's progress."""

    job: str
    state: str
    """waiting for sites, running, stopped, ended, failed or finished; `read_status` adds: interrupted."""
    detail: str
    """Why it failed, was stopped or was interrupted; else empty."""
    round: int | None
    """None before the first site has introduced itself."""
    rounds: int
    algorithm: str
    sites: Mapping[SiteId, str]
    """The key of each site's last accepted response."""
    seconds: float
    updated: str
    missing: Mapping[SiteId, Mapping[str, Any]] = field(default_factory=dict)
    """The sites the job waits for: since when, how often each was asked, and why."""

    @property
    def under_way(self) -> bool:
        return self.state in UNDER_WAY


def read_status(folder: Path) -> JobStatus | None:
    """The progress of the job in a folder; None if it has not started.

    A job whose file says that it is under way, although no process works in its folder, was interrupted.
    """
    file = folder / STATUS
    try:
        table = json.loads(file.read_text(encoding="utf-8"))
        status = JobStatus(**table)
        fits = isinstance(status.sites, dict) and isinstance(status.round, int | None)
        fits = fits and isinstance(status.missing, dict) and isinstance(status.state, str)
        datetime.fromisoformat(status.updated)
    except FileNotFoundError:
        return None
    except (OSError, ValueError, TypeError, RecursionError) as problem:
        raise RunDirectoryError(f"{file} cannot be read: {problem}") from problem
    if not fits:
        raise RunDirectoryError(f"{file} cannot be read: its sites or its round have the wrong type")
    if status.under_way and not in_use(folder):
        # In the meantime, the job may have ended by itself.
        again = json.loads(file.read_text(encoding="utf-8"))
        if again == table:
            detail = "its process ended unexpectedly; it continues when the server is started, or submitted again"
            return replace(status, state="interrupted", detail=detail, missing={})
        return read_status(folder)
    return status


def request_stop(folder: Path, *, final: bool) -> None:
    """Asks the job in a folder to stop. A job that is not under way is marked as stopped at once."""
    status = read_status(folder)
    if status is None:
        raise ConfigError(f"{folder} is not the folder of a job")
    if status.state in ("finished", "ended"):
        raise ConfigError(f"job {status.job} is already {status.state}")
    write_atomically(folder / STOP, json.dumps({"final": final}).encode(), RERUN_HINT)
    if not status.under_way:
        name, detail = stopped_state(final)
        stopped = replace(status, state=name, detail=detail, missing={})
        write_atomically(folder / STATUS, (json.dumps(asdict(stopped), indent=1) + "\n").encode(), RERUN_HINT)


def stop_requested(folder: Path) -> bool | None:
    """Whether an operator asked the job to end for good (True) or to pause (False); None: neither."""
    try:
        return bool(json.loads((folder / STOP).read_text(encoding="utf-8"))["final"])
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return False


def stopped_state(final: bool) -> tuple[str, str]:
    """The state and the detail of a job that was stopped."""
    if final:
        return "ended", "an operator ended it for good; start a new job under another name"
    return "stopped", "an operator stopped it; playerfl flower run continues it after its last complete round"
