"""A study on Ray, whose workers are killed, gives the same files. Run separately, because Ray leaves a lot behind."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from studies.small_studies import SMALL, own_task, run, run_files, written

pytestmark = [
    pytest.mark.system,
    pytest.mark.skipif(find_spec("ray") is None, reason="Ray is not installed; pip install 'playerfl[ray]'"),
]


def command(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    started = [sys.executable, "-m", "playerfl.cli.main", *arguments]
    return subprocess.run(started, cwd=cwd, capture_output=True, text=True, check=False, timeout=600)


@pytest.mark.long
def test_a_study_on_ray_gives_the_same_files_though_workers_are_killed(tmp_path: Path) -> None:
    changes = {
        "tasks": [own_task(tmp_path)],
        "settings": {"rounds": 2, "training": {"batch_size": 16}},
        "algorithms": ["local", "fedavg"],
        "seeds_per_group": 2,
    }
    run(tmp_path / "here", **changes)
    on_ray = ("study", str(written(tmp_path, {**SMALL, **changes})), "--backend", "ray", "--workers", "2", "--out", "o")

    (tmp_path / "deadly").touch()
    output = command(*on_ray, "--json", cwd=tmp_path)
    assert output.returncode == 1
    failures = json.loads(output.stdout)["failures"]
    assert [failure["seed"] for failure in failures] == [3, 3]
    assert all("Ray could not run it: WorkerCrashedError" in failure["reason"] for failure in failures)
    made = run_files(tmp_path / "o")
    assert made.keys() < run_files(tmp_path / "here").keys()

    (tmp_path / "deadly").unlink()
    (tmp_path / "deadly once").touch()
    assert command(*on_ray, "--retry-failed", cwd=tmp_path).returncode == 0
    assert not (tmp_path / "deadly once").exists(), "no worker was killed"
    assert run_files(tmp_path / "o") == run_files(tmp_path / "here")


def test_a_cluster_that_is_not_there_is_one_sentence(tmp_path: Path) -> None:
    file = written(tmp_path, SMALL)
    output = command("study", str(file), "--backend", "ray", "--ray-address", "127.0.0.1:1", cwd=tmp_path)
    assert output.returncode == 2
    assert "there is no Ray cluster at '127.0.0.1:1'" in output.stderr
    assert "start one with  ray start --head" in output.stderr
    assert "Traceback" not in output.stderr
