from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import Any

import pytest

from playerfl.engine.scheduler import drive, gather
from playerfl.learning.job import AbandonedError, Failed, TrainJob


class Ask:
    """A job that is a name; its result is the name in capitals."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __await__(self) -> Generator[list[Ask], list[str], str]:
        (answer,) = yield [self]
        return answer


class Trainer:
    def __init__(self) -> None:
        self.batches: list[list[str]] = []

    def __call__(self, jobs: Sequence[Any]) -> list[str]:
        self.batches.append([job.name for job in jobs])
        return [job.name.upper() for job in jobs]


async def asks(*names: str) -> list[str]:
    return [await Ask(name) for name in names]


def test_jobs_of_gathered_coroutines_reach_the_trainer_together() -> None:
    trainer = Trainer()

    async def both() -> list[list[str]]:
        return await gather([asks("a", "b"), asks("c"), asks()])

    assert drive(both(), trainer) == [["A", "B"], ["C"], []]
    assert trainer.batches == [["a", "c"], ["b"]]


def test_gather_can_be_nested() -> None:
    trainer = Trainer()

    async def site(name: str) -> list[str]:
        return await asks(name, name + "2")

    async def run(*names: str) -> list[list[str]]:
        return await gather([site(name) for name in names])

    async def study() -> list[list[list[str]]]:
        return await gather([run("a", "b"), run("c")])

    assert drive(study(), trainer) == [[["A", "A2"], ["B", "B2"]], [["C", "C2"]]]
    assert trainer.batches == [["a", "b", "c"], ["a2", "b2", "c2"]]


def test_a_trainer_that_raises_ends_all_work_and_closes_it() -> None:
    closed = []

    async def careful(name: str) -> None:
        try:
            await Ask(name)
        finally:
            closed.append(name)

    async def both() -> None:
        await gather([careful("a"), careful("b")])

    def interrupted(_: Sequence[Any]) -> list[Any]:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        drive(both(), interrupted)
    assert closed == ["a", "b"]


def test_a_failed_job_raises_where_it_was_awaited_and_outranks_abandoned_ones() -> None:
    raised = []

    async def site(name: str) -> None:
        try:
            await TrainJob(*[None] * 8)  # type: ignore[arg-type]
        except Exception as problem:
            raised.append((name, str(problem)))
            raise

    async def run(*names: str) -> None:
        await gather([site(name) for name in names])

    def fail(jobs: Sequence[Any]) -> list[Any]:
        return [Failed(AbandonedError("left"))] * (len(jobs) - 1) + [Failed(ZeroDivisionError("bad"))]

    with pytest.raises(ZeroDivisionError, match="bad"):
        drive(gather([run("a", "b"), run("c", "d")]), fail)
    assert raised == [("a", "left"), ("b", "left"), ("c", "left"), ("d", "bad")]
