"""How long a study would take: its jobs are counted exactly, and a few of them are timed."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import torch

from playerfl.data.examples import Examples, TensorExamples
from playerfl.engine.scheduler import drive, gather
from playerfl.layers.derive import call_model
from playerfl.layers.sensitivity import Profile
from playerfl.learning.job import EvalJob, Evaluated, Job, Trained, TrainJob
from playerfl.runs.api import limited_threads
from playerfl.runs.run import Run
from playerfl.runs.setup import Setup, Setups
from playerfl.studies.backends.memory import peak, resident
from playerfl.studies.backends.processes import available_cores
from playerfl.studies.directory import StudyDirectory, data_name
from playerfl.studies.plan import Line
from playerfl.studies.scheduler import LineStatus, Prepared, Scheduler

AnyJob = TypeVar("AnyJob", TrainJob, EvalJob)
_COUNTED_ROUNDS = (2, 4)
_TIMED_BATCHES = 3
_TIMED_ROWS = 512
_MOST_SECONDS = 0.3
# What the cost of a step depends on (see _Count.train): optimiser, inner steps, pull, trained layers, measurement.
_Kind = tuple[Any, ...]


@dataclass(frozen=True)
class Estimate:
    """What a study has done, what is left, and how long that takes."""

    path: Path
    lines: list[LineStatus]
    seconds_per_run: list[float]
    """For each line, on one core."""
    workers: int
    memory: int
    start: float
    """Seconds until a worker starts to train."""
    calibration: float
    """Seconds that the estimate itself took."""

    @property
    def runs_left(self) -> int:
        return sum(status.left for status in self.lines)

    @property
    def seconds(self) -> float:
        work = sum(s.left * seconds for s, seconds in zip(self.lines, self.seconds_per_run, strict=True))
        return work / self.workers + (self.start if work else 0.0)

    def as_json(self) -> dict[str, Any]:
        return {
            "directory": str(self.path),
            "lines": [
                {
                    "task": status.line.task,
                    "algorithm": status.line.algorithm,
                    "learning_rates": list(status.line.rates),
                    "tuning": run_counts(status, "tuning"),
                    "evaluation": run_counts(status, "evaluation"),
                    "seconds_per_run": seconds,
                }
                for status, seconds in zip(self.lines, self.seconds_per_run, strict=True)
            ],
            "runs_left": self.runs_left,
            "workers": self.workers,
            "seconds": self.seconds,
            "memory_bytes": self.memory,
        }


def run_counts(status: LineStatus, phase: Any) -> dict[str, int]:
    total, done, failed = status.totals[phase], status.done[phase], status.failed[phase]
    return {"runs": total, "done": done, "failed": failed, "missing": total - done - failed}


def estimate(
    prepared: Prepared, path: Path, workers: int | None = None, *, retry_failed: bool = False, start: float = 0.0
) -> Estimate:
    """Counts the runs of a study, and estimates the time of those that are missing.

    One run per line goes through a few rounds with a trainer that only counts: this gives the numbers of
    training steps and scored rows, and the time of everything else. Then a few real steps of every kind are timed,
    with as many models at a time as the study would train together. `start`: seconds a worker takes to start.
    """
    since = time.perf_counter()
    directory = StudyDirectory.of(path, prepared.study, prepared.data)
    lines = Scheduler(directory, prepared, retry_failed=retry_failed).lines
    seconds: dict[int, float] = {}
    setups = Setups()
    threads = max(line.experiment.threads for line in prepared.study.lines)
    with limited_threads(threads):
        timers: dict[str, _Timer] = {}
        for number, status in sorted(enumerate(lines), key=lambda pair: data_name(pair[1].line.experiment)):
            setup = setups.of(status.line.experiment)
            together = min(status.together, max(status.totals.values()))
            timer = timers.setdefault(data_name(status.line.experiment), _Timer(together))
            seconds[number] = _seconds_of_a_run(status.line, setup, timer)
    count = workers or max(1, available_cores() // threads)
    return Estimate(
        path,
        lines,
        [seconds[number] for number in range(len(lines))],
        count,
        resident() + count * peak(),
        start,
        time.perf_counter() - since,
    )


def _seconds_of_a_run(line: Line, setup: Setup, timer: _Timer) -> float:
    """From two short runs of different length: the difference is the cost of the additional rounds."""
    few, more = (_count(line, setup, min(rounds, line.experiment.rounds)) for rounds in _COUNTED_ROUNDS)
    spent = [count.seconds + timer.seconds(count) for count in (few, more)]
    if more.rounds == few.rounds:
        return spent[1]
    # On a busy machine the shorter run can take longer; a round then counts with its share of the longer one.
    a_round = (spent[1] - spent[0]) / (more.rounds - few.rounds)
    if a_round <= 0:
        a_round = spent[1] / more.rounds
    return spent[1] + a_round * (line.experiment.rounds - more.rounds)


@dataclass
class _Count:
    """The jobs of a run: how many steps and rows of each kind, and one example of each."""

    rounds: int
    steps: dict[_Kind, int]
    rows: int
    examples: dict[_Kind, list[TrainJob]]
    scored: list[EvalJob]
    seconds: float = 0.0
    """Time of the run apart from its jobs."""

    def train(self, job: TrainJob) -> Trained:
        kind = (type(job.optimizer), job.optimizer.inner_steps, job.pull is not None, job.only, job.measure)
        self.steps[kind] = self.steps.get(kind, 0) + _steps(job)
        known = self.examples.setdefault(kind, [])
        if all(other.examples is not job.examples for other in known):
            known.append(job)
        if job.attach is not None:
            # What is attached to the model expects to see a batch.
            with job.attach(job.learner.model), torch.no_grad():
                call_model(job.learner.model, next(iter(job.examples.batches(job.batch_size)))[0])
        for slot in job.optimizer.slots:
            job.state.setdefault(slot, dict(job.weights))
        profile = None
        if job.measure:
            names = job.learner.layers.names
            profile = Profile(names, ((1.0,) * len(names),), (len(job.examples),), len(job.examples))
        return Trained(job.weights, 1.0, profile)

    def evaluate(self, job: EvalJob) -> Evaluated:
        self.rows += _rows(job)
        if len(self.scored) < 16:
            self.scored.append(job)
        return Evaluated({split: dict.fromkeys(("loss", *job.learner.metrics), 1.0) for split in job.splits})

    def run(self, jobs: Sequence[Job]) -> list[Any]:
        return [self.train(job) if isinstance(job, TrainJob) else self.evaluate(job) for job in jobs]


def _steps(job: TrainJob) -> int:
    return job.epochs * math.ceil(len(job.examples) / job.batch_size)


def _rows(job: EvalJob) -> int:
    return sum(map(len, job.splits.values()))


def _count(line: Line, setup: Setup, rounds: int) -> _Count:
    count = _Count(rounds, {}, 0, {}, [])
    run = Run(line.experiment.model_copy(update={"rounds": rounds}), setup)
    since = time.thread_time()
    drive(run.rounds(), count.run)
    count.seconds = time.thread_time() - since
    return count


class _Timer:
    """Seconds per training step and per scored row, measured once for each kind."""

    def __init__(self, together: int) -> None:
        self._together = together
        self._step: dict[_Kind, float] = {}
        self._row: float | None = None

    def seconds(self, count: _Count) -> float:
        for kind, jobs in count.examples.items():
            if kind not in self._step:
                self._step[kind] = self._timed([_short(job) for job in self._some(jobs)], _steps)
        if self._row is None and count.scored:
            self._row = self._timed([_fewer_rows(job) for job in self._some(count.scored)], _rows)
        return sum(steps * self._step[kind] for kind, steps in count.steps.items()) + count.rows * (self._row or 0.0)

    def _some(self, jobs: Sequence[AnyJob]) -> Sequence[AnyJob]:
        """Jobs of all sites if they are trained together, else one."""
        return jobs if self._together > 1 else jobs[:1]

    def _timed(self, jobs: Sequence[AnyJob], parts: Callable[[AnyJob], int]) -> float:
        """Seconds per part (a step, a row) of these jobs, with as many at a time as in the study."""
        once = _done(jobs)
        if once > _MOST_SECONDS:
            return once / sum(map(parts, jobs))
        copies = max(1, min(self._together, int(_MOST_SECONDS / once)))
        return _done([job for job in jobs for _ in range(copies)]) / copies / sum(map(parts, jobs))


def _done(jobs: Sequence[Job]) -> float:
    fresh = [_fresh(job) for job in jobs]
    # This thread's CPU time: what the wall time would be if nothing else were running.
    since = time.thread_time()
    drive(gather([_awaited(job) for job in fresh]))
    return time.thread_time() - since


async def _awaited(job: Any) -> Any:
    return await job


def _fresh(job: Job) -> Job:
    """The same job with a fresh optimiser state."""
    return replace(job, state={}, order=torch.Generator()) if isinstance(job, TrainJob) else job


def _short(job: TrainJob) -> TrainJob:
    return replace(job, epochs=1, examples=_first(job.examples, _TIMED_BATCHES * job.batch_size))


def _fewer_rows(job: EvalJob) -> EvalJob:
    return replace(job, splits={split: _first(part, _TIMED_ROWS) for split, part in job.splits.items()})


def _first(examples: Examples, rows: int) -> Examples:
    if isinstance(examples, TensorExamples) and len(examples) > rows:
        return examples.rows(torch.arange(rows))
    return examples
