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
    results: list[list[Any] | None] = [None]
    try:
        while True:
            # Taken out: nobody holds on to what was trained before while the next jobs run.
            jobs = work.send(results.pop())
            results.append(run(jobs))
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]
    finally:
        work.close()


@coroutine
def gather(works: Sequence[Work[Result]]) -> Generator[list[Job], list[Any], list[Result]]:
    """Runs coroutines side by side: the jobs all of them wait for are handed up as one list."""
    finished: dict[int, Result] = {}
    incoming: dict[int, list[Any]] = {}
    try:
        while len(finished) < len(works):
            # The only name that jobs have here: with one that is left over, a model and its optimiser would live on.
            pending: dict[int, list[Job]] = {}
            for i, work in enumerate(works):
                if i in finished:
                    continue
                try:
                    pending[i] = work.send(incoming.pop(i, None))
                except StopIteration as end:
                    finished[i] = end.value
            if pending:
                results = yield [job for jobs in pending.values() for job in jobs]
                for i in pending:
                    count = len(pending[i])
                    incoming[i], results = results[:count], results[count:]
    finally:
        for work in works:
            work.close()
    return [finished[i] for i in range(len(works))]
