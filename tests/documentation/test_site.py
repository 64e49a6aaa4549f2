"""The documentation as pages: made from the code, without a dead link."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import playerfl
from browser import Opened
from site_pages import api_page, commands, commands_page

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
def test_every_command_and_option_is_in_the_reference() -> None:
    page = commands_page()
    for path, command, context in commands():
        assert f"# {path}\n" in page
        for parameter in command.get_params(context):
            for name in parameter.opts if parameter.param_type_name == "option" and not parameter.hidden else ():
                assert name == "--help" or name in page


def test_every_public_name_is_in_the_reference() -> None:
    page = api_page()
    for name in set(playerfl.__all__) - {"__version__"}:
        assert f"| [`{name}`][" in page
        assert f".{name}\n    options" in page


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The built pages; a warning is an error."""
    pytest.importorskip(
        "mkdocstrings", reason="the documentation's tools are not installed; pip install 'playerfl[docs]'"
    )
    place = tmp_path_factory.mktemp("built") / "site"
    output = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", place],
        cwd=ROOT, env={**os.environ, "NO_MKDOCS_2_WARNING": "1"}, capture_output=True, text=True, timeout=600,
    )  # fmt: skip
    assert output.returncode == 0, output.stdout + output.stderr
    return place


@pytest.mark.system
def test_the_reference_links_names_and_has_examples(site: Path) -> None:
    reference = (site / "reference" / "api.html").read_text(encoding="utf-8")
    assert 'href="#playerfl.runs.api.run"' in reference
    assert "&gt;&gt;&gt; " in reference


# The theme's own script makes these: a box around each wide table, and one around each button that copies.
_OF_THE_THEME = {"scrollable-region-focusable", "landmark-unique"}


@pytest.mark.system
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_pages_can_be_read_by_everybody(site: Path, browser: Any, scheme: Any) -> None:
    """Links and comments in code were too faint, and the search had no name."""
    axe = pytest.importorskip("axe_playwright_python", reason="needs axe: pip install 'playerfl[dev]'")
    script = (Path(axe.__file__).parent / "axe.min.js").read_text(encoding="utf-8")
    for page in ("index", "commands", "which-layers", "reference/api"):
        opened = Opened(browser, "about:blank", width=1400)
        opened.page.emulate_media(color_scheme=scheme)
        opened.page.goto((site / f"{page}.html").as_uri())
        violations = opened.run(f"() => {{ {script}; return axe.run().then(r => r.violations); }}")
        found = {v["id"]: [node["target"] for node in v["nodes"]][:3] for v in violations}
        assert {name: nodes for name, nodes in found.items() if name not in _OF_THE_THEME} == {}
        opened.page.close()


@pytest.mark.system
def test_the_site_works_from_disk_search_included(site: Path, browser: Any) -> None:
    """Links led to listings of folders, and the search was hidden, unless a server was started."""
    opened = Opened(browser, site / "index.html", width=1400)
    opened.page.get_by_role("link", name="Glossary", exact=True).first.click()
    assert opened.page.url.endswith("/glossary.html")
    opened.page.get_by_role("textbox", name="Search").fill("incentive")
    opened.page.locator(".md-search-result__item").first.wait_for()
    assert opened.asked_the_network == []
