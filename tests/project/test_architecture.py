"""Imports point one way, and importing the package stays light."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[2] / "src" / "playerfl"

# Each room may import itself, the rooms named here, and the foundations.
FOUNDATIONS = {"errors", "version", "seeding", "time_left", "weights"}
KERNEL = {"layers", "data", "learning", "federation", "algorithms", "engine"}
MAY_IMPORT = {
    "layers": set(),
    "storage": set(),
    "data": {"storage"},
    "paper.facts": set(),
    "models": set(),
    "learning": {"layers", "data"},
    "federation": {"learning", "layers", "data"},
    "algorithms": {"federation", "learning", "layers", "data"},
    "engine": {"algorithms", "federation", "learning", "layers", "data"},
    "tasks": {"paper.facts", "models", "data", "learning", "layers"},
    "runs": {"tasks", "storage", "paper.facts", *KERNEL},
    "report": {"runs", "storage", "paper", "paper.facts", "layers"},
    "probe": {"runs", "report", "tasks", "storage", *KERNEL},
    "studies": {"runs", "report", "tasks", "storage", "paper.facts", "cli", *KERNEL},
    "flower": {"runs", "tasks", "storage", *KERNEL},
    "paper": {"report", "probe", "storage", "layers", "paper.facts"},
    "analysis": {"probe", "runs", "report", "tasks", "storage", *KERNEL},
    "observers": {"runs", "report", "storage", "layers"},
    "integrations": {"layers"},
}


def imported_rooms(file: Path) -> set[str]:
    rooms = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("playerfl"):
            names = [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
            if any(name.startswith("playerfl.paper.facts") for name in names):
                rooms.add("paper.facts")
            else:
                rooms.add((node.module + "." + node.names[0].name).split(".")[1])
    return rooms


def room_of(file: Path) -> str:
    """A folder of the package; what the paper prints is a room of its own, since it knows nothing else."""
    parts = file.relative_to(SOURCE).with_suffix("").parts
    return "paper.facts" if parts[:2] == ("paper", "facts") else parts[0]


@pytest.mark.parametrize("room", MAY_IMPORT)
def test_imports_point_one_way(room: str) -> None:
    for file in SOURCE.rglob("*.py"):
        if room_of(file) == room:
            strangers = imported_rooms(file) - {room} - MAY_IMPORT[room] - FOUNDATIONS
            assert not strangers, f"{file.relative_to(SOURCE)} imports {strangers}"


def test_every_folder_is_a_room_and_none_is_crowded() -> None:
    folders = [path for path in [SOURCE, *SOURCE.rglob("*")] if path.is_dir() and path.name != "__pycache__"]
    rooms = {path.name for path in SOURCE.iterdir() if path in folders}
    assert rooms - {"cli"} <= {room.split(".")[0] for room in MAY_IMPORT}
    assert len(list(SOURCE.glob("*.py"))) <= 9
    crowded = {str(folder): len(list(folder.glob("*.py"))) for folder in folders}
    assert {folder: number for folder, number in crowded.items() if number > 15} == {}


def test_algorithms_do_not_import_each_other() -> None:
    """But for PLayer-FL's variants, which are PLayer-FL with another cut or under another method."""
    shared = {"__init__", "algorithm", "partial", "tuning"}
    for file in (SOURCE / "algorithms").rglob("*.py"):
        if file.stem in shared or file.stem.startswith("player_fl_"):
            continue
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("playerfl.algorithms"):
                assert (node.module or "").rpartition(".")[2] in shared, file.name


@pytest.mark.parametrize(
    ("statement", "absent"),
    [
        ("import playerfl.cli.main", ["torch", "numpy", "pandas", "matplotlib", "sklearn", "flwr", "cryptography"]),
        (
            "import playerfl.studies.api, playerfl.probe.measure, playerfl.runs.api",
            ["pandas", "matplotlib", "sklearn", "scipy", "ray", "flwr", "transformers", "lightning", "torch._dynamo"],
        ),
        ("import playerfl; playerfl.run('synthetic', 'player_fl', rounds=1)", ["pandas", "sklearn", "torch._dynamo"]),
    ],
)
def test_heavy_packages_are_imported_only_when_needed(statement: str, absent: list[str]) -> None:
    check = f"{statement}; import sys; print([m for m in {absent} if m in sys.modules])"
    said = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, check=True)
    assert said.stdout.strip() == "[]"
