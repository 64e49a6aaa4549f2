"""Two processes on one directory: the second is refused, and the first notices nothing."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from sweeping import files_below
from writing_commands import STUDY, playerfl, run

from flower.jobs import SITES, Job
from playerfl.errors import RunDirectoryError
from playerfl.flower.operate.certificates import write_certificates
from playerfl.flower.operate.keys import write_key_pair
from playerfl.flower.server.transport import TooFewSitesError

HOLDER = """
import sys
from pathlib import Path
from playerfl.storage.locking import DirectoryLock
lock = DirectoryLock(Path(sys.argv[1]))
lock.take()
print("taken", flush=True)
sys.stdin.read()
"""


@contextmanager
def held(folder: Path) -> Iterator[None]:
    """Another process works in this folder."""
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(folder)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "taken\n"
        yield
        other.communicate("")
    assert other.returncode == 0


def refused(folder: Path, *arguments: object) -> None:
    before = files_below(folder, ())
    with held(folder):
        code, text = playerfl(*arguments)
    assert (code, text.strip().splitlines()[-1]) == (
        2,
        f"playerfl: {folder} is in use by another process; wait for it to end",
    )
    assert files_below(folder, ()) == before


@pytest.mark.slow
def test_a_run(tmp_path: Path) -> None:
    assert playerfl(*run(tmp_path, tmp_path))[0] == 0
    refused(tmp_path / "run", "run", "--resume", tmp_path / "run")
    refused(tmp_path / "run", *run(tmp_path, tmp_path), "--overwrite")
    assert playerfl("run", "--resume", tmp_path / "run")[0] == 0


def test_a_study(tmp_path: Path) -> None:
    import tomli_w

    (tmp_path / "study.toml").write_text(tomli_w.dumps({**STUDY, "algorithms": ["local"], "learning_rates": [0.01]}))
    command = ("study", tmp_path / "study.toml", "--out", tmp_path / "o", "--backend", "serial", "-q")
    assert playerfl(*command)[0] == 0
    refused(tmp_path / "o", *command)
    assert playerfl(*command)[0] == 0


def test_a_job_across_institutions(tmp_path: Path) -> None:
    job = Job(tmp_path, "fedavg", rounds=1)
    job.grid.offline.update(SITES)
    with pytest.raises(TooFewSitesError):
        job.run()
    job.grid.offline.clear()
    with held(job.folder), pytest.raises(RunDirectoryError, match="is in use by another process"):
        job.run()
    job.run()
    assert (job.folder / "finished.json").is_file()


def test_a_site_of_such_a_job(tmp_path: Path) -> None:
    write_key_pair("north", tmp_path)
    write_certificates(tmp_path, ["localhost"])
    state = tmp_path / "state"
    state.mkdir()
    files = ("--key", tmp_path / "north.key", "--ca", tmp_path / "ca.crt", "--state", state)
    refused(state, "flower", "site", "--name", "north", *files, "--server", "localhost:1")
