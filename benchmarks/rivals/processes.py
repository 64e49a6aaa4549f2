"""For frameworks that train sites in other processes: settings these inherit, and the processor time of all of them."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass, replace

import psutil
import torch
from work import WORKS, Run, Work, arguments

SETTINGS = "RIVALS_SETTINGS"


@dataclass(frozen=True)
class Settings:
    work: Work
    run: Run
    tuned: bool


def runs() -> Iterator[Settings]:
    """The runs of the work on the command line; while each is under way, new processes inherit its settings."""
    work, given = arguments()
    for run in work.runs:
        os.environ[SETTINGS] = json.dumps([given.work, work.rounds, run.seed, run.proximal, given.tuned])
        yield Settings(work, run, given.tuned)


def inherited() -> Settings:
    """The settings of the run that this process is part of; limits it to one thread."""
    name, rounds, seed, proximal, tuned = json.loads(os.environ[SETTINGS])
    torch.set_num_threads(1)
    return Settings(replace(WORKS[name], rounds=rounds), Run(seed, proximal), tuned)


class FamilyClock:
    """Processor seconds of a process and all of its descendants; those that have ended count as when last read."""

    def __init__(self, process: int | None = None) -> None:
        self._top = psutil.Process(process)
        self._seconds: dict[psutil.Process, float] = {}

    def __call__(self) -> float:
        for process in (self._top, *self._top.children(recursive=True)):
            try:
                times = process.cpu_times()
            except psutil.NoSuchProcess:
                continue
            self._seconds[process] = times.user + times.system
        return sum(self._seconds.values())
