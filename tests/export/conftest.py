"""One run of two small hospitals and one exported model, shared by all tests of exports."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest

import own_data
from command_line import playerfl
from playerfl.export.write import export_model


@pytest.fixture(scope="session")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A working directory with the folder `hospitals` and a comparison of two algorithms on it, in `runs`."""
    place = tmp_path_factory.mktemp("export")
    own_data.hospitals(place / "hospitals")
    said = playerfl(
        "run", "hospitals", "-a", "local", "-a", "player_fl", "--rounds", 3, "-q", "--out", "runs", cwd=place
    )
    assert said.returncode == 0, said.stderr
    with contextlib.chdir(place):
        export_model("runs/player_fl", "north", "model", onnx="never")
    return place
