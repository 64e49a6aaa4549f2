"""What is built is what runs: wheel and source archive, each in a new environment outside the checkout."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
pytestmark = [pytest.mark.system, pytest.mark.long]

SHIPPED = [
    "playerfl/py.typed",
    "playerfl/paper/facts.json",
    "playerfl/tasks/bundled/files/digits.csv.gz",
    "playerfl/tasks/bundled/files/digits-licence.txt",
    "playerfl/report/assets/page.html",
    "playerfl/report/assets/page.css",
    "playerfl/report/assets/scripts/page.js",
    "playerfl/flower/deploy/nginx.conf",
    "playerfl/flower/deploy/playerfl-agent.service",
    "playerfl/flower/deploy/playerfl-node.service",
]


def said_by(*command: object, cwd: Path) -> str:
    # The checkout must not be found through environment variables.
    variables = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "PIP_"))}
    output = subprocess.run([*map(str, command)], cwd=cwd, env=variables, capture_output=True, text=True, timeout=600)
    assert output.returncode == 0, output.stdout + output.stderr
    return output.stdout


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Both distributions, built from a copy, so that nothing is left in the checkout."""
    place = tmp_path_factory.mktemp("built")
    source = place / "source"
    source.mkdir()
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    shutil.copytree(ROOT / "src", source / "src", ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
    said_by(sys.executable, "-m", "build", "--no-isolation", "--outdir", place, source, cwd=place)
    (wheel,), (archive,) = place.glob("*.whl"), place.glob("*.tar.gz")
    return {"wheel": wheel, "source archive": archive}


def test_both_hold_the_files_that_are_no_python(built: dict[str, Path]) -> None:
    with zipfile.ZipFile(built["wheel"]) as wheel:
        in_wheel = wheel.namelist()
    assert not set(SHIPPED) - set(in_wheel)
    assert any(name.endswith("licenses/LICENSE") for name in in_wheel)
    assert not [name for name in in_wheel if not name.startswith(("playerfl/", "playerfl-"))]
    with tarfile.open(built["source archive"]) as archive:
        in_archive = {name.partition("/")[2] for name in archive.getnames()}
    assert not {f"src/{name}" for name in SHIPPED} - in_archive
    assert {"README.md", "LICENSE", "pyproject.toml"} <= in_archive


@pytest.mark.parametrize("kind", ["wheel", "source archive"])
def test_it_installs_and_runs_in_a_bare_environment(kind: str, built: dict[str, Path], tmp_path: Path) -> None:
    venv.create(tmp_path / "bare", with_pip=True)
    python = tmp_path / "bare" / "bin" / "python"
    site = Path(said_by(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))", cwd=tmp_path).strip())
    # torch and the other dependencies are used where they are already installed: downloading gigabytes would prove
    # nothing more. A checkout installed there stays invisible: Python reads .pth files only in the environment's own
    # folder.
    (site / "elsewhere.pth").write_text(sysconfig.get_path("purelib") + "\n")
    # The setuptools that comes with a new environment is too old to build from source, and would be found first.
    said_by(python, "-m", "pip", "uninstall", "--quiet", "--yes", "setuptools", cwd=tmp_path)
    options = ("--quiet", "--no-deps", "--no-build-isolation", "--disable-pip-version-check")
    said_by(python, "-m", "pip", "install", *options, "--force-reinstall", built[kind], cwd=tmp_path)
    command = tmp_path / "bare" / "bin" / "playerfl"
    where = said_by(python, "-c", "import playerfl; print(playerfl.__file__)", cwd=tmp_path).strip()
    assert Path(where).is_relative_to(tmp_path / "bare")
    assert said_by(command, "--version", cwd=tmp_path).startswith("playerfl ")
    text = said_by(command, "run", "digits", "-a", "local", "-a", "player_fl", "--rounds", 2, "--json", cwd=tmp_path)
    assert [run["algorithm"] for run in json.loads(text)["runs"]] == ["local", "player_fl"]
    said_by(command, "report", "runs", "--out", "page.html", cwd=tmp_path)
    assert "<script" in (tmp_path / "page.html").read_text(encoding="utf-8")
    said_by(command, "flower", "files", "conf", "--home", "lib", "--name", "fl.example.org", cwd=tmp_path)
    assert (tmp_path / "conf" / "nginx.conf").stat().st_size > 0
