"""A new user's first steps: the package as pip installs it, and the example loop in an empty folder."""

from __future__ import annotations

import os
import shutil
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
    shutil.copy(ROOT / "examples" / "own_loop.py", folder)
    script = "import playerfl, runpy; print(playerfl.__file__); runpy.run_path('own_loop.py', run_name='__main__')"
    output = subprocess.run(
        [sys.executable, "-c", script],
        cwd=folder, capture_output=True, text=True, timeout=600, env={**os.environ, "PYTHONPATH": str(installed)},
    )  # fmt: skip
    assert output.returncode == 0, output.stderr
    where, _, printed = output.stdout.partition("\n")
    assert str(installed) in where
    assert printed.startswith("share ")
    assert "bytes per site and round each way" in output.stdout
    assert (folder / "recommendation.png").stat().st_size > 10_000
