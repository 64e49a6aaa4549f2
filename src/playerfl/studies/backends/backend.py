"""Backend: what runs groups of runs, and what it reports about them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from playerfl.runs.setup import Setups
from playerfl.studies.backends.group import EndedRun, WorkerConfig, run_group
from playerfl.studies.run_file import PlannedRun


@dataclass(eq=False)
class Group:
    """Runs that a worker trains side by side."""

    runs: list[PlannedRun]
    losses: int = 0
    """How many workers died while running it."""


@dataclass(frozen=True)
class Done:
    """A worker has run a group."""

    group: Group
    outcomes: list[EndedRun]


@dataclass(frozen=True)
class Lost:
    """The worker that ran a group died."""

    group: Group
    reason: str
    blame: bool = True
    """Whether the group may be the cause: not if a whole machine was lost."""


@dataclass(frozen=True)
class Progressed:
    """A share of a group's rounds is done."""

    group: Group
    share: float


Event = Done | Lost | Progressed


class Backend(Protocol):
    """Runs groups, several at a time."""

    @property
    def slots(self) -> int:
        """How many groups can be under way at a time; may change."""
        ...

    @property
    def memory(self) -> int:
        """Bytes held by workers on this machine."""
        ...

    def start(self, group: Group) -> None: ...

    def wait(self, seconds: float) -> list[Event]:
        """Returns what happened: immediately if there is anything to report, else after at most this time."""
        ...

    def close(self) -> None:
        """Stops every worker."""
        ...


class Serial:
    """In this process, one group after another: for a debugger, a notebook, a test."""

    def __init__(self, config: WorkerConfig) -> None:
        self._config = config
        self._setups = Setups()
        self._waiting: list[Group] = []

    slots = 1
    memory = 0

    def start(self, group: Group) -> None:
        self._waiting.append(group)

    def wait(self, seconds: float) -> list[Event]:
        waiting, self._waiting = self._waiting, []
        return [Done(group, run_group(group.runs, self._setups, self._config)) for group in waiting]

    def close(self) -> None:
        self._waiting = []
