"""What a run records about its software."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

from playerfl.runs.environment import environment, git_commit

ROOT = Path(__file__).parents[2]


@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="not a source tree")
def test_the_commit_of_a_source_tree_is_recorded() -> None:
    assert re.fullmatch(r"[0-9a-f]{40}(-dirty)?", environment("cpu", 1)["git_commit"] or "")


@pytest.mark.system
def test_recording_the_commit_says_what_changed_and_writes_nothing(tmp_path: Path) -> None:
    def git(*arguments: str) -> str:
        author = ("-c", "user.name=a", "-c", "user.email=a@example.org")
        command = ["git", *author, "-C", str(tmp_path), *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()

    git("init", "-q")
    (tmp_path / "code.py").write_text("x = 1")
    git("add", ".")
    git("commit", "-qm", "first")
    commit, index = git("rev-parse", "HEAD"), (tmp_path / ".git" / "index").read_bytes()
    (tmp_path / "notes.txt").touch()
    os.utime(tmp_path / "code.py", (1, 1))
    assert git_commit.__wrapped__(tmp_path) == commit
    assert (tmp_path / ".git" / "index").read_bytes() == index
    (tmp_path / "code.py").write_text("x = 2")
    assert git_commit.__wrapped__(tmp_path) == f"{commit}-dirty"
