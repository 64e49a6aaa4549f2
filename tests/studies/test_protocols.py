"""Protocols: what a name stands for, run by run; and that files from before names keep their meaning."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import tomli_w

import playerfl
from federations import federate
from playerfl.algorithms import ALGORITHMS
from playerfl.errors import ConfigError
from playerfl.studies.api import read_study
from playerfl.studies.plan import PAPER_ALGORITHMS, Study
from studies.small_studies import SMALL

HEART: dict[str, Any] = {"name": "h", "tasks": ["heart"], "algorithms": list(PAPER_ALGORITHMS)}
DECAYS = {"local", "fedavg", "fedprox", "ditto", "local_adaptation", "fedlama", "pfedla"}


def lines(**changes: Any) -> dict[str, Any]:
    return {line.experiment.algorithm["name"]: line for line in Study.resolve({**HEART, **changes}).lines}


def test_the_default_reports_by_owner_on_splits_of_each_run() -> None:
    for line in lines().values():
        assert line.experiment.selection == "by_owner"
        assert line.experiment.data["split"] == "per_run"
        assert line.experiment.training.schedule == "constant"
    assert lines()["pfedme"].experiment.algorithm["lam"] == 0.1


def test_what_was_before_is_still_there_under_its_name() -> None:
    for line in lines(protocol="2026.1").values():
        assert line.experiment.selection == "client_best"
        assert "split" not in line.experiment.data
    assert lines(protocol="2026.1")["pfedme"].experiment.algorithm["lam"] == 15.0


def test_the_study_file_has_the_last_word() -> None:
    changes = {
        "settings": {"selection": "last", "data": {"split": "fixed"}},
        "algorithms": [{"name": "pfedme", "lam": 2.0}],
    }
    experiment = lines(**changes)["pfedme"].experiment
    assert (experiment.selection, experiment.algorithm["lam"]) == ("last", 2.0)
    assert experiment.data.get("split", "fixed") == "fixed"


def test_who_decays_in_the_authors_protocol_and_who_does_not() -> None:
    by_name = lines(protocol="authors-2024")
    assert {name for name, line in by_name.items() if line.experiment.training.schedule == "exponential"} == DECAYS
    for name, line in by_name.items():
        experiment = line.experiment
        assert experiment.training.amsgrad
        assert experiment.early_stopping == 10
        assert experiment.data["focal_gamma"] == 3
        pulls = name.startswith("player_fl")
        assert experiment.algorithm.get("private_pull", 0) == (0.1 if pulls else 0)
    cifar = Study.resolve({**HEART, "tasks": ["cifar10"], "protocol": "authors-2024"}).lines
    assert {line.experiment.training.schedule_factor for line in cifar} == {0.99, None}


@pytest.mark.parametrize("name", ["fedavg", "player_fl"])
def test_a_decaying_rate_shows_in_a_run_and_a_constant_one_is_as_without(name: str) -> None:
    """A toy run with the schedule that the protocol gives: only a method that decays leaves the constant run."""
    training = lines(protocol="authors-2024")[name].experiment.training
    schedule = {"training.schedule": training.schedule}
    if training.schedule_factor is not None:
        schedule["training.schedule_factor"] = training.schedule_factor  # type: ignore[assignment]
    constant, scheduled = federate(name, rounds=3), federate(name, rounds=3, **schedule)
    losses = [[row for row in run.score_rows if row[3] == "train"] for run in (constant, scheduled)]
    # In the first round the factor is 1.
    assert [row for row in losses[0] if row[1] == 1] == [row for row in losses[1] if row[1] == 1]
    assert (losses[0] != losses[1]) == (name in DECAYS)


def test_settings_of_single_algorithms_reach_only_them() -> None:
    by_name = lines(by_algorithm={"fedavg": {"training": {"schedule": "cosine"}}})
    assert {name for name, line in by_name.items() if line.experiment.training.schedule == "cosine"} == {"fedavg"}
    with pytest.raises(ConfigError, match="by_algorithm"):
        lines(by_algorithm={"fedavgg": {}})


def test_a_directory_from_before_protocols_continues_under_its_own(tmp_path: Path) -> None:
    file = tmp_path / "study.toml"
    file.write_text(tomli_w.dumps({**SMALL, "protocol": "2026.1"}))
    done = playerfl.study(file, out=tmp_path / "o", backend="serial", quiet=True)
    stored = tmp_path / "o" / "study.toml"
    stored.write_text("".join(line for line in stored.read_text().splitlines(keepends=True) if "protocol" not in line))
    file.write_text(tomli_w.dumps(SMALL))
    for given, out in ((tmp_path / "o", None), (file, tmp_path / "o")):
        plan, _ = read_study(given, out)
        assert plan.protocol == "2026.1"
    again = playerfl.study(file, out=tmp_path / "o", backend="serial", quiet=True)
    assert [run.score_rows for run in again.results] == [run.score_rows for run in done.results]
    assert read_study(file, tmp_path / "other")[0].protocol == "2026.2"


def test_every_algorithm_of_the_package_can_be_run_under_every_protocol() -> None:
    for protocol in ("2026.1", "2026.2", "authors-2024"):
        for task in ("heart", "digits", "synthetic"):
            study = {**HEART, "tasks": [task], "algorithms": list(ALGORITHMS), "protocol": protocol}
            for line in Study.resolve(study).lines:
                line.experiment.build_algorithm()
