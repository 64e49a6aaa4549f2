"""The documentation as pages: made from the code, without a dead link."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import playerfl
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


@pytest.mark.system
def test_the_site_builds_without_a_warning(tmp_path: Path) -> None:
    pytest.importorskip(
        "mkdocstrings", reason="the documentation's tools are not installed; pip install 'playerfl[docs]'"
    )
    said = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", tmp_path / "site"],
        cwd=ROOT, env={**os.environ, "NO_MKDOCS_2_WARNING": "1"}, capture_output=True, text=True, timeout=600,
    )  # fmt: skip
    assert said.returncode == 0, said.stdout + said.stderr
    reference = (tmp_path / "site" / "reference" / "api" / "index.html").read_text(encoding="utf-8")
    assert 'href="#playerfl.runs.api.run"' in reference
    assert "&gt;&gt;&gt; " in reference
