"""Disk full and read-only at every write: one sentence with the path, nothing corrupt, and the same bits afterwards.

Only some writes of each command fail here; `python reliability/disk.py` makes all of them fail.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from faulty_disk import FULL, READ_ONLY, FaultyDisk
from sweeping import PROBLEMS, files_below, sweep
from writing_commands import COMMANDS, made_before, playerfl, resumed, run


@pytest.fixture(scope="module")
def before(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("before")
    with made_before(folder):
        yield folder


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "problem"), [("run", "full"), ("flower files", "read-only"), ("data fetch", "full once")]
)
def test_some_writes_fail(name: str, problem: str, before: Path, tmp_path: Path) -> None:
    sweep(name, problem, before, tmp_path, most=3)


@pytest.mark.slow
@pytest.mark.parametrize("problem", PROBLEMS)
@pytest.mark.parametrize("name", COMMANDS)
def test_more_writes_fail(name: str, problem: str, before: Path, tmp_path: Path) -> None:
    sweep(name, problem, before, tmp_path, most=3)


problems = pytest.mark.parametrize("problem", [FULL, READ_ONLY], ids=["full", "read-only"])


@pytest.mark.slow
@problems
def test_a_site_across_institutions_answers_with_a_code_and_goes_on(
    problem: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each write while handling an envelope fails once; when asked again, the site gives the undisturbed response."""
    from flower_files import envelopes, silent_sites, site_of

    # A contract says when the job began.
    monkeypatch.setattr("playerfl.flower.site.files.contract._now", lambda: "2026-11-18T09:00:00+00:00")
    _, envelope = envelopes(tmp_path)
    whole = FaultyDisk(tmp_path / "whole")
    with whole.mounted():
        response = site_of(whole.home).respond(envelope)
    assert response.code is None
    for number in range(1, whole.count + 1):
        disk = FaultyDisk(tmp_path / f"broken-{number}", number, problem)
        site = site_of(disk.home)
        with disk.mounted(), silent_sites():
            assert site.respond(envelope).code == "storage", f"write {number}"
        assert str(site.respond(envelope)) == str(response), f"after write {number}"
        # The audit log has the times of all attempts.
        varies = ("audit.jsonl", "last_line.json")
        assert files_below(disk.home, varies) == files_below(whole.home, varies), f"after write {number}"


@pytest.mark.slow
def test_a_disk_that_is_really_full(tmp_path: Path) -> None:
    """A filesystem of 64 KiB, where this process may mount one."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(disk)]
    try:
        made = subprocess.run(mount, capture_output=True, text=True)
    except FileNotFoundError:
        pytest.skip("there is no mount command here")
    if made.returncode:
        pytest.skip(f"a small filesystem cannot be mounted here: {made.stderr.strip()}")
    try:
        code, text = playerfl(*run(disk, tmp_path))
        assert code == 2
        assert "No space left on device; free some space and continue with --resume" in text
        assert "Traceback" not in text
        subprocess.run(["mount", "-o", "remount,size=8m", str(disk)], check=True)
        code, text = playerfl(*resumed(run)(disk, tmp_path))
        assert code == 0, text
        assert playerfl(*run(tmp_path, tmp_path))[0] == 0
        varies = ("timing.json",)
        assert files_below(disk / "run", varies) == files_below(tmp_path / "run", varies)
    finally:
        subprocess.run(["umount", str(disk)], check=True)
