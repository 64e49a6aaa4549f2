"""Resumes coroutines and hands their jobs to a trainer together. No event loop, no threads."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Generator, Sequence
from types import coroutine
from typing import Any, TypeVar

from playerfl.learning.job import Job
from playerfl.learning.trainer import run_jobs

Result = TypeVar("Result")
Work = Coroutine[Any, Any, Result]
"""A coroutine that yields lists of jobs and is sent the list of their results."""


def drive(work: Work[Result], run: Callable[[Sequence[Job]], list[Any]] = run_jobs) -> Result:
    """Runs a coroutine to its end, doing its jobs as they come up."""
    results = None
    try:
        while True:
            jobs = work.send(results)
            results = run(jobs)
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]
    finally:
        work.close()


@coroutine
def gather(works: Sequence[Work[Result]]) -> Generator[list[Job], list[Any], list[Result]]:
    """Runs coroutines side by side: the jobs all of them wait for are handed up as one list."""
    finished: dict[int, Result] = {}
    incoming: list[Any] = [None] * len(works)
    try:
        while len(finished) < len(works):
            pending: dict[int, list[Job]] = {}
            for i, work in enumerate(works):
                if i in finished:
                    continue
                try:
                    pending[i] = work.send(incoming[i])
                except StopIteration as end:
                    finished[i] = end.value
            if pending:
                results = yield [job for jobs in pending.values() for job in jobs]
                for i, jobs in pending.items():
                    incoming[i], results = results[: len(jobs)], results[len(jobs) :]
    finally:
        for work in works:
            work.close()
    return [finished[i] for i in range(len(works))]
