"""The page opens in a browser without an error and without the network; test_page_in_browser.py has the rest."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from playerfl.report.write.page import page

from browser import Opened, browser
from made_up_runs import made_up
from playerfl.report.compute.collected import Collected
from playerfl.report.compute.report import build_report

__all__ = ["browser"]


@pytest.mark.slow
def test_the_page_opens(browser: Any, tmp_path: Path) -> None:
    runs = [made_up(name, seed) for name in ("local", "fedavg", "player_fl") for seed in range(2)]
    file = tmp_path / "report.html"
    file.write_text(page(build_report(Collected(runs)), "A report"), encoding="utf-8")
    shown = Opened(browser, file)
    assert shown.text("h1") == "A report"
    assert shown.complaints == []
    assert shown.asked_the_network == []
