"""Dependencies: each is used and licensed, an upper bound has a reason; what the audit prints."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

from packaging.requirements import Requirement

import audit
import licences

ROOT = Path(__file__).parents[2]
PROJECT = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
CORE = [Requirement(line) for line in tomllib.loads(PROJECT)["project"]["dependencies"]]

MODULES = {
    "torch": "torch", "numpy": "numpy", "pandas": "pandas", "pydantic": "pydantic", "rich": "rich",
    "safetensors": "safetensors", "scipy": "scipy", "tomli-w": "tomli_w", "typer": "typer",
    "typing-extensions": "typing_extensions",
}  # fmt: skip
"""What each is imported as."""


def test_every_dependency_is_in_the_list_with_its_licence() -> None:
    listed = licences.rows_of(licences.PAGE.read_text(encoding="utf-8"))
    asked = licences.dependencies()
    assert listed.keys() == asked.keys()
    for name, groups in asked.items():
        if licences.is_installed(name):
            expected = f"| {name} | {licences.licence_of(name)} | {', '.join(groups)} |"
            assert listed[name] == expected, "run make licences"
    assert not [row for row in listed.values() if "not stated" in row]


def test_what_every_installation_brings_is_imported() -> None:
    source = "\n".join(file.read_text(encoding="utf-8") for file in (ROOT / "src").rglob("*.py"))
    imported = set(re.findall(r"^\s*(?:import|from) (\w+)", source, flags=re.MULTILINE))
    assert MODULES.keys() == {needed.name for needed in CORE}
    assert not [name for name, module in MODULES.items() if module not in imported]


def test_an_upper_bound_has_its_reason_in_the_line_above() -> None:
    lines = PROJECT.partition("[project.scripts]")[0].splitlines()
    bound = [number for number, line in enumerate(lines) if re.search(r'"[\w\[\],.-]+[^"]*(?:<|==|~=)\d', line)]
    assert [lines[number].partition(" ")[0] for number in bound] == ["flower"]
    assert all(lines[number - 1].startswith("#") for number in bound)


def test_the_audit_says_when_nothing_was_looked_up() -> None:
    skipped = {"name": "torch", "version": "2", "skip_reason": "not found"}
    assert audit.verdict(None) == audit.verdict([]) == audit.verdict([skipped]) == (audit.UNREACHABLE, -1)
    clean = {"name": "rich", "version": "14", "vulns": []}
    known = {"name": "old", "version": "1", "vulns": [{"id": "CVE-1", "fix_versions": ["2"]}]}
    assert audit.verdict([clean, skipped])[0].splitlines() == [
        "Not in the database: torch.",
        "No known vulnerability in 1 package.",
    ]
    sentences, count = audit.verdict([clean, known])
    assert count == 1
    assert sentences.splitlines() == ["old 1: CVE-1, fixed in 2", "1 known vulnerability in 2 packages."]
