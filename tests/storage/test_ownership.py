"""Root decides and admits for a service without taking its files away from it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from flower.jobs import Job
from killing import command, ended, forked
from playerfl.errors import ConfigError
from playerfl.flower.operate.register import KeyRegister
from playerfl.flower.site.policy import Policy
from playerfl.storage.ownership import as_owner_of, check_owner

pytestmark = pytest.mark.skipif(
    not hasattr(os, "getuid") or os.getuid() != 0, reason="only root can write for other users"
)
SERVICE = 40_001


def given_away(folder: Path) -> Path:
    for path in (folder, *folder.rglob("*")):
        os.chown(path, SERVICE, SERVICE)
    # The folders above it are those of the tests' user.
    for path in folder.parents:
        if path.owner() == "root" and path != Path("/"):
            path.chmod(path.stat().st_mode | 0o011)
    return folder


def owners(folder: Path) -> set[int]:
    return {path.stat().st_uid for path in (folder, *folder.rglob("*"))}


@pytest.mark.parametrize("decision", ["approve", "refuse", "stop"])
def test_the_agents_user_can_read_what_root_decided(decision: str, tmp_path: Path) -> None:
    """With a strict umask, an approval by root was a file that the agent could not read: the job never began."""
    job = Job(tmp_path, "fedper", rounds=1, policy=Policy.of({"jobs": {"least_sites": 1}}))
    job.wait_in_vain()
    state = given_away(tmp_path / "site-1")

    def decide() -> int:
        os.umask(0o077)
        return command(["flower", decision, "job", "--state", str(state)])

    assert ended(forked(decide)) == 0
    assert (state / "job" / "decision.json").exists()
    assert owners(state) == {SERVICE}


def test_root_follows_no_link_that_the_services_user_made(tmp_path: Path) -> None:
    """`.decision.json.tmp` as a link to a file of root's had root overwrite that file."""
    job = Job(tmp_path, "fedper", rounds=1, policy=Policy.of({"jobs": {"least_sites": 1}}))
    job.wait_in_vain()
    precious = tmp_path / "precious"
    precious.write_text("root's own")
    (tmp_path / "site-1" / "job" / ".decision.json.tmp").symlink_to(precious)
    os.lchown(tmp_path / "site-1" / "job" / ".decision.json.tmp", SERVICE, SERVICE)
    os.chown(tmp_path / "site-1", SERVICE, SERVICE)
    os.chown(tmp_path / "site-1" / "job", SERVICE, SERVICE)
    assert ended(forked(lambda: command(["flower", "approve", "job", "--state", str(tmp_path / "site-1")]))) != 0
    assert precious.read_text() == "root's own"


def test_the_servers_user_can_read_whom_root_admitted(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    given_away(home)
    mask = os.umask(0o077)
    try:
        KeyRegister(home).put("north", "7", "SHA256:x")
    finally:
        os.umask(mask)
    assert owners(home) == {SERVICE}


def test_root_is_root_again_afterwards(tmp_path: Path) -> None:
    (tmp_path / "home").mkdir()
    with pytest.raises(ValueError), as_owner_of(given_away(tmp_path / "home")):
        assert os.geteuid() == SERVICE
        raise ValueError
    assert (os.geteuid(), os.getegid()) == (0, 0)
    with as_owner_of(tmp_path / "nowhere"):
        assert os.geteuid() == 0


def test_root_does_not_run_a_service_in_the_directory_of_another_user(tmp_path: Path) -> None:
    (tmp_path / "home").mkdir()
    check_owner(tmp_path / "home")
    with pytest.raises(ConfigError, match=f"belongs to user {SERVICE}"):
        check_owner(given_away(tmp_path / "home"))
