"""Scheduler: which runs of a study are left, in which order they run, and how long they will take."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from playerfl.errors import StorageError
from playerfl.runs.files import DataFile
from playerfl.runs.setup import Setups
from playerfl.studies.backends.backend import Backend, Done, Group, Lost, Progressed
from playerfl.studies.backends.group import EndedRun, runs_together
from playerfl.studies.backends.memory import resident
from playerfl.studies.directory import Phase, StudyDirectory, data_name
from playerfl.studies.plan import Line, Study
from playerfl.studies.run_file import PlannedRun
from playerfl.weights import num_bytes

_MOST_LOSSES = 3
# Below this many runs side by side, a stack loses much of its advantage; see docs/studies.md.
_LEAST_STACKED = 8
_SECONDS_BETWEEN_LOOKS = 0.25


@dataclass(frozen=True)
class Prepared:
    """What must be known about a study's data and models before anything runs."""

    study: Study
    data: Mapping[str, DataFile]
    """Descriptions of the sites, by `data_name`."""
    together: Mapping[str, int]
    model_bytes: Mapping[str, int]

    def units(self, line: Line) -> float:
        """The work of one run, estimated from sizes."""
        name = data_name(line.experiment)
        rows = sum(site["train"]["examples"] for site in self.data[name]["sites"].values())
        return float(line.experiment.rounds * line.experiment.training.local_epochs * rows * self.model_bytes[name])


def prepare(study: Study) -> Prepared:
    """Reads every task's data once, and rejects what cannot be run before anything is written."""
    data, together, model_bytes = {}, {}, {}
    setups = Setups()
    for line in sorted(study.lines, key=lambda line: data_name(line.experiment)):
        setup = setups.of(line.experiment)
        line.experiment.build_algorithm().check_layers(setup.learner.layers)
        name = data_name(line.experiment)
        data[name] = setup.description
        setting = study.seeds_per_group
        own_data = line.experiment.data.get("split") == "per_run"
        together[name] = runs_together(setup, own_data=own_data) if setting == "auto" else setting
        model_bytes[name] = num_bytes(setup.initial)
    return Prepared(study, data, together, model_bytes)


@dataclass
class LineStatus:
    """The progress of one task and algorithm."""

    line: Line
    units: float
    """The work of one run, in units that only serve to compare lines."""
    together: int
    """How many of its runs to train side by side."""
    phase: Phase = "tuning"
    pending: list[PlannedRun] = field(default_factory=list)
    running: int = 0
    done: dict[Phase, int] = field(default_factory=lambda: {"tuning": 0, "evaluation": 0})
    failed: dict[Phase, int] = field(default_factory=lambda: {"tuning": 0, "evaluation": 0})
    rate: float | None = None
    rate_failed: bool = False

    @property
    def totals(self) -> dict[Phase, int]:
        return {"tuning": len(self.line.rates) * len(self.line.tuning_seeds), "evaluation": len(self.line.seeds)}

    @property
    def left(self) -> int:
        """Runs that are neither done nor failed, including those that wait for a rate."""
        if self.rate_failed:
            return 0
        return sum(self.totals.values()) - sum(self.done.values()) - sum(self.failed.values())


@dataclass(frozen=True)
class Status:
    """The progress of a study."""

    lines: list[LineStatus]
    elapsed: float
    seconds_left: float | None
    """None until something has been measured."""
    memory: int
    peak_memory: int
    workers: int


StatusListener = Callable[[Status], None]


class Scheduler:
    """Hands groups of runs to a backend until none is left, and keeps what comes back."""

    def __init__(self, directory: StudyDirectory, prepared: Prepared, *, retry_failed: bool) -> None:
        self.directory = directory
        self._begun = time.monotonic()
        self._finished = directory.finished
        self._failed = set() if retry_failed else directory.failed
        self._pace = _Pace()
        self._peak = 0
        self.lines = [
            LineStatus(line, prepared.units(line), prepared.together[data_name(line.experiment)])
            for line in prepared.study.lines
        ]
        for status in self.lines:
            self._enter(status, "tuning")
        # Tasks with long runs come first, so that the study ends with short ones. A task's lines stay together, so that
        # workers read its data once.
        longest: dict[str, float] = {}
        for status in self.lines:
            longest[status.line.task] = max(longest.get(status.line.task, 0), status.units * status.left)
        self._order = {task: place for place, task in enumerate(sorted(longest, key=lambda t: -longest[t]))}
        self._under_way: dict[Group, tuple[LineStatus, float, float]] = {}

    @property
    def left(self) -> int:
        return sum(status.left for status in self.lines)

    def _enter(self, status: LineStatus, phase: Phase) -> None:
        """Finds out which runs of a phase are left; if none are, enters the next phase."""
        status.phase = phase
        if phase == "evaluation":
            status.rate = self.directory.chosen_rate(status.line)
            status.rate_failed = status.rate is None
        experiments = status.line.tuning if phase == "tuning" else []
        if status.rate is not None:
            experiments = status.line.evaluation(status.rate)
        runs = [self.directory.planned(experiment) for experiment in experiments]
        status.done[phase] = sum(run.key in self._finished for run in runs)
        status.failed[phase] = sum(run.key in self._failed for run in runs)
        known = self._finished | self._failed
        status.pending = [run for run in runs if run.key not in known]
        if phase == "tuning" and not status.pending:
            self._enter(status, "evaluation")

    def run(self, backend: Backend, listener: StatusListener) -> None:
        lost: list[tuple[LineStatus, Group]] = []
        listener(self._status(backend))
        while self._under_way or lost or any(status.pending for status in self.lines):
            while len(self._under_way) < backend.slots:
                status, group = lost.pop() if lost else self._next(backend.slots)
                if group is None:
                    break
                self._under_way[group] = (status, time.monotonic(), 0.0)
                backend.start(group)
            for event in backend.wait(_SECONDS_BETWEEN_LOOKS):
                status, since, _ = self._under_way[event.group]
                if isinstance(event, Progressed):
                    self._under_way[event.group] = (status, since, event.share)
                    continue
                del self._under_way[event.group]
                if isinstance(event, Lost):
                    lost += [(status, group) for group in self._after_loss(status, event)]
                else:
                    self._pace.note(status, len(event.group.runs), time.monotonic() - since)
                    self._keep(status, event)
            listener(self._status(backend))

    def _next(self, slots: int) -> tuple[LineStatus, Group | None]:
        """The next group: from the line with the most work left, and small enough to leave some for other workers."""
        waiting = [status for status in self.lines if status.pending]
        if not waiting:
            return self.lines[0], None
        status = min(waiting, key=lambda s: (self._order[s.line.task], -s.left * self._pace.of(s)))
        work = sum(other.left * self._pace.of(other) for other in self.lines)
        fair = math.ceil(work / (2 * slots * self._pace.of(status)))
        size = min(status.together, max(fair, _LEAST_STACKED)) if slots > 1 else status.together
        runs, status.pending = status.pending[:size], status.pending[size:]
        status.running += len(runs)
        return status, Group(runs)

    def _after_loss(self, status: LineStatus, lost: Lost) -> list[Group]:
        """Groups to run after a worker died: the same group, then its runs one by one; then they count as failed."""
        group = lost.group
        group.losses += lost.blame
        if group.losses >= _MOST_LOSSES:
            reason = f"{lost.reason}, {group.losses} times"
            self._keep(status, Done(group, [EndedRun(run.key, reason=reason) for run in group.runs]))
            return []
        if group.losses > 1:
            return [Group([run], group.losses) for run in group.runs]
        return [group]

    def _keep(self, status: LineStatus, done: Done) -> None:
        for run, outcome in zip(done.group.runs, done.outcomes, strict=True):
            if outcome.storage:
                continue
            self.directory.keep(run, outcome, beside=len(done.group.runs))
            (self._finished if outcome.file else self._failed).add(run.key)
            (status.done if outcome.file else status.failed)[status.phase] += 1
        for outcome in done.outcomes:
            if outcome.storage:
                # If it were stored as failed, the run would not be tried again once there is space.
                raise StorageError(outcome.reason)
        status.running -= len(done.group.runs)
        if status.phase == "tuning" and not status.pending and not status.running:
            self._enter(status, "evaluation")

    def _status(self, backend: Backend) -> Status:
        memory = resident() + backend.memory
        self._peak = max(self._peak, memory)
        left = None
        if self._pace.known:
            begun = sum(share * len(group.runs) * self._pace.of(s) for group, (s, _, share) in self._under_way.items())
            left = (sum(s.left * self._pace.of(s) for s in self.lines) - begun) / backend.slots
        elapsed = time.monotonic() - self._begun
        return Status(self.lines, elapsed, left, memory, self._peak, backend.slots)


class _Pace:
    """Seconds per run: measured on the same line, or estimated from other lines by size."""

    def __init__(self) -> None:
        self._lines: dict[int, tuple[float, int]] = {}
        self._seconds = 0.0
        self._units = 0.0

    @property
    def known(self) -> bool:
        return self._units > 0

    def note(self, status: LineStatus, runs: int, seconds: float) -> None:
        before, count = self._lines.get(id(status), (0.0, 0))
        self._lines[id(status)] = (before + seconds, count + runs)
        self._seconds += seconds
        self._units += runs * status.units

    def of(self, status: LineStatus) -> float:
        if id(status) in self._lines:
            seconds, count = self._lines[id(status)]
            return seconds / count
        return status.units * (self._seconds / self._units if self.known else 1.0)
