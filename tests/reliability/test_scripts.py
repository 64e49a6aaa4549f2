"""The scripts in reliability/ run for hours and are rarely started, so a stale import would go unnoticed."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / "reliability"


@pytest.mark.parametrize("name", sorted(file.stem for file in FOLDER.rglob("*.py")))
def test_a_script_can_be_imported(name: str) -> None:
    import_module(name)
