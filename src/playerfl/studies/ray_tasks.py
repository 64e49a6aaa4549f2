"""RayTasks: the same groups as tasks of a Ray cluster; what comes back is written here, by the one who asked."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Any

from playerfl.errors import ConfigError
from playerfl.ground import Grounds
from playerfl.studies.backend import Done, Event, Group, Lost
from playerfl.studies.cell import Cell
from playerfl.studies.group import Orders, Outcome, run_group

_grounds = Grounds()
"""Of this process: Ray gives a worker many tasks, and they share their data."""


def _run(cells: list[Cell], orders: Orders) -> list[Outcome]:
    return run_group(cells, _grounds, orders)


class RayTasks:
    """One task a group, as many at a time as the cluster has cores: machines may come and go."""

    def __init__(self, workers: int | None, threads: int, orders: Orders, address: str | None) -> None:
        # Asked before the import, which reads it.
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        try:
            import ray
        except ImportError as problem:
            raise ConfigError("--backend ray needs Ray; pip install 'playerfl[ray]'") from problem
        self._ray: Any = ray
        self._workers = workers
        self._threads = threads
        # Other machines cannot write into this one's directory; short runs are simply run again.
        self._orders = replace(orders, unfinished=None)
        self._groups: dict[Any, Group] = {}
        self._connected = not ray.is_initialized()
        if self._connected:
            self._connect(address)
        self._task = ray.remote(num_cpus=threads, max_retries=1)(_run)

    def _connect(self, address: str | None) -> None:
        quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": "error"}
        if address is None:
            quiet |= {"include_dashboard": False, "num_cpus": self._workers and self._workers * self._threads}
        try:
            self._ray.init(address=address, **quiet)
        except (ConnectionError, ValueError, RuntimeError) as problem:
            said = " ".join(str(problem).split())
            raise ConfigError(
                f"there is no Ray cluster at {address!r}: {said}; start one with  ray start --head"
            ) from problem

    @property
    def slots(self) -> int:
        if self._workers is not None:
            return self._workers
        return max(1, int(self._ray.cluster_resources().get("CPU", 1)) // self._threads)

    memory = 0

    def start(self, group: Group) -> None:
        self._groups[self._task.remote(group.cells, self._orders)] = group

    def wait(self, seconds: float) -> list[Event]:
        ready, _ = self._ray.wait(list(self._groups), num_returns=1, timeout=seconds)
        return [self._read(reference) for reference in ready]

    def _read(self, reference: Any) -> Event:
        group = self._groups.pop(reference)
        try:
            return Done(group, self._ray.get(reference))
        except self._ray.exceptions.RayError as problem:
            # What a run raises is an outcome; this is a worker or a machine that is gone.
            said = str(problem).strip().splitlines()
            return Lost(group, f"Ray could not run it: {type(problem).__name__}{f', {said[0]}' if said else ''}")

    def close(self) -> None:
        for reference in self._groups:
            self._ray.cancel(reference, force=True)
        if self._connected:
            self._ray.shutdown()
