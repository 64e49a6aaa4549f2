"""RayTasks: groups as tasks of a Ray cluster; results come back as bytes and are written by this process."""

from __future__ import annotations

import os
import socket
from contextlib import ExitStack, redirect_stdout
from dataclasses import replace
from pathlib import Path
from typing import Any

from playerfl.errors import ConfigError
from playerfl.runs.setup import Setups
from playerfl.studies.backends.backend import Done, Event, Group, Lost
from playerfl.studies.backends.group import EndedRun, WorkerConfig, run_group
from playerfl.studies.run_file import PlannedRun

_SECONDS_TO_CONNECT = 10.0
_setups = Setups()
"""One per process: the tasks that Ray gives a worker share their data."""


def _run(runs: list[PlannedRun], config: WorkerConfig) -> list[EndedRun]:
    return run_group(runs, _setups, config)


class RayTasks:
    """One task per group, as many at a time as the cluster has cores. Machines may join and leave."""

    def __init__(self, workers: int | None, threads: int, config: WorkerConfig, address: str | None) -> None:
        # Ray reads these when it starts: it is to send no usage statistics and to hide no GPUs from its tasks.
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
        try:
            import ray
        except ImportError as problem:
            raise ConfigError("--backend ray needs Ray; pip install 'playerfl[ray]'") from problem
        self._ray: Any = ray
        self._workers = workers
        self._threads = threads
        # Other machines cannot write checkpoints into this one's directory; lost runs start again.
        self._config = replace(config, unfinished=None)
        self._groups: dict[Any, Group] = {}
        self._connected = not ray.is_initialized()
        if self._connected:
            self._connect(address)
        # The scheduler handles lost groups, as with other backends.
        self._task = ray.remote(num_cpus=threads, max_retries=0)(_run)
        # Ray prints paragraphs about lost workers to stdout, whatever its log settings.
        self._quiet = ExitStack()
        nowhere = self._quiet.enter_context(Path(os.devnull).open("w"))  # noqa: SIM115 the stack closes it
        self._quiet.enter_context(redirect_stdout(nowhere))

    def _connect(self, address: str | None) -> None:
        quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": "error"}
        if address is None:
            quiet |= {"include_dashboard": False, "num_cpus": self._workers and self._workers * self._threads}
        _check_reachable(address)
        try:
            # "local": without an address Ray would join whatever cluster was last started here.
            self._ray.init(address=address or "local", **quiet)
        except (ConnectionError, ValueError, RuntimeError) as problem:
            raise _no_cluster(address, problem) from problem

    @property
    def slots(self) -> int:
        if self._workers is not None:
            return self._workers
        return max(1, int(self._ray.cluster_resources().get("CPU", 1)) // self._threads)

    memory = 0

    def start(self, group: Group) -> None:
        self._groups[self._task.remote(group.runs, self._config)] = group

    def wait(self, seconds: float) -> list[Event]:
        ready, _ = self._ray.wait(list(self._groups), num_returns=1, timeout=seconds)
        return [self._read(reference) for reference in ready]

    def _read(self, reference: Any) -> Event:
        group = self._groups.pop(reference)
        try:
            return Done(group, self._ray.get(reference))
        except self._ray.exceptions.RayError as problem:
            # A run that raises is an outcome; here a worker or a machine is gone.
            message = str(problem).strip().splitlines()
            errors = self._ray.exceptions
            machine_left = isinstance(problem, errors.NodeDiedError | errors.LocalRayletDiedError)
            reason = f"Ray could not run it: {type(problem).__name__}{f', {message[0]}' if message else ''}"
            return Lost(group, reason, blame=not machine_left)

    def close(self) -> None:
        for reference in self._groups:
            self._ray.cancel(reference, force=True)
        if self._connected:
            self._ray.shutdown()
        self._quiet.close()


def _check_reachable(address: str | None) -> None:
    """Fails fast: Ray itself would try for minutes."""
    host, _, port = (address or "").removeprefix("ray://").rpartition(":")
    if not port.isdigit():
        return
    try:
        socket.create_connection((host, int(port)), timeout=_SECONDS_TO_CONNECT).close()
    except OSError as problem:
        raise _no_cluster(address, problem) from problem


def _no_cluster(address: str | None, problem: Exception) -> ConfigError:
    message = " ".join(str(problem).split())
    return ConfigError(f"there is no Ray cluster at {address!r}: {message}; start one with  ray start --head")
