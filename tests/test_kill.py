"""kill -9 at random moments, then resume: the files end up as if nothing had happened."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from unittest.mock import patch

import pytest

from playerfl import cli, running

RUN = ["run", "synthetic", "-a", "local", "-a", "player_fl", "--rounds", "40", "-q", "--set", "training.batch_size=4"]
NAMES = ("local", "player_fl")
KILLS = 30


def start(arguments: list[str]) -> int:
    """The command in a forked process: it is at work within milliseconds, so a kill can hit any write."""
    child = os.fork()
    if child:
        return child
    silence = os.open(os.devnull, os.O_WRONLY)
    os.dup2(silence, 1)
    os.dup2(silence, 2)
    try:
        with patch.object(sys, "argv", ["playerfl", *arguments]):
            cli.main()
    except SystemExit as left:
        os._exit(left.code if isinstance(left.code, int) else 1)
    finally:
        os._exit(70)


def contents(folder: Path) -> dict[str, bytes]:
    """Everything but the wall time, and the figure (drawn after the run)."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name not in ("timing.json", "comparison.png")
    }


@pytest.mark.slow
def test_killed_at_random_moments_a_run_ends_bit_for_bit_the_same(tmp_path: Path) -> None:
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    assert os.waitpid(start([*RUN, "--out", str(whole)]), 0)[1] == 0
    seconds = running.load_result(whole / "local").timing["wall_seconds"]

    rng = random.Random(20261115)
    kills = 0
    while not all((broken / name / "finished.json").exists() for name in NAMES):
        begun = all((broken / name / "experiment.toml").exists() for name in NAMES)
        child = start(["run", "--resume", str(broken), "-q"] if begun else [*RUN, "--out", str(broken), "--overwrite"])
        if kills < KILLS:
            # Short enough that thirty kills fall within one run, long enough to get through a round.
            time.sleep(rng.uniform(0.01, 2.5 * seconds / KILLS))
            os.kill(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
        if os.WIFSIGNALED(status):
            kills += 1
        else:
            assert os.waitstatus_to_exitcode(status) == 0
    assert kills >= 10
    assert contents(broken) == contents(whole)


@pytest.mark.slow
def test_ctrl_c_leaves_a_run_that_can_be_resumed_and_says_how(tmp_path: Path) -> None:
    out = tmp_path / "o"
    command = [sys.executable, "-m", "playerfl.cli", "run", "synthetic", "--rounds", "5000", "--out", str(out)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr
        process.stderr.readline()
        process.send_signal(signal.SIGINT)
        said = process.communicate(timeout=60)[1]
    assert process.returncode == 130
    assert f"continue with  playerfl run --resume {out}" in said
    assert "Traceback" not in said
    assert (out / "checkpoint.safetensors").exists()
