"""Starts programs, and stops them together with everything they started."""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType

from playerfl.errors import ConfigError, PlayerflError

LOOPBACK = "127.0.0.1"
_STOP_SECONDS = 20.0
"""Seconds a program may take to stop before it is killed."""
_WATCH_SECONDS = 1.0


class FlowerError(PlayerflError):
    """One of Flower's programs failed."""


class Running:
    """A running program and everything it started, in its own process group."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str], log: Path | None = None) -> None:
        output = log.open("ab") if log else None
        try:
            self.process = subprocess.Popen(
                list(command),
                env=dict(environment),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT if output else None,
                start_new_session=True,
                preexec_fn=_end_with_parent if sys.platform == "linux" else None,
            )
        finally:
            if output:
                output.close()

    def __enter__(self) -> Running:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def pid(self) -> int:
        return self.process.pid

    def stop(self) -> None:
        """Terminates the program, or kills it if that takes too long, and kills everything it started."""
        started = descendants(self.pid)
        self.process.terminate()
        ends = time.monotonic() + _STOP_SECONDS
        while self.process.poll() is None and time.monotonic() < ends:
            # Once it is gone, the processes it starts during shutdown could no longer be traced to it.
            started |= descendants(self.pid)
            time.sleep(0.02)
        self.kill()
        # Apps have their own sessions and take a while to notice that their node is gone.
        _kill_all(started)

    def kill(self) -> None:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


def descendants(pid: int) -> dict[int, str]:
    """All children of a process and their children: process ids and start times (Linux only)."""
    processes: dict[int, str] = {}
    waiting = [pid]
    while waiting:
        # Children are listed per thread.
        for file in Path(f"/proc/{waiting.pop(0)}/task").glob("*/children"):
            with suppress(OSError):
                children = [int(child) for child in file.read_text().split()]
                processes.update({child: _start_time(child) for child in children})
                waiting += children
    return processes


def _kill_all(processes: Mapping[int, str]) -> None:
    """Kills processes, given by id and start time, and waits until they are gone."""
    ends = time.monotonic() + _STOP_SECONDS
    while (
        alive := [pid for pid, born in processes.items() if born and _start_time(pid) == born]
    ) and ends > time.monotonic():
        for pid in alive:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.02)


def _start_time(pid: int) -> str:
    """When a process started, in clock ticks since the machine did; "" if it has ended."""
    try:
        state, *fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (OSError, ValueError):
        return ""
    # A dead process remains as a zombie until its parent has waited for it.
    return "" if state in "ZX" else fields[18]


def process_identity(pid: int) -> str:
    """A process's ID and start time, so that a reused ID is not mistaken for it; "" if unknown (Linux only)."""
    born = _start_time(pid)
    return f"{pid} {born}" if born else ""


def end_with(identity: str) -> None:
    """Ends this process at once, from a thread of its own, when the process of `process_identity` is gone.

    `_exit`, because the main thread may be waiting in a call that no signal interrupts.
    """
    if not identity:
        return
    pid, born = identity.split()

    def watch() -> None:
        while _start_time(int(pid)) == born:
            time.sleep(_WATCH_SECONDS)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def _end_with_parent() -> None:
    """Makes the program end with its parent, even if the parent is killed (Linux only)."""
    ctypes.CDLL(None).prctl(1, signal.SIGTERM)


@contextmanager
def ending_on_signals() -> Iterator[None]:
    """Makes SIGTERM stop a command as Ctrl-C does, together with everything it started."""

    def interrupt(_: int, __: FrameType | None) -> None:
        raise KeyboardInterrupt

    # SIGINT too: shells start background commands with SIGINT ignored.
    before = {number: signal.signal(number, interrupt) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    except KeyboardInterrupt:
        # The signal may have arrived between the start of a program and its registration here.
        _kill_all(descendants(os.getpid()))
        raise
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind((LOOPBACK, 0))
        return int(probe.getsockname()[1])


def listens(host: str, port: int) -> bool:
    """Whether a program accepts connections at an address."""
    with suppress(OSError), socket.create_connection((host, port), timeout=1):
        return True
    return False


def wait_until_free(port: int, seconds: float = 10.0) -> None:
    """Waits for a server that is just ending; ConfigError if another one keeps the port."""
    ends = time.monotonic() + seconds
    while listens(LOOPBACK, port):
        if time.monotonic() > ends:
            raise ConfigError(f"port {port} is taken, perhaps by a server that runs already; choose another --port")
        time.sleep(0.2)


def wait_for_port(port: int, running: Running, seconds: float = 180.0) -> None:
    """Waits until a server listens on loopback."""
    ends = time.monotonic() + seconds
    while time.monotonic() < ends:
        if running.process.poll() is not None:
            raise FlowerError(
                f"the server stopped immediately with exit code {running.process.returncode}; see its log"
            )
        if listens(LOOPBACK, port):
            return
        time.sleep(0.2)
    raise FlowerError(f"nothing is listening on port {port} after {seconds:g} s; see the server's log")
