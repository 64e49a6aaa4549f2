"""Processes: worker processes on this machine. One that dies is noticed and replaced."""

from __future__ import annotations

import json
import os
import pickle
import queue
import signal
import subprocess
import sys
import tempfile
import threading
from contextlib import suppress
from typing import IO, Any

from playerfl.studies.backends.backend import Done, Event, Group, Lost, Progressed
from playerfl.studies.backends.group import WorkerConfig
from playerfl.studies.backends.memory import large_pages

# Not `-m`: the child must find the modules where its parent found them.
_START = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]); from playerfl.studies.backends.worker import main; main()"
)


def available_cores() -> int:
    """The cores this process may use."""
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # macOS, Windows
        return os.cpu_count() or 1


class Processes:
    """A fixed number of worker processes, each with one group at a time."""

    def __init__(self, count: int, config: WorkerConfig, threads: int = 1) -> None:
        self.slots = count
        self._config = config
        self._threads = threads
        self._news: queue.SimpleQueue[tuple[_Worker, Any]] = queue.SimpleQueue()
        self._workers: list[_Worker] = []

    @property
    def memory(self) -> int:
        return sum(worker.memory for worker in self._workers)

    def start(self, group: Group) -> None:
        tasks = {run.experiment.task for run in group.runs}
        # A worker that has this task's data in memory comes first.
        idle = sorted((w for w in self._workers if w.group is None), key=lambda w: w.tasks != tasks)
        if len(self._workers) < self.slots and not (idle and idle[0].tasks == tasks):
            idle = [_Worker(self._config, self._threads, self._news)]
            self._workers += idle
        idle[0].tasks = tasks
        idle[0].begin(group)

    def wait(self, seconds: float) -> list[Event]:
        events: list[Event] = []
        try:
            news = [self._news.get(timeout=seconds)]
            while not self._news.empty():
                news.append(self._news.get())
        except queue.Empty:
            return []
        for worker, message in news:
            events += self._read(worker, message)
        return events

    def _read(self, worker: _Worker, message: Any) -> list[Event]:
        group = worker.group
        if message is None:
            self._workers.remove(worker)
            return [] if group is None else [Lost(group, worker.ending())]
        kind, content, worker.memory = message
        if group is None:
            return []
        if kind == "progress":
            return [Progressed(group, content)]
        worker.group = None
        return [Done(group, content)]

    def close(self) -> None:
        for worker in self._workers:
            worker.process.kill()
        for worker in self._workers:
            worker.end()


class _Worker:
    """One process, and the thread that listens to it."""

    def __init__(self, config: WorkerConfig, threads: int, news: queue.SimpleQueue[tuple[_Worker, Any]]) -> None:
        self.group: Group | None = None
        self.tasks: set[str] = set()
        self.memory = 0
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 closed in `end`
        self.process = subprocess.Popen(
            [sys.executable, "-c", _START, json.dumps(sys.path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            env={**os.environ, **large_pages(), "OMP_NUM_THREADS": str(threads), "MKL_NUM_THREADS": str(threads)},
        )
        self._send(config)
        self._listener = threading.Thread(target=self._listen, args=(self.process.stdout, news), daemon=True)
        self._listener.start()

    def begin(self, group: Group) -> None:
        self.group = group
        self._send(group.runs)

    def _send(self, message: Any) -> None:
        assert self.process.stdin
        # If it has died, the listener says so.
        with suppress(OSError):
            pickle.dump(message, self.process.stdin)
            self.process.stdin.flush()

    def _listen(self, incoming: IO[bytes], news: queue.SimpleQueue[tuple[_Worker, Any]]) -> None:
        while True:
            try:
                message = pickle.load(incoming)
            except (EOFError, OSError, ValueError, pickle.UnpicklingError):
                message = None
            if message is None:
                self.process.wait()
            news.put((self, message))
            if message is None:
                return

    def ending(self) -> str:
        """How the process ended, with the last line it wrote to stderr."""
        code = self.process.wait()
        how = f"with exit code {code}"
        if code < 0:
            name = signal.Signals(-code).name if -code in set(signal.Signals) else f"signal {-code}"
            how = f"by {name}" + (" (perhaps it ran out of memory)" if -code == signal.SIGKILL else "")
        self._errors.seek(0)
        lines = self._errors.read()[-2000:].decode(errors="replace").strip().splitlines()
        self.end()
        return f"the worker process ended {how}" + (f": {lines[-1].strip()}" if lines else "")

    def end(self) -> None:
        self.process.wait()
        self._listener.join()
        for stream in (self.process.stdin, self.process.stdout, self._errors):
            # Closing flushes what the dead process never read.
            with suppress(OSError):
                if stream:
                    stream.close()
