"""The golden run: the same bits in every process, and the stored ones wherever torch computes alike."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

import golden
from playerfl.studies.run_file import GOLDEN_RUNS, RESULTS

STORED: dict[str, Any] = json.loads(golden.STORED.read_text(encoding="utf-8"))
# The relative change that rounding may make to a loss after two rounds. Observed without vector units: 5e-6, and 1e-8
# in float64, whose initial weights are drawn in float32.
TOLERANCES = {"digits": 1e-3, "synthetic": 1e-3, "digits in float64": 1e-6}


def bits(found: dict[str, Any]) -> dict[str, tuple[str, str]]:
    return {name: (run["models"], run["records"]) for name, run in found["runs"].items()}


def assert_close(found: dict[str, Any], expected: dict[str, Any], why: str) -> None:
    for name, run in found["runs"].items():
        for algorithm, losses in run["losses"].items():
            expected_losses = expected["runs"][name]["losses"][algorithm]
            assert losses == pytest.approx(expected_losses, rel=TOLERANCES[name]), f"{name}, {algorithm}: {why}"


def assert_golden(found: dict[str, Any]) -> str:
    """Matches bit for bit if the kernels are those of the stored digests, else within a tolerance; returns which."""
    if found["arithmetic"] == STORED["arithmetic"]:
        assert bits(found) == bits(STORED), (
            "torch computes here as it did for tests/golden.json, but the results differ: a change of playerfl changed "
            "them. If that was intended, store them (python tests/golden.py --store) and note it in CHANGELOG.md"
        )
        return "bit for bit"
    why = (
        f"stored with {STORED['made_with']}, found with {found['made_with']}: other kernels, compared with a tolerance"
    )
    assert_close(found, STORED, why)
    return why


def test_the_golden_run_is_met(record_property: pytest.RecordProperty) -> None:
    record_property("golden run met", assert_golden(golden.everything(threads=1)))


def assert_version_recorded(stored: dict[str, Any], golden_runs: dict[int, tuple[str, str]]) -> None:
    versions = list(golden_runs)
    assert versions == list(range(1, len(versions) + 1))
    for (before, _), (digest, why_the_same) in pairwise(golden_runs.values()):
        assert (digest == before) == bool(why_the_same), "say why the golden runs are unchanged, if they are"
    assert stored["results_version"] == versions[-1], "store the golden runs of the newest results version"
    assert golden_runs[versions[-1]][0] == golden.digest_of_json(stored["runs"]), (
        "tests/golden.json changed: add its results version to GOLDEN_RUNS, so that studies do not mix old and new runs"
    )


def test_results_version_belongs_to_the_stored_golden_runs() -> None:
    assert_version_recorded(STORED, GOLDEN_RUNS)


def test_neither_golden_runs_nor_results_version_can_change_alone() -> None:
    changed = json.loads(json.dumps(STORED))
    changed["runs"]["digits"]["models"] = "0" * 32
    with pytest.raises(AssertionError, match="add its results version"):
        assert_version_recorded(changed, GOLDEN_RUNS)
    new, same = "f" * 32, GOLDEN_RUNS[RESULTS][0]
    for version, message in (
        ((new, ""), "store the golden runs"),
        ((same, ""), "say why"),
        ((new, "a reason"), "say why"),
    ):
        with pytest.raises(AssertionError, match=message):
            assert_version_recorded(STORED, {**GOLDEN_RUNS, RESULTS + 1: version})
    unchanged = {**STORED, "results_version": RESULTS + 1}
    assert_version_recorded(unchanged, {**GOLDEN_RUNS, RESULTS + 1: (same, "only another task changed")})


def test_storing_needs_the_results_version_of_the_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    changed = json.loads(json.dumps(STORED))
    golden.store(changed, tmp_path / "golden.json")
    assert (tmp_path / "golden.json").read_bytes() == golden.STORED.read_bytes()
    changed["runs"]["digits"]["models"] = "0" * 32
    with pytest.raises(SystemExit) as refused:
        golden.store(changed, tmp_path / "golden.json")
    version, digest = re.findall(r'add  (\d+): \("(\w+)", ""\)', str(refused.value))[0]
    assert (tmp_path / "golden.json").read_bytes() == golden.STORED.read_bytes()
    monkeypatch.setattr(golden, "GOLDEN_RUNS", {**GOLDEN_RUNS, int(version): (digest, "")})
    monkeypatch.setattr(golden, "RESULTS", int(version))
    golden.store({**changed, "results_version": int(version)}, tmp_path / "golden.json")
    assert_version_recorded(json.loads((tmp_path / "golden.json").read_text()), golden.GOLDEN_RUNS)


def test_one_flipped_bit_or_a_loss_that_is_off_is_noticed() -> None:
    changed = json.loads(json.dumps(STORED))
    changed["runs"]["digits"]["models"] = "0" * 32
    with pytest.raises(AssertionError, match="a change of playerfl"):
        assert_golden(changed)
    changed["arithmetic"] = "of another CPU"
    assert "other kernels, compared with a tolerance" in assert_golden(changed)
    changed["runs"]["digits in float64"]["losses"]["fedavg"][0] *= 1 + 1e-4
    with pytest.raises(AssertionError, match="other kernels"):
        assert_golden(changed)


def fresh(threads: int, folder: Path, **variables: str) -> dict[str, Any]:
    output = subprocess.run(
        [sys.executable, golden.__file__, "--threads", str(threads)],
        cwd=folder, env={**os.environ, **variables}, capture_output=True, text=True, timeout=600, check=True,
    )  # fmt: skip
    found: dict[str, Any] = json.loads(output.stdout)
    return found


@pytest.mark.system
def test_every_process_finds_the_same_bits(tmp_path: Path) -> None:
    one, other = fresh(1, tmp_path, PYTHONHASHSEED="1"), fresh(1, tmp_path, PYTHONHASHSEED="2", OMP_NUM_THREADS="2")
    assert bits(one) == bits(other)
    assert_golden(one)


@pytest.mark.system
def test_two_threads_repeat_themselves_and_differ_by_rounding_at_most(tmp_path: Path) -> None:
    # Waiting threads sleep: alongside other tests, spinning ones would take most of both cores.
    one, other = (fresh(2, tmp_path, PYTHONHASHSEED=seed, OMP_WAIT_POLICY="passive") for seed in "12")
    assert one["made_with"]["threads"] == 2
    assert bits(one) == bits(other)
    assert_golden(one)


@pytest.mark.system
def test_another_cpu_is_recognised_and_agrees_up_to_rounding(tmp_path: Path) -> None:
    """A CPU without the vector units of this one: torch and its libraries are told not to use them."""
    hidden = {"ATEN_CPU_CAPABILITY": "default", "ONEDNN_MAX_CPU_ISA": "SSE41", "MKL_ENABLE_INSTRUCTIONS": "SSE4_2"}
    found = fresh(1, tmp_path, **hidden)
    if found["made_with"]["cpu_capability"] != "DEFAULT":
        pytest.skip("this torch does not hide vector units")
    assert found["arithmetic"] != STORED["arithmetic"]
    assert "compared with a tolerance" in assert_golden(found)
