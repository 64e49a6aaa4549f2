"""Every algorithm over Flower's records: real apps, real messages, every site rebuilt from its directory each time."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import pytest
import torch

from federations import task
from flower.jobs import SITES, Job
from playerfl.algorithms import ALGORITHMS, PartialAlgorithm
from playerfl.engine.scheduler import drive
from playerfl.run_directory import SCORE_COLUMNS, RunDirectory
from playerfl.weights import digest

every_algorithm = pytest.mark.parametrize("name", ALGORITHMS)


def assert_equals_in_process(job: Job, coordinator: Any) -> None:
    """The same models at the sites, the same common model, the same scores, bit for bit."""
    run = job.in_process()
    result = drive(run.rounds())
    assert coordinator.transport.fingerprints == {site: digest(w) for site, w in result.weights.items()}
    for entry, tensor in run.server.weights.items():
        assert torch.equal(tensor, coordinator.server.weights[entry]), entry
    rows = RunDirectory(job.folder).read_table("scores.csv", SCORE_COLUMNS)
    assert sorted(map(tuple, rows)) == sorted(tuple(row) for row in result.score_rows)


@every_algorithm
@pytest.mark.parametrize("model", ["mlp", "batch norm"])
def test_a_job_over_flower_equals_the_run_in_one_process(name: str, model: str, tmp_path: Path) -> None:
    job = Job(tmp_path, name, task(model))
    assert_equals_in_process(job, job.run())
