"""Small studies for tests: a fraction of a second each where they run in this process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import tomli_w

import playerfl
from playerfl.studies.api import StudyResult

SMALL: dict[str, Any] = {
    "name": "small",
    "tasks": ["synthetic"],
    "algorithms": ["local", "fedavg", "fedbabu"],
    "learning_rates": [0.01, 0.001],
    "seeds": 3,
    "tuning_seeds": 2,
    "settings": {"rounds": 2, "data": {"rows": 60, "sites": 2}, "training": {"batch_size": 16}},
}

# Seed 3 misbehaves while one of these files exists: it raises ("bad"), or takes the whole process down ("deadly").
OWN_TASK = """
import os, signal, torch
from pathlib import Path
from torch import nn
import playerfl
from playerfl.seeding import generator_for, seed_for

HERE = Path({folder!r})

def model():
    if torch.initial_seed() == seed_for(3, "init"):
        if (HERE / "bad").exists():
            raise RuntimeError("this seed is\\nunlucky")
        if (HERE / "deadly").exists():
            os.kill(os.getpid(), signal.SIGKILL)
        if (HERE / "deadly once").exists():
            (HERE / "deadly once").unlink()
            os.kill(os.getpid(), signal.SIGKILL)
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))

def sites():
    for i in range(2):
        x = torch.randn(60, 4, generator=generator_for(i, "x"))
        yield x, x[:, :3].argmax(1)

task = playerfl.own_task(model, list(sites()))
"""


def run(out: Path, **changes: Any) -> StudyResult:
    """A small study in this process."""
    options = {key: changes.pop(key) for key in ("retry_failed", "backend", "workers", "ray_address") if key in changes}
    return playerfl.study({**SMALL, **changes}, out=out, quiet=True, **{"backend": "serial", **options})


def own_task(folder: Path) -> str:
    (folder / "own.py").write_text(OWN_TASK.format(folder=str(folder)))
    return f"{folder / 'own.py'}:task"


def written(folder: Path, study: dict[str, Any]) -> Path:
    """A study as a file."""
    file = folder / "study.toml"
    file.write_text(tomli_w.dumps(study))
    return file


def run_files(out: Path) -> dict[str, bytes]:
    """Every finished run's file by name."""
    return {file.name: file.read_bytes() for file in sorted((out / "cells").iterdir())}


def stamps(out: Path) -> dict[str, int]:
    """When each of them was written."""
    return {file.name: file.stat().st_mtime_ns for file in (out / "cells").glob("*.safetensors")}
