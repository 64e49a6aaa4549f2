"""kill -9 at random moments, then resume: the files end up as if nothing had happened."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from killing import contents, kill_and_resume, run_or_resume, undisturbed

RUN = ["run", "synthetic", "-a", "local", "-a", "player_fl", "--rounds", "40", "-q", "--set", "training.batch_size=4"]
KILLS = 30


@pytest.mark.system
def test_killed_at_random_moments_a_run_ends_bit_for_bit_the_same(tmp_path: Path) -> None:
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    seconds = undisturbed([*RUN, "--out", str(whole)])
    # Short enough that thirty kills fall within one run, long enough to get through a round.
    kills = kill_and_resume(lambda: run_or_resume(RUN, broken), 2.5 * seconds / KILLS, KILLS, random.Random(20261115))
    assert kills >= 10
    assert contents(broken) == contents(whole)


@pytest.mark.system
def test_ctrl_c_leaves_a_run_that_can_be_resumed_and_says_how(tmp_path: Path) -> None:
    out = tmp_path / "o"
    command = [sys.executable, "-m", "playerfl.cli.main", "run", "synthetic", "--rounds", "5000", "--out", str(out)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr
        process.stderr.readline()
        process.send_signal(signal.SIGINT)
        text = process.communicate(timeout=60)[1]
    assert process.returncode == 130
    assert f"continue with  playerfl run --resume {out}" in text
    assert "Traceback" not in text
    assert (out / "checkpoint.safetensors").exists()
