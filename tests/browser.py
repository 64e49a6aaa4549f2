"""A real browser for tests: Debian's Chromium, driven by Playwright. Nothing is downloaded."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from page_picture import installed_chromium

_HOW = "needs a browser: apt-get install chromium, or set PLAYERFL_CHROMIUM to an installed one"


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    playwright = pytest.importorskip("playwright.sync_api", reason="needs playwright: pip install 'playerfl[dev]'")
    path = installed_chromium()
    if path is None:
        pytest.skip(_HOW)
    with playwright.sync_playwright() as driver:
        # Chromium's sandbox refuses to run as root; the pages are our own.
        started = driver.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield started
        started.close()


class Opened:
    """A page that has been opened from a file or an address, and everything it complained about or requested."""

    def __init__(self, browser: Any, file: Path | str, width: int = 1280, height: int = 900) -> None:
        self.complaints: list[str] = []
        self.requests: list[str] = []
        self.page = browser.new_page(viewport={"width": width, "height": height})
        self.page.on("console", lambda told: self.complaints.append(f"{told.type}: {told.text}"))
        self.page.on("pageerror", lambda problem: self.complaints.append(str(problem)))
        self.page.on("dialog", lambda dialog: (self.complaints.append(f"dialog: {dialog.message}"), dialog.dismiss()))
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.goto(file.as_uri() if isinstance(file, Path) else file)

    def unfold(self) -> Opened:
        """Opens every folded part of a report."""
        self.page.evaluate("() => document.querySelectorAll('details').forEach((part) => { part.open = true; })")
        return self

    def text(self, selector: str) -> str:
        return str(self.page.locator(selector).inner_text())

    def run(self, script: str, argument: Any = None) -> Any:
        return self.page.evaluate(script, argument)

    @property
    def asked_the_network(self) -> list[str]:
        return [url for url in self.requests if not url.startswith(("file:", "data:"))]
