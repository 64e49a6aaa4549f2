"""The subpackages: what each may import, how many files it may hold, and how light an import stays."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from command_line import printed_by

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "playerfl"

FOUNDATIONS = {"errors", "version", "seeding", "weights", "time_left", "wording"}
"""Top-level modules that every subpackage may import. They import only each other."""

KERNEL = {"layers", "data", "learning", "federation", "algorithms", "engine"}
MAY_IMPORT: dict[str, set[str]] = {
    # the kernel, from the inside out
    "layers": set(),
    "data": {"storage"},
    "learning": {"layers", "data"},
    "federation": {"learning", "layers", "data"},
    "algorithms": {"federation", "learning", "layers", "data"},
    "engine": {"algorithms", "federation", "learning", "layers", "data"},
    # what a run needs
    "storage": set(),
    "listeners": set(),
    "models": set(),
    "paper.facts": set(),
    "tasks": {"paper.facts", "models", "data", "learning", "layers"},
    "runs": {"tasks", "storage", "paper.facts", *KERNEL},
    # around runs
    "report": {"runs", "storage", "paper", "paper.facts", "layers"},
    "export": {"runs", "report", "tasks", "storage", *KERNEL},
    "probe": {"runs", "report", "tasks", "storage", *KERNEL},
    "studies": {"runs", "report", "tasks", "storage", "paper.facts", *KERNEL},
    "live": {"studies", "report", "runs", "listeners"},
    "flower": {"runs", "tasks", "storage", "listeners", *KERNEL},
    "paper": {"report", "probe", "storage", "layers", "paper.facts"},
    "analysis": {"probe", "runs", "report", "tasks", "storage", *KERNEL},
    "observers": {"runs", "report", "storage", "layers"},
    "integrations": {"layers"},
    "selftest": {"runs", "tasks", "storage", "models", *KERNEL},
}
"""Each subpackage may also import itself and the foundations. `cli` may import everything; nothing imports `cli`."""

EXCEPTIONS = {
    ("studies/api.py", "cli"): "`playerfl.study` shows the same progress as `playerfl study`, imported when called"
}

MOST_MODULES_AT_THE_TOP = 9
MOST_FILES_IN_A_FOLDER = 15
MOST_WORDS_IN_THE_GLOSSARY = 15


def room_of(module: str) -> str:
    """The subpackage of a dotted name in `playerfl`. The paper's facts import nothing, so they count as one.

    >>> room_of("paper.facts"), room_of("engine.loop"), room_of("weights")
    ('paper.facts', 'engine', 'weights')
    """
    return "paper.facts" if module.startswith("paper.facts") else module.partition(".")[0]


def imports(file: Path) -> Iterator[str]:
    """Names in `playerfl` that a file imports, at its top or inside functions."""
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "playerfl":
            for alias in node.names:
                yield f"{node.module}.{alias.name}".removeprefix("playerfl.")


@cache
def files_by_room() -> dict[str, list[Path]]:
    files: dict[str, list[Path]] = {}
    for file in SOURCE.rglob("*.py"):
        files.setdefault(room_of(".".join(file.relative_to(SOURCE).with_suffix("").parts)), []).append(file)
    return files


def folders_in(name: str) -> list[Path]:
    return [path for path in (ROOT / name).rglob("*") if path.is_dir() and path.name != "__pycache__"]


@pytest.mark.parametrize("room", MAY_IMPORT)
def test_imports_point_one_way(room: str) -> None:
    allowed = {room, *MAY_IMPORT[room], *FOUNDATIONS}
    for file in files_by_room()[room]:
        name = str(file.relative_to(SOURCE))
        strangers = {other for other in map(room_of, imports(file)) if (name, other) not in EXCEPTIONS} - allowed
        assert not strangers, f"{name} imports {strangers}"


def test_every_folder_is_a_room_and_none_is_crowded() -> None:
    folders = folders_in("src/playerfl")
    rooms = {path.name for path in folders if path.parent == SOURCE}
    assert rooms == {"cli", *(room.partition(".")[0] for room in MAY_IMPORT)}
    assert len(list(SOURCE.glob("*.py"))) <= MOST_MODULES_AT_THE_TOP
    code = [
        path for name in ("tests", "reliability", "benchmarks", "tools") for path in (ROOT / name, *folders_in(name))
    ]
    crowded = [path for path in folders if sum(file.is_file() for file in path.iterdir()) > MOST_FILES_IN_A_FOLDER]
    crowded += [path for path in code if len(list(path.glob("*.py"))) > MOST_FILES_IN_A_FOLDER]
    assert crowded == []


def test_no_two_classes_have_one_name() -> None:
    """Except each framework's callback, which a program imports from one of them."""
    named: dict[str, list[str]] = {}
    for file in SOURCE.rglob("*.py"):
        for node in ast.parse(file.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                named.setdefault(node.name, []).append(str(file.relative_to(SOURCE)))
    assert {name: files for name, files in named.items() if len(files) > 1}.keys() == {"SensitivityCallback"}


def test_docs_show_the_same_rooms_and_a_short_glossary() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    tree = page.partition("src/playerfl/\n")[2].partition("```")[0]
    glossary = page.partition("## Glossary\n")[2].partition("\n## ")[0]
    assert 0 < sum(line.startswith("| **") for line in glossary.splitlines()) <= MOST_WORDS_IN_THE_GLOSSARY
    shown = {line.split()[0].rstrip("/") for line in tree.splitlines() if line.startswith("  ") and line[2] != " "}
    assert {path.name for path in SOURCE.iterdir() if path.is_dir() and path.name != "__pycache__"} <= shown


def test_algorithms_do_not_import_each_other() -> None:
    """Except PLayer-FL's variants: PLayer-FL with another cut, or under another method."""
    shared = {"algorithm", "partial", "private_entries", "fine_tuning"}
    for file in (SOURCE / "algorithms").rglob("*.py"):
        if file.stem not in {"__init__", *shared} and not file.stem.startswith("player_fl_"):
            others = {name.split(".")[-2] for name in imports(file) if name.startswith("algorithms.")}
            assert others <= shared, file.name


@pytest.mark.system
@pytest.mark.parametrize(
    ("statement", "absent"),
    [
        ("import playerfl.cli.main", ["torch", "numpy", "pandas", "matplotlib", "sklearn", "flwr", "cryptography"]),
        (
            "import playerfl; playerfl.run('synthetic', 'player_fl', rounds=1)\n"
            "import playerfl.studies.api, playerfl.probe.measure",
            ["pandas", "matplotlib", "sklearn", "scipy", "ray", "flwr", "transformers", "lightning", "sympy"],
        ),
    ],
    ids=["command line", "a run"],
)
def test_heavy_packages_are_imported_only_when_needed(statement: str, absent: list[str]) -> None:
    check = f"{statement}\nimport sys; print([m for m in {absent} if m in sys.modules])"
    assert printed_by(check) == "[]"
