"""README's table, cut and picture are those of `make demo`."""

from __future__ import annotations

import json
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

README = (ROOT / "README.md").read_text(encoding="utf-8")
NAMES = {"local": "Local", "fedavg": "FedAvg", "player_fl": "PLayer-FL"}


def check_row(run: dict[str, Any]) -> None:
    """Compares a row of README's table with a run. AVX-512, AVX2 and plain SSE round differently, and a difference in
    the last bit grows during training, so scores need only agree to a point or two."""
    (row,) = re.findall(rf"^\| {NAMES[run['algorithm']]} \| (\d+) % \| (0\.\d\d) \| (.+) \|$", README, re.MULTILINE)
    accuracy, worst = run["average"]["accuracy"], min(scores["f1"] for scores in run["sites"].values())
    assert float(row[0]) == pytest.approx(100 * accuracy, abs=1.5)
    assert float(row[1]) == pytest.approx(worst, abs=0.02)
    assert row[2] == (f"{run['bytes_up'] / 1e6:.1f} MB" if run["bytes_up"] else "nothing")


@pytest.mark.system
def test_readme_shows_what_the_demo_finds(tmp_path: Path) -> None:
    recipe = subprocess.run(["make", "-n", "demo"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    (command,) = re.findall(r"bin/playerfl (run .*)", recipe)
    demo = playerfl(*shlex.split(command), "--json", "-q", cwd=tmp_path)
    assert demo.returncode == 0, demo.stderr
    runs = json.loads(demo.stdout)["runs"]
    assert [run["algorithm"] for run in runs] == list(NAMES)
    for run in runs:
        check_row(run)
    cut = runs[-1]["cut"]
    assert cut["federated"] == ["conv1", "conv2", "conv3"]
    assert f"{cut['ratios'][2]:.0f}-fold at `fc1`" in README
    drawn, shown = (
        np.asarray(Image.open(file).convert("L"), dtype=float)
        for file in (tmp_path / "runs" / "demo" / "comparison.png", ROOT / "docs" / "images" / "demo.png")
    )
    # A mean of a method in the legend may differ in its last digit, which is a tenth of this.
    assert drawn.shape == shown.shape
    assert np.abs(drawn - shown).mean() < 1.5, "cp runs/demo/comparison.png docs/images/demo.png after make demo"
