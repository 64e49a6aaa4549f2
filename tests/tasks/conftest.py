from __future__ import annotations

from pathlib import Path

import pytest

from own_data import hospitals


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with the tables of two sites; modules about other data replace it."""
    return hospitals(tmp_path / "hospitals")
