"""run_jobs: runs the jobs that sites wait for, stacked if their models allow it, else one by one."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any, TypeVar

from playerfl.learning.job import AbandonedError, EvalJob, Failed, Job, TrainJob
from playerfl.learning.stacked import scoring, training
from playerfl.learning.stacked.grouping import group_of

AnyJob = TypeVar("AnyJob", bound=Job)


def run_jobs(jobs: Sequence[Job]) -> list[Any]:
    """The results of jobs, in their order; `Failed` stands in for the result of a job that raised."""
    results: dict[int, Any] = {}
    to_train: dict[Hashable, dict[int, TrainJob]] = {}
    to_score: dict[Hashable, dict[int, EvalJob]] = {}
    for i, job in enumerate(jobs):
        group = group_of(job)
        if group is None:
            results[i] = _result_or_failure(job.run)
        elif isinstance(job, TrainJob):
            to_train.setdefault(group, {})[i] = job
        else:
            to_score.setdefault(group, {})[i] = job
    for training_jobs in to_train.values():
        results.update(zip(training_jobs, _stacked(training.train, list(training_jobs.values())), strict=True))
    for scoring_jobs in to_score.values():
        results.update(zip(scoring_jobs, _stacked(scoring.evaluate, list(scoring_jobs.values())), strict=True))
    return [results[i] for i in range(len(jobs))]


def _result_or_failure(run: Callable[[], Any]) -> Any:
    try:
        return run()
    except Exception as problem:
        return Failed(problem)


def _stacked(run: Callable[[Sequence[AnyJob]], Sequence[Any]], jobs: Sequence[AnyJob]) -> Sequence[Any]:
    results = _result_or_failure(lambda: run(jobs))
    return _blamed(run, jobs, results) if isinstance(results, Failed) else results


def _blamed(
    run: Callable[[Sequence[AnyJob]], Sequence[Any]], jobs: Sequence[AnyJob], failed: Failed
) -> Sequence[Failed]:
    """A failure for each job of a failed stack: the job's own if it also fails alone, else that of the whole stack.

    The others are abandoned rather than continued: the failed attempt has already moved their optimisers.
    """
    if len(jobs) == 1:
        return [failed]
    alone = [result if isinstance(result, Failed) else None for result in (_alone(run, job) for job in jobs)]
    if not any(alone):
        return [failed] * len(jobs)
    abandoned = "was trained in one stack with a model that failed"
    return [result or Failed(AbandonedError(abandoned)) for result in alone]


def _alone(run: Callable[[Sequence[AnyJob]], Sequence[Any]], job: AnyJob) -> Any:
    return _result_or_failure(lambda: run([job]))
