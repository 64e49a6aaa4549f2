"""What version 0.1 wrote is read by today's code, reports the same numbers, and can be continued.

tests/written_by_0_1 holds a run, a comparison, a study, an archive of it, a probe, and a run and a study that were
interrupted, with the numbers that version 0.1 itself read from them (`numbers.json`).
"""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

import playerfl
from command_line import playerfl as command_line
from playerfl.report.compute.report import build_report
from playerfl.runs.run import Run
from playerfl.studies import run_file
from playerfl.studies.collecting import collect

OLD = Path(__file__).parents[1] / "written_by_0_1"
NUMBERS: dict[str, Any] = json.loads((OLD / "numbers.json").read_text(encoding="utf-8"))


def reported(path: Path) -> dict[str, Any]:
    """Everything a report is computed from, and the ranks in it."""
    collected = collect(path)
    return {
        "runs": [numbers_of(run) for run in collected.results],
        "missing": len(collected.missing),
        "tuning_runs": collected.tuning_runs,
        "mean_ranks": {
            table: {
                name: rank
                for ranking in found
                for name, rank in zip(ranking.algorithms, ranking.mean_ranks.tolist(), strict=True)
            }
            for table, found in build_report(collected).rankings.items()
        },
    }


def numbers_of(run: playerfl.RunResult) -> dict[str, Any]:
    return {
        "task": run.experiment["task"],
        "algorithm": run.algorithm,
        "seed": run.experiment["seed"],
        "learning_rate": run.experiment["training"]["learning_rate"],
        "scores": digest_of_rows(run.score_rows),
        "site_scores": run.site_scores,
        "chosen_rounds": run.chosen_rounds,
        "traffic": digest_of_rows(run.traffic_rows),
        "bytes": [sum(row[3] for row in run.traffic_rows), sum(row[4] for row in run.traffic_rows)],
        "cut": None if run.cut is None else run.cut.to_json(),
        "num_examples": run.num_examples,
        "wall_seconds": run.timing["wall_seconds"],
    }


def digest_of_rows(rows: Any) -> str:
    """A digest of every bit: floats are written as the shortest text that reads back the same."""
    return hashlib.blake2b(json.dumps([list(row) for row in rows]).encode(), digest_size=16).hexdigest()


@pytest.mark.parametrize("name", ["run", "comparison", "study", "archive"])
def test_old_results_report_the_same_numbers(name: str) -> None:
    assert json.loads(json.dumps(reported(OLD / name))) == NUMBERS[name]


def test_models_of_an_old_run_are_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(OLD)
    run = playerfl.load_result("run")  # compares the weights with their digest
    assert run.sites == ["north", "south"]
    inputs = torch.arange(6, dtype=torch.float64).reshape(2, 3) / 7
    assert run.model("south")(inputs)[1].tolist() == pytest.approx(NUMBERS["output of south"], rel=1e-12)


def test_an_old_study_knows_its_rates_and_misses_nothing() -> None:
    study = playerfl.StudyDirectory.open(OLD / "study")
    assert {"/".join(line): rate for line, rate in study.chosen_rates.items()} == NUMBERS["chosen rates"]
    assert len(study.results("tuning")) == 6 and not study.missing() and not study.failures()


def test_an_old_probe_gives_the_same_recommendation() -> None:
    text = command_line("probe", "probe", "--json", cwd=OLD)
    found, kept = json.loads(text.stdout), json.loads((OLD / "probe" / "recommendation.json").read_text())
    numbers = ("sites", "without_site", "site_alone", "bootstrap", "agreement", "by_seed", "thresholds", "rules")
    assert {key: found[key] for key in numbers} == {key: kept[key] for key in numbers}
    for key in ("index", "federated", "ratios", "importance"):
        assert found["cut"][key] == kept["cut"][key]


def close(run: playerfl.RunResult, expected: playerfl.RunResult) -> None:
    """The same up to what CPUs round differently in float64."""
    assert [row[:5] for row in run.score_rows] == [row[:5] for row in expected.score_rows]
    assert [row[5] for row in run.score_rows] == pytest.approx([row[5] for row in expected.score_rows], rel=1e-9)
    assert list(run.traffic_rows) == list(expected.traffic_rows)
    assert run.cut and expected.cut and run.cut.index == expected.cut.index


@pytest.fixture
def uninterrupted() -> playerfl.RunResult:
    return next(run for run in collect(OLD / "comparison").results if run.algorithm == "player_fl")


@pytest.fixture
def copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The old files in a folder that may be written to."""
    shutil.copytree(OLD, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_an_interrupted_old_run_is_resumed_to_the_same_result(copied: Path, uninterrupted: playerfl.RunResult) -> None:
    rounds: list[int] = []
    close(playerfl.resume("interrupted_run", listener=lambda progress: rounds.append(progress.round)), uninterrupted)
    assert min(rounds) > 2, "it was run again from the start"


def test_an_interrupted_old_study_is_continued_to_the_same_result(
    copied: Path, uninterrupted: playerfl.RunResult, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorded = json.loads((copied / "interrupted_study" / "software.json").read_text())
    # Both are part of a run file's name.
    monkeypatch.setattr(torch, "__version__", recorded["torch"])
    monkeypatch.setattr(run_file, "RESULTS", recorded["results"])
    rounds: list[int] = []
    exchanged = Run.exchanged

    def noted(run: Run, *arguments: Any, **options: Any) -> None:
        rounds.append(run.server.round)
        exchanged(run, *arguments, **options)

    monkeypatch.setattr(Run, "exchanged", noted)
    (unfinished,) = (copied / "interrupted_study" / "unfinished").iterdir()
    (run,) = playerfl.study("interrupted_study", backend="serial", quiet=True).results
    close(run, uninterrupted)
    assert run.path is not None and run.path.name == unfinished.name and not unfinished.exists()
    assert min(rounds) > 2, "it was run again from the start"
