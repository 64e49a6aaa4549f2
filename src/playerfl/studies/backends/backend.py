"""Backend: who runs groups of cells, and what is heard of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from playerfl.runs.setup import Setups
from playerfl.studies.backends.group import Orders, Outcome, run_group
from playerfl.studies.run_file import Cell


@dataclass(eq=False)
class Group:
    """Cells that are run side by side."""

    cells: list[Cell]
    losses: int = 0
    """How often whoever ran it died over it."""


@dataclass(frozen=True)
class Done:
    """A group has been run."""

    group: Group
    outcomes: list[Outcome]


@dataclass(frozen=True)
class Lost:
    """Whoever ran a group died."""

    group: Group
    reason: str
    blame: bool = True
    """Whether the group may be the reason: not where a whole machine went away."""


@dataclass(frozen=True)
class Heard:
    """A share of a group's rounds is done."""

    group: Group
    share: float


Event = Done | Lost | Heard


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
        """What happened; at once if something has, else after this time at the latest."""
        ...

    def close(self) -> None:
        """Ends whatever is under way."""
        ...


class Serial:
    """In this process, one group after the other: for a debugger, a notebook, a test."""

    def __init__(self, orders: Orders) -> None:
        self._orders = orders
        self._grounds = Setups()
        self._waiting: list[Group] = []

    slots = 1
    memory = 0

    def start(self, group: Group) -> None:
        self._waiting.append(group)

    def wait(self, seconds: float) -> list[Event]:
        waiting, self._waiting = self._waiting, []
        return [Done(group, run_group(group.cells, self._grounds, self._orders)) for group in waiting]

    def close(self) -> None:
        self._waiting = []
