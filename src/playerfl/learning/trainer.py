"""run_jobs: whatever sites ask for at one moment, stacked where their models allow it, else one by one."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

from playerfl.learning import stacked
from playerfl.learning.job import EvalJob, Job, TrainJob


def run_jobs(jobs: Sequence[Job]) -> list[Any]:
    """The results of jobs, in their order."""
    results: dict[int, Any] = {}
    training: dict[Hashable, dict[int, TrainJob]] = {}
    evaluation: dict[Hashable, dict[int, EvalJob]] = {}
    for i, job in enumerate(jobs):
        group = stacked.group_of(job)
        if group is None:
            results[i] = job.run()
        elif isinstance(job, TrainJob):
            training.setdefault(group, {})[i] = job
        else:
            evaluation.setdefault(group, {})[i] = job
    for trained in training.values():
        results.update(zip(trained, stacked.train(list(trained.values())), strict=True))
    for scored in evaluation.values():
        results.update(zip(scored, stacked.evaluate(list(scored.values())), strict=True))
    return [results[i] for i in range(len(jobs))]
