"""No dead link: files and headings that the documentation points to exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from documented import PAGES, ROOT
from notebooks import TUTORIALS

GENERATED = {"reference/commands.md", "reference/settings.md", "reference/api.md", "reference/modules.md"}
"""Pages of the site that tools/site_pages.py makes."""


def without_code(page: str) -> str:
    return re.sub(r"^```.*?^```$|`[^`\n]*`", "", page, flags=re.MULTILINE | re.DOTALL)


def anchors(page: str) -> set[str]:
    """The anchors of a page's headings, as mkdocs and GitHub make them.

    >>> sorted(anchors("# A page\\n\\n## `[data]` of X, too\\n"))
    ['a-page', 'data-of-x-too']
    """
    headings = re.findall(
        r"^#+ (.+)$", re.sub(r"^```.*?^```$", "", page, flags=re.MULTILINE | re.DOTALL), flags=re.MULTILINE
    )
    return {re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "", heading).strip().lower()) for heading in headings}


def problems(file: Path) -> list[str]:
    found = []
    text = file.read_text(encoding="utf-8")
    for target in re.findall(r"\]\(([^)\s]+)\)", without_code(text)):
        if re.match(r"[a-z]+:", target):
            continue
        path, _, anchor = target.partition("#")
        if path in GENERATED:
            continue
        there = file if not path else (file.parent / path).resolve()
        if not there.exists():
            found.append(f"{target}: there is no {path}")
        elif anchor and anchor not in anchors(there.read_text(encoding="utf-8")):
            found.append(f"{target}: there is no heading #{anchor}")
    return found


@pytest.mark.parametrize("file", PAGES, ids=lambda file: str(file.relative_to(ROOT)))
def test_every_link_leads_somewhere(file: Path) -> None:
    assert problems(file) == []


def test_dead_links_are_found(tmp_path: Path) -> None:
    (tmp_path / "other.md").write_text("# Title\n\n## A part\n")
    page = tmp_path / "page.md"
    page.write_text(
        "# P\n[a](other.md#a-part) [b](other.md#gone) [c](gone.md) [d](#p) [e](#q) `[f](gone.md)`\n![g](no.png)"
    )
    assert [problem.partition(":")[0] for problem in problems(page)] == ["other.md#gone", "gone.md", "#q", "no.png"]


def test_every_picture_is_used() -> None:
    text = "\n".join(page.read_text(encoding="utf-8") for page in PAGES)
    assert [picture.name for picture in (ROOT / "docs" / "images").iterdir() if picture.name not in text] == []


@pytest.mark.parametrize("page", sorted((ROOT / "docs").glob("*.md")), ids=lambda page: page.name)
def test_every_page_is_in_the_navigation(page: Path) -> None:
    assert f": {page.name}\n" in (ROOT / "mkdocs.yml").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", TUTORIALS.values())
def test_a_notebook_links_to_pages_that_exist(name: str) -> None:
    text = (ROOT / "examples" / name).read_text(encoding="utf-8")
    for target in re.findall(r"\]\((\.\./docs/[\w-]+\.md)", text):
        assert (ROOT / "examples" / target).exists(), target
