"""A discrete-event simulation: processes that wait, and resources they queue for. Time passes only between events."""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Generator
from itertools import count
from typing import Union

Steps = Generator[Union[float, "Resource"], None, None]
"""What a process does: it yields seconds to wait, or a resource that it needs; it releases the resource itself."""


class Simulation:
    """Runs processes in the order of their events; those at the same time in the order in which they were planned.

    >>> simulation, ends = Simulation(), []
    >>> def work(seconds, desk):
    ...     yield from desk.used(seconds)
    ...     ends.append(simulation.now)
    >>> desk = Resource(simulation)
    >>> for seconds in (2.0, 3.0):
    ...     _ = simulation.start(work(seconds, desk))
    >>> simulation.run()
    >>> ends, desk.busy
    ([2.0, 5.0], 5.0)
    """

    def __init__(self) -> None:
        self.now = 0.0
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = count()

    def after(self, seconds: float, call: Callable[[], None]) -> None:
        heapq.heappush(self._events, (self.now + seconds, next(self._numbers), call))

    def start(self, steps: Steps) -> Process:
        process = Process(self, steps)
        self.after(0.0, process.resume)
        return process

    def run(self, until: Callable[[], bool] = lambda: False) -> None:
        """Runs until nothing is left to happen, or until the condition holds."""
        while self._events and not until():
            self.now, _, call = heapq.heappop(self._events)
            call()


class Process:
    """A generator that the simulation resumes."""

    def __init__(self, simulation: Simulation, steps: Steps) -> None:
        self.alive = True
        self._simulation = simulation
        self._steps = steps

    def resume(self) -> None:
        if not self.alive:
            return
        try:
            wanted = next(self._steps)
        except StopIteration:
            self.alive = False
            return
        if isinstance(wanted, Resource):
            wanted.queue(self)
        else:
            self._simulation.after(wanted, self.resume)

    def kill(self) -> None:
        """Ends it where it is; what it holds is released."""
        self.alive = False
        self._steps.close()


class Resource:
    """Something that only a limited number of processes can use at a time: a processor, a line, a program."""

    def __init__(self, simulation: Simulation, capacity: int = 1) -> None:
        self.busy = 0.0
        """Seconds of use so far, of all users together."""
        self._simulation = simulation
        self._free = capacity
        self._waiting: deque[Process] = deque()

    def queue(self, process: Process) -> None:
        self._waiting.append(process)
        self._serve()

    def used(self, seconds: float) -> Steps:
        """Waits for the resource, then uses it for this long."""
        yield from self.held(_passing(seconds))

    def held(self, steps: Steps) -> Steps:
        """Waits for the resource, then holds it for as long as the steps take."""
        yield self
        started = self._simulation.now
        try:
            yield from steps
        finally:
            self.busy += self._simulation.now - started
            self.release()

    def release(self) -> None:
        self._free += 1
        self._serve()

    def _serve(self) -> None:
        while self._free and self._waiting:
            process = self._waiting.popleft()
            if process.alive:
                self._free -= 1
                self._simulation.after(0.0, lambda process=process: self._grant(process))  # type: ignore[misc]

    def _grant(self, process: Process) -> None:
        if process.alive:
            process.resume()
        else:
            self.release()


def _passing(seconds: float) -> Steps:
    yield seconds
