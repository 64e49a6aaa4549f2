"""Starts Flower's programs with the safe flags and environment, and ends them by their process id."""

from __future__ import annotations

import ctypes
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import tomli_w

from playerfl.errors import ConfigError, PlayerflError
from playerfl.flower.operate.certificates import names_in, write_certificates
from playerfl.flower.wire.envelopes import check_site
from playerfl.storage.atomic_files import RERUN_HINT, make_directory, write_atomically

LOOPBACK = "127.0.0.1"
CONNECTION = "playerfl"
_PATIENCE = 20.0


class FlowerError(PlayerflError):
    """One of Flower's programs did not do what was asked."""


@dataclass(frozen=True)
class ServerHome:
    """The server's directory: certificates, Flower's database and settings, and the jobs."""

    path: Path

    @property
    def jobs(self) -> Path:
        return self.path / "jobs"

    @property
    def authority(self) -> Path:
        return self.path / "ca.crt"

    @property
    def port(self) -> int:
        settings = self.path / "server.json"
        try:
            return int(json.loads(settings.read_text(encoding="utf-8"))["port"])
        except (OSError, ValueError, KeyError, TypeError) as problem:
            raise ConfigError(f"there is no server in {self.path}; start one with playerfl flower up") from problem

    def prepare(self, names: Sequence[str], port: int) -> None:
        """Makes what is missing; certificates that are there are kept and checked."""
        make_directory(self.path, secret=True)
        for folder in (self.jobs, self.path / "flwr"):
            make_directory(folder)
        certificate = self.path / "server.pem"
        if not certificate.exists():
            write_certificates(self.path, [LOOPBACK, "localhost", *names])
        elif not self.authority.exists():
            raise ConfigError(
                f"there is no {self.authority}; put the certificate of the authority that signed {certificate} there"
            )
        missing = {LOOPBACK, *names} - set(names_in(certificate))
        if missing:
            raise ConfigError(
                f"{certificate} is not for {', '.join(sorted(missing))}; give one that is, or delete "
                "ca.crt, server.pem and server.key to have new ones made (every site then needs the new ca.crt)"
            )
        connection = {
            "superlink": {
                "default": CONNECTION,
                CONNECTION: {
                    "address": f"{LOOPBACK}:{port}",
                    "root-certificates": str(self.authority.resolve()),
                },
            }
        }
        write_atomically(self.path / "flwr" / "config.toml", tomli_w.dumps(connection).encode(), RERUN_HINT)
        write_atomically(self.path / "server.json", (json.dumps({"port": port}) + "\n").encode(), RERUN_HINT)

    def environment(self) -> dict[str, str]:
        home = self.path.resolve()
        return {**safe_environment(home / "flwr"), "PLAYERFL_FLOWER_JOBS": str(home / "jobs")}

    def superlink(self, port: int) -> list[str]:
        home = self.path.resolve()
        return [
            program("flower-superlink"),
            # The control interface has no authentication and shares this port: it must not leave the machine.
            *("--host", LOOPBACK, "--port", str(port)),
            *("--ssl-ca-certfile", str(home / "ca.crt")),
            *("--ssl-certfile", str(home / "server.pem")),
            *("--ssl-keyfile", str(home / "server.key")),
            *("--database", str(home / "state.db")),
            "--enable-supernode-auth",
            "--disable-runtime-dependency-installation",
        ]

    def flwr(self, *arguments: str) -> Any:
        """What one of Flower's own commands says, as JSON."""
        done = subprocess.run(
            [program("flwr"), *arguments, "--format", "json"],
            capture_output=True,
            text=True,
            env=self.environment(),
            check=False,
        )
        try:
            said = json.loads(done.stdout[done.stdout.index("{") :])
        except ValueError as problem:
            words = " ".join((done.stderr or done.stdout).split())
            raise FlowerError(f"flwr {arguments[0]} failed: {words[-300:] or 'it said nothing'}") from problem
        if not said.get("success", True):
            words = said.get("error-message") or said.get("error_message") or said
            raise FlowerError(f"flwr {arguments[0]} failed: {' '.join(str(words).split())[-300:]}")
        return said


@dataclass(frozen=True)
class SiteNode:
    """What a site's engineer decides: its name and key, where the server is, where state and data are."""

    name: str
    key: Path
    server: str
    authority: Path
    state: Path
    task: str | None = None
    data_dir: Path | None = None
    device: str | None = None
    port: int = 9094

    def check(self) -> None:
        check_site(self.name)
        for file, what in ((self.key, "key"), (self.authority, "ca")):
            if not file.is_file():
                raise ConfigError(f"there is no file {file}; give the right one with --{what}")
        if ":" not in self.server:
            raise ConfigError(f"--server must be NAME:PORT, as in fl.example.org:443, not {self.server!r}")
        make_directory(self.state, secret=True)

    def environment(self) -> dict[str, str]:
        return safe_environment(self.state.resolve() / "flwr")

    def supernode(self) -> list[str]:
        settings = {
            "site": self.name,
            "state": str(self.state.resolve()),
            "task": self.task or "",
            "data-dir": str(self.data_dir.resolve()) if self.data_dir else "",
            "device": self.device or "",
        }
        for key, value in settings.items():
            if any(character in value for character in "\"'\\\n"):
                raise ConfigError(f"{key} {value!r} must be without quotes and backslashes")
        return [
            program("flower-supernode"),
            *("--superlink", self.server),
            *("--root-certificates", str(self.authority.resolve())),
            *("--auth-supernode-private-key", str(self.key.resolve())),
            *("--host", LOOPBACK, "--port", str(self.port)),
            *("--node-config", " ".join(f'{key}="{value}"' for key, value in settings.items())),
        ]


def safe_environment(flwr_home: Path) -> dict[str, str]:
    """Nothing is reported to anybody, nothing is installed, one thread as the experiment says."""
    return {
        **os.environ,
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")]),
        "FLWR_HOME": str(flwr_home),
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
        "RAY_USAGE_STATS_ENABLED": "0",
        "OMP_NUM_THREADS": "1",
    }


def program(name: str) -> str:
    """One of Flower's programs, the one installed beside this Python."""
    beside = Path(sys.executable).with_name(name)
    found = str(beside) if beside.exists() else shutil.which(name)
    if found is None:
        raise ConfigError(f"{name} is missing; pip install 'playerfl[flower]'")
    return found


class Running:
    """A program under way, with everything it started, in a process group of its own."""

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
        """Asks it to end, then makes it; what it has started goes too. All of it is gone when this returns."""
        started = descendants(self.pid)
        self.process.terminate()
        ends = time.monotonic() + _PATIENCE
        while self.process.poll() is None and time.monotonic() < ends:
            # What it still starts on its way out would have no parent to be found by later.
            started |= descendants(self.pid)
            time.sleep(0.02)
        self.kill()
        # Apps have sessions of their own, and notice only after a while that nobody is left to work for.
        _make_end(started)

    def kill(self) -> None:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


def descendants(pid: int) -> dict[int, str]:
    """What a process has started, and what those have: numbers, and when each was born (Linux only)."""
    found: dict[int, str] = {}
    waiting = [pid]
    while waiting:
        # A child is listed with the thread that started it.
        for file in Path(f"/proc/{waiting.pop(0)}/task").glob("*/children"):
            with suppress(OSError):
                children = [int(child) for child in file.read_text().split()]
                found.update({child: _born(child) for child in children})
                waiting += children
    return found


def _make_end(processes: Mapping[int, str]) -> None:
    """Kills processes, known by number and birth, and waits until they are gone."""
    ends = time.monotonic() + _PATIENCE
    while (
        alive := [pid for pid, born in processes.items() if born and _born(pid) == born]
    ) and ends > time.monotonic():
        for pid in alive:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.02)


def _born(pid: int) -> str:
    """A process's start time, so that a number given anew is not taken for the old process; "" if it has ended."""
    try:
        state, *fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (OSError, ValueError):
        return ""
    # A dead one stays a zombie until its parent asks for it.
    return "" if state in "ZX" else fields[18]


def _end_with_parent() -> None:
    """Even where the parent is killed outright, no server is left behind (Linux only)."""
    ctypes.CDLL(None).prctl(1, signal.SIGTERM)


@contextmanager
def ending_on_signals() -> Iterator[None]:
    """SIGTERM ends a command as Ctrl-C does: everything it started is stopped on the way out."""

    def interrupt(_: int, __: FrameType | None) -> None:
        raise KeyboardInterrupt

    # SIGINT too: a shell starts background commands with it ignored.
    before = {number: signal.signal(number, interrupt) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    except KeyboardInterrupt:
        # A signal may strike between the start of a program and the moment when anybody knows of it.
        _make_end(descendants(os.getpid()))
        raise
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind((LOOPBACK, 0))
        return int(probe.getsockname()[1])


def wait_for_port(port: int, running: Running, seconds: float = 60.0) -> None:
    """Until a server listens on loopback."""
    ends = time.monotonic() + seconds
    while time.monotonic() < ends:
        if running.process.poll() is not None:
            raise FlowerError(
                f"the server ended at once, with exit code {running.process.returncode}; its log says why"
            )
        with suppress(OSError), socket.create_connection((LOOPBACK, port), timeout=1):
            return
        time.sleep(0.2)
    raise FlowerError(f"nothing listens on port {port} after {seconds:g} s; the server's log says why")
