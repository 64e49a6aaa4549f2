"""A job across institutions knows which direction of a metric is better, also of a user's own."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from torch import Tensor

pytest.importorskip("flwr", reason="deployments need playerfl[flower]")

import playerfl as package
from federations import task
from flower.jobs import Job
from playerfl.report.compute.comparison import declared_metrics


@package.metric("lower", unit="share", title="Error rate")
def error_rate(predicted: Tensor, targets: Tensor) -> float:
    return float((predicted != targets).double().mean())


def test_own_metrics_keep_their_direction(tmp_path: Path) -> None:
    job = Job(tmp_path, "fedavg", task(metrics={"error_rate": error_rate}), rounds=1)
    job.run()
    result = package.load_result(job.folder)
    assert result.data["metrics"] == job.in_process().setup.description["metrics"]
    declared = declared_metrics([result])["error_rate"]
    assert (declared.direction, declared.title, declared.unit) == ("lower", "Error rate", "share")


def test_chosen_metrics_and_the_positive_class_are_described(tmp_path: Path) -> None:
    job = Job(tmp_path, "fedavg", rounds=1, metrics=["brier", "accuracy"])
    job.run()
    result = package.load_result(job.folder)
    assert list(result.data["metrics"]) == ["brier", "accuracy"]
    assert declared_metrics([result])["brier"].lower_is_better


def test_a_job_started_without_declarations_goes_on(tmp_path: Path) -> None:
    """By a version that did not store them."""
    job = Job(tmp_path, "fedavg", task(metrics={"error_rate": error_rate}), rounds=2)
    job.interrupt("site-2", "2:evaluate+finish")
    file = job.folder / "data.json"
    begun = json.loads(file.read_text())
    del begun["metrics"]
    file.write_text(json.dumps(begun))
    job.run()
    assert package.load_result(job.folder).data["metrics"]["error_rate"]["direction"] == "lower"
