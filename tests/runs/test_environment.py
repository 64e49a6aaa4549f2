"""What a run records about its software."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from playerfl.runs.environment import environment

ROOT = Path(__file__).parents[2]


@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="not a source tree")
def test_the_commit_of_a_source_tree_is_recorded() -> None:
    assert re.fullmatch(r"[0-9a-f]{40}(-dirty)?", environment("cpu", 1)["git_commit"] or "")
