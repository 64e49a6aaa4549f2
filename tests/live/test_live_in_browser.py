"""The live page in a real browser: it refreshes by itself, shows the report, and asks nobody else for anything."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from browser import Opened
from command_line import playerfl
from playerfl.live.server import LiveServer, serving

pytestmark = pytest.mark.system


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("live")
    small = ("--set", "data.rows=60", "--set", "data.sites=2", "--rounds", "6", "-q", "--out", "two")
    assert playerfl("run", "synthetic", "-a", "local", "-a", "fedavg", *small, cwd=place).returncode == 0
    return place / "two"


@pytest.mark.parametrize("width", [1400, 390])
def test_the_page_follows_a_run_to_its_report(browser: Any, home: Path, tmp_path: Path, width: int) -> None:
    ending = tmp_path / "finished.json"
    shutil.move(home / "fedavg" / "finished.json", ending)
    with serving(LiveServer(home, "playerfl: two")) as server:
        opened = Opened(browser, server.address, width=width)
        page = opened.page
        page.wait_for_selector("text=1 of 2 finished")
        assert page.locator("svg[role=img]").count() == 2
        assert "validation loss" in page.locator("#status").inner_text()
        page.wait_for_selector("iframe#report:not([hidden])")
        shutil.move(ending, home / "fedavg" / "finished.json")
        page.wait_for_selector("text=Everything has finished", timeout=15_000)
        page.wait_for_function("document.getElementById('report').src.endsWith('runs=2')", timeout=15_000)
        inside = page.frame_locator("#report")
        inside.locator("h1").wait_for(timeout=20_000)
        assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
        assert opened.complaints == []
        assert all(url.startswith((server.address, "data:")) for url in opened.requests)
        page.close()


def test_the_page_says_when_the_command_has_ended(browser: Any, home: Path) -> None:
    with serving(LiveServer(home, "playerfl: two")) as server:
        opened = Opened(browser, server.address)
        opened.page.wait_for_selector("text=Everything has finished")
    opened.run("() => { for (let i = 0; i < 3; i++) refresh(); }")
    opened.page.wait_for_selector("text=the command has ended", timeout=15_000)
    opened.page.close()


def test_axe_finds_nothing(browser: Any, home: Path) -> None:
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="needs axe: pip install 'playerfl[dev]'")
    with serving(LiveServer(home, "playerfl: two")) as server:
        opened = Opened(browser, server.address)
        opened.page.wait_for_selector("text=Everything has finished")
        found = axe.Axe().run(opened.page, context="#status")
        assert found.violations_count == 0, found.generate_report()
        opened.page.close()
