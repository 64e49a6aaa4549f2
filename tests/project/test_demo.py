"""README's table, cut and picture are those of `make demo`."""

from __future__ import annotations

import re
import shlex
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from command_line import playerfl
from documented import ROOT
from page_picture import first_screen
from playerfl.report.compute.report import Report, build_report
from playerfl.studies.collecting import collect

README = (ROOT / "README.md").read_text(encoding="utf-8")
# AVX-512, AVX2 and plain SSE round differently, and a difference in the last bit grows during training: over three runs
# on each of them, medians differed by up to 2.4 points. So numbers need only agree to 5 points and one site, and the
# order of the methods, the cut and the traffic exactly.
POINTS = 5.0
SITES = 1


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The demo's folder after the commands of its recipe."""
    place = tmp_path_factory.mktemp("demo")
    recipe = subprocess.run(["make", "-n", "demo"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    commands = re.findall(r"bin/playerfl (.*) >/dev/null", recipe)
    assert [command.split()[0] for command in commands] == ["run", "run", "run", "report"]
    for command in commands:
        done = playerfl(*shlex.split(command), cwd=place)
        assert done.returncode == 0, done.stderr
    assert "first look, not a result" in done.stderr
    return place / "runs" / "demo"


@pytest.fixture(scope="module")
def computed(demo: Path) -> Report:
    return build_report(collect(demo))


def row_of(name: str) -> list[str]:
    (row,) = re.findall(rf"^\| {re.escape(name)} \|(.+)\|$", README, re.MULTILINE)
    return [cell.strip() for cell in row.split("|")]


@pytest.mark.system
def test_readme_shows_what_the_demo_finds(computed: Report) -> None:
    table = computed.table("f1")
    assert table is not None
    assert table.tasks == ("digits",)
    sent = {cost.algorithm: cost.up for cost in computed.costs}
    scores = {name: 100 * table.cells[name, "digits"].value for name in table.algorithms}
    for name, score in scores.items():
        printed, worse, traffic = row_of(name)
        assert float(printed.split()[0]) == pytest.approx(score, abs=POINTS)
        assert traffic == (f"{sent[name] / 1e6:.1f} MB" if sent[name] else "nothing")
        sites = computed.site_table("digits", name, "f1")
        assert sites is not None
        harmed = sum(row.harmed for row in sites.rows)
        assert (worse == "–") == (name == "Local")
        assert name == "Local" or abs(int(worse.split()[0]) - harmed) <= SITES
    shown = re.findall(r"^\| (\S+) \| [\d.]+ %", README, re.MULTILINE)
    assert shown == sorted(scores, key=lambda name: scores[name])


@pytest.mark.system
def test_the_cut_is_that_of_the_readme(computed: Report) -> None:
    (scores,) = computed.layer_scores
    assert set(scores.cuts.values()) == {3}
    assert scores.layers == ("conv1", "conv2", "conv3", "fc1", "fc2")
    assert "shares the three convolutions and keeps the two linear layers private" in " ".join(README.split())


@pytest.mark.system
def test_readmes_picture_is_the_first_screen_of_the_demo(demo: Path, browser: Any, tmp_path: Path) -> None:
    first_screen(browser, demo / "report" / "report.html", tmp_path / "drawn.png")
    # At this size, letters are a blur: fonts may differ, but not what is drawn where.
    drawn, shown = (
        np.asarray(Image.open(file).convert("L").resize((70, 35)), dtype=float)
        for file in (tmp_path / "drawn.png", ROOT / "docs" / "images" / "demo.png")
    )
    hint = "after make demo: python tools/page_picture.py runs/demo/report/report.html docs/images/demo.png"
    assert np.abs(drawn - shown).mean() < 6, hint
