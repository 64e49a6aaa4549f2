"""A stranger's path: the package as pip installs it, and the example loop in an empty folder."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.system
def test_an_installed_package_and_a_short_script_give_a_recommendation_and_a_figure(tmp_path: Path) -> None:
    installed, folder = tmp_path / "installed", tmp_path / "folder"
    folder.mkdir()
    options = ("--quiet", "--no-deps", "--no-build-isolation", "--disable-pip-version-check", "--target", installed)
    subprocess.run(
        [sys.executable, "-m", "pip", "install", *options, ROOT],
        check=True,
        capture_output=True,
        text=True,
        timeout=600,
    )
    script = (ROOT / "examples" / "own_loop.py").read_text()
    (folder / "own_loop.py").write_text(script)
    said = subprocess.run(
        [sys.executable, "own_loop.py"],
        cwd=folder, capture_output=True, text=True, timeout=600, env={**os.environ, "PYTHONPATH": str(installed)},
    )  # fmt: skip
    assert said.returncode == 0, said.stderr
    assert said.stdout.startswith("federate ")
    assert "bytes a site and round each way" in said.stdout
    assert (folder / "recommendation.png").stat().st_size > 10_000
    where = subprocess.run(
        [sys.executable, "-c", "import playerfl; print(playerfl.__file__)"],
        cwd=folder, capture_output=True, text=True, check=True, env={**os.environ, "PYTHONPATH": str(installed)},
    )  # fmt: skip
    assert str(installed) in where.stdout
