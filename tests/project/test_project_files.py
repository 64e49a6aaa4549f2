"""The files beside the code say the same as the code."""

from __future__ import annotations

import re
from pathlib import Path

import playerfl
from documented import PAGES, ROOT


def test_the_citation_and_the_changes_know_this_version() -> None:
    citation = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert f"\nversion: {playerfl.__version__}\n" in citation
    assert "\nlicense: Apache-2.0\n" in citation
    assert "PLayer-FL" in citation
    assert f"\n## {playerfl.__version__}" in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert "Apache License" in (ROOT / "LICENSE").read_text(encoding="utf-8")


def test_no_link_between_pages_is_dead() -> None:
    for page in PAGES:
        for target in re.findall(r"\]\((?!https?:)([^)#\s]+)", page.read_text(encoding="utf-8")):
            assert (page.parent / Path(target)).exists(), f"{page.relative_to(ROOT)} links to {target}"
