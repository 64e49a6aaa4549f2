"""Resumes coroutines and hands their jobs to a trainer together. No event loop, no threads."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Generator, Sequence
from types import coroutine
from typing import Any, TypeVar

from playerfl.learning.job import AbandonedError, Job
from playerfl.learning.trainer import run_jobs

Result = TypeVar("Result")
Work = Coroutine[Any, Any, Result]
"""A coroutine that yields lists of jobs and is sent the list of their results (see `run_jobs`)."""


def drive(work: Work[Result], run: Callable[[Sequence[Job]], list[Any]] = run_jobs) -> Result:
    """Runs a coroutine to its end, doing its jobs as they come up. A job that fails raises where it was awaited."""
    results: list[Any] | None = None
    try:
        while True:
            # Jobs are bound to no name here, and the receiver empties the list of results. Otherwise the last model and
            # its optimiser would stay in memory during the next training or the merge.
            results = run(work.send(results))
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]
    finally:
        work.close()


@coroutine
def gather(works: Sequence[Work[Result]]) -> Generator[list[Job], list[Any], list[Result]]:
    """Runs coroutines side by side: the jobs all of them wait for are handed up as one list.

    If some of them raise, the others are closed once they have been given the results of the same list.
    """
    finished: dict[int, Result] = {}
    incoming: dict[int, list[Any]] = {}
    try:
        while len(finished) < len(works):
            jobs: list[Job] = []
            counts: dict[int, int] = {}
            problems: list[Exception] = []
            for i, work in enumerate(works):
                if i in finished:
                    continue
                before = len(jobs)
                try:
                    jobs += work.send(incoming.pop(i, None))
                    counts[i] = len(jobs) - before
                except StopIteration as end:
                    finished[i] = end.value
                except Exception as problem:
                    problems.append(problem)
            if problems:
                # The job that broke its stack says more than those that were abandoned with it.
                raise next((p for p in problems if not isinstance(p, AbandonedError)), problems[0])
            if counts:
                results = yield jobs
                results.reverse()
                incoming = {i: [results.pop() for _ in range(count)] for i, count in counts.items()}
    finally:
        for work in works:
            work.close()
    return [finished[i] for i in range(len(works))]
