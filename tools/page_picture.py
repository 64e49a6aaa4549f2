"""A picture of a report's first screen: `python tools/page_picture.py REPORT.html PICTURE.png`. Needs Chromium."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path
from typing import Any

WIDTH, HEIGHT = 1400, 760
_NAMES = ("chromium", "chromium-browser", "google-chrome")


def installed_chromium() -> str | None:
    """The browser that is installed, or that PLAYERFL_CHROMIUM names; nothing is downloaded."""
    return os.environ.get("PLAYERFL_CHROMIUM") or next((path for name in _NAMES if (path := shutil.which(name))), None)


def first_screen(browser: Any, report: Path, picture: Path) -> None:
    """What a reader sees first in a window of 1400 pixels, without the folded parts."""
    page = browser.new_page(viewport={"width": WIDTH, "height": HEIGHT}, color_scheme="light")
    page.goto(report.resolve().as_uri())
    bottom = page.locator("#summary").bounding_box()
    page.screenshot(
        path=picture, clip={"x": 0, "y": 0, "width": WIDTH, "height": min(HEIGHT, bottom["y"] + bottom["height"])}
    )
    page.close()


def main() -> None:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as driver:
        started = driver.chromium.launch(executable_path=installed_chromium(), args=["--no-sandbox"])
        first_screen(started, Path(sys.argv[1]), Path(sys.argv[2]))
        started.close()


if __name__ == "__main__":
    main()
