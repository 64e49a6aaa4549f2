"""Flower's simulation engine gives the same files as one process, and a run can change engines midway."""

from __future__ import annotations

import signal
import subprocess
import sys
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path

import pytest

import playerfl
from flower.accidents import StoppedError
from flower.institutions import wait_until
from playerfl.errors import ConfigError
from playerfl.flower import simulation
from playerfl.runs.run import Progress

pytestmark = pytest.mark.system

RUN = ["-m", "playerfl.cli.main", "run", "--engine", "flower-simulation", "-q"]
TABLES = ("scores.csv", "traffic.csv", "layers.json", "data.json", "finished.json")
needs_ray = pytest.mark.skipif(
    find_spec("ray") is None, reason="ray is not installed; pip install 'playerfl[flower-simulation]'"
)


@needs_ray
@pytest.mark.long
def test_the_simulation_resumes_a_run_of_one_process_and_ends_with_the_same_files(tmp_path: Path) -> None:
    def stop(progress: Progress) -> None:
        if progress.round == 1:
            raise StoppedError

    playerfl.run("synthetic", "player_fl", rounds=2, out=tmp_path / "whole")
    with pytest.raises(StoppedError):
        playerfl.run("synthetic", "player_fl", rounds=2, out=tmp_path / "half", listener=stop)
    done = subprocess.run(
        [sys.executable, *RUN, "--resume", str(tmp_path / "half")], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    for name in TABLES:
        assert (tmp_path / "half" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes(), name
    assert not (tmp_path / "half" / ".flower-sites").exists()


@needs_ray
@pytest.mark.long
def test_an_interrupt_ends_the_simulation_and_the_run_can_be_resumed(tmp_path: Path) -> None:
    home = tmp_path / "run"
    command = [sys.executable, *RUN, "synthetic", "-a", "local", "--rounds", "1000", "--out", str(home)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        try:
            wait_until((home / "checkpoint.safetensors").exists, 120, "the first exchange")
            errors = interrupted(process)
        finally:
            process.kill()
    assert process.returncode == 130
    assert "continue with  playerfl run --resume" in errors


def interrupted(process: subprocess.Popen[str]) -> str:
    """What it said. Python drops an interrupt that arrives while it forks; a person would press Ctrl-C again."""
    for _ in range(3):
        process.send_signal(signal.SIGINT)
        with suppress(subprocess.TimeoutExpired):
            return process.communicate(timeout=30)[1]
    raise AssertionError("three interrupts did not end it")


def test_without_ray_it_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(simulation, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"playerfl\[flower-simulation\]"):
        simulation.simulate([], tmp_path, lambda _: None)
