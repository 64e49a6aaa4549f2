from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import Any

import pytest

from playerfl.engine.scheduler import drive, gather


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


def test_jobs_of_side_by_side_work_reach_the_trainer_together() -> None:
    trainer = Trainer()

    async def both() -> list[list[str]]:
        return await gather([asks("a", "b"), asks("c"), asks()])

    assert drive(both(), trainer) == [["A", "B"], ["C"], []]
    assert trainer.batches == [["a", "c"], ["b"]]


def test_gathering_nests() -> None:
    trainer = Trainer()

    async def site(name: str) -> list[str]:
        return await asks(name, name + "2")

    async def run(*names: str) -> list[list[str]]:
        return await gather([site(name) for name in names])

    async def study() -> list[list[list[str]]]:
        return await gather([run("a", "b"), run("c")])

    assert drive(study(), trainer) == [[["A", "A2"], ["B", "B2"]], [["C", "C2"]]]
    assert trainer.batches == [["a", "b", "c"], ["a2", "b2", "c2"]]


def test_a_failing_job_ends_all_work_and_closes_it() -> None:
    closed = []

    async def careful(name: str) -> None:
        try:
            await Ask(name)
        finally:
            closed.append(name)

    async def both() -> None:
        await gather([careful("a"), careful("b")])

    def fail(_: Sequence[Any]) -> list[Any]:
        raise RuntimeError("no")

    with pytest.raises(RuntimeError, match="no"):
        drive(both(), fail)
    assert closed == ["a", "b"]
