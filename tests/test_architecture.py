"""Imports point one way, and importing the package stays light."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[1] / "src" / "playerfl"

MAY_IMPORT = {
    "layers": {"layers", "weights", "errors"},
    "data": {"data", "errors", "seeding"},
    "paper": {"paper"},
    "models": {"models"},
    "learning": {"learning", "layers", "data", "weights", "seeding", "errors"},
    "federation": {"federation", "learning", "layers", "data", "weights", "seeding", "errors"},
    "algorithms": {"algorithms", "federation", "learning", "layers", "data", "weights", "seeding", "errors"},
    "engine": {"engine", "algorithms", "federation", "learning", "layers", "data", "weights", "seeding", "errors"},
    "flower": {
        *("flower", "engine", "algorithms", "federation", "learning", "layers", "data", "tasks", "weights", "errors"),
        *("experiment", "ground", "single_run", "running", "results", "run_directory", "environment", "version"),
        "atomic_files",
    },
    "tasks": {"tasks", "paper", "models", "data", "learning", "layers", "weights", "seeding", "errors"},
    "report": {"report", "results", "paper", "layers", "errors", "version", "atomic_files"},
    "studies": {
        "studies", "report", "results", "paper", "running", "single_run", "ground", "experiment", "environment",
        "locking", "tasks", "algorithms", "engine", "learning", "layers", "data", "weights", "errors",
        "atomic_files", "stored_result",
    },
    "analysis": {
        *("analysis", "probing", "running", "single_run", "ground", "experiment", "results", "report", "tasks"),
        *("engine", "algorithms", "federation", "learning", "layers", "data", "weights", "seeding", "errors"),
        "atomic_files",
    },
    "observers": {"observers", "single_run", "report", "layers", "errors", "atomic_files"},
    "integrations": {"integrations", "layers", "errors"},
}  # fmt: skip


def imported_rooms(file: Path) -> set[str]:
    rooms = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("playerfl"):
            parts = node.module.split(".")
            rooms |= {parts[1]} if len(parts) > 1 else {alias.name for alias in node.names}
    return rooms


@pytest.mark.parametrize("room", MAY_IMPORT)
def test_imports_point_one_way(room: str) -> None:
    for file in (SOURCE / room).rglob("*.py"):
        strangers = imported_rooms(file) - MAY_IMPORT[room]
        assert not strangers, f"{file.relative_to(SOURCE)} imports {strangers}"


def test_algorithms_do_not_import_each_other() -> None:
    """But for PLayer-FL's variants, which are PLayer-FL with another cut or under another method."""
    shared = {"__init__", "algorithm", "partial", "tuning"}
    for file in (SOURCE / "algorithms").glob("*.py"):
        if file.stem in shared or file.stem.startswith("player_fl_"):
            continue
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("playerfl.algorithms"):
                assert (node.module or "").rpartition(".")[2] in shared, file.name


@pytest.mark.parametrize(
    ("statement", "absent"),
    [
        ("import playerfl.cli", ["torch", "numpy", "pandas", "matplotlib", "sklearn", "flwr", "cryptography"]),
        (
            "import playerfl.studies.conduct, playerfl.probing, playerfl.running",
            ["pandas", "matplotlib", "sklearn", "scipy", "ray", "flwr", "transformers", "lightning", "torch._dynamo"],
        ),
        ("import playerfl; playerfl.run('synthetic', 'player_fl', rounds=1)", ["pandas", "sklearn", "torch._dynamo"]),
    ],
)
def test_heavy_packages_are_imported_only_when_needed(statement: str, absent: list[str]) -> None:
    check = f"{statement}; import sys; print([m for m in {absent} if m in sys.modules])"
    said = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, check=True)
    assert said.stdout.strip() == "[]"
