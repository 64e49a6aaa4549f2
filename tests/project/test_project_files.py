"""The files alongside the code agree with the code."""

from __future__ import annotations

import re

import playerfl
from documented import PAGES, ROOT

FOLDERS = ("src", "tests", "reliability", "benchmarks", "tools", "examples")
MADE_UP = re.compile(r"[A-Z]+\.py$|^(mine|mixed_head|mytask|mymodule|mymodel)\.py$")
"""Names in the documentation that stand for a reader's files."""


def test_citation_and_change_log_have_this_version() -> None:
    citation = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert f"\nversion: {playerfl.__version__}\n" in citation
    assert "\nlicense: Apache-2.0\n" in citation
    assert "PLayer-FL" in citation
    assert f"\n## {playerfl.__version__}" in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert "Apache License" in (ROOT / "LICENSE").read_text(encoding="utf-8")


def test_modules_that_pages_name_exist() -> None:
    files = {f"/{file.relative_to(ROOT)}" for folder in FOLDERS for file in (ROOT / folder).rglob("*.py")}
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        paths = [name for name in re.findall(r"`([\w/]+\.py)(?::\w+)?`", text) if not MADE_UP.search(name)]
        if page.name != "CHANGELOG.md":  # which names modules that have moved
            modules = {name.rpartition(".")[0] for name in re.findall(r"`(playerfl\.[a-z_]+\.[\w.]+)\b`", text)}
            paths += [f"{name.replace('.', '/')}" for name in modules if name.count(".") > 1]
        for name in paths:
            known = (f"/{name}", f"/{name}.py", f"/{name}/__init__.py")
            assert any(file.endswith(known) for file in files), f"{page.name} names {name}"
