"""Checks before a deployment starts, at the server and at a site: what would fail later, in one sentence each."""

from __future__ import annotations

import errno
import http.client
import os
import shutil
import socket
import ssl
import stat
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Literal

from playerfl.errors import PlayerflError
from playerfl.flower.operate.certificates import expiry, expiry_warnings
from playerfl.flower.operate.keys import fingerprint_of_site
from playerfl.flower.operate.launch import ServerHome, program
from playerfl.flower.operate.processes import LOOPBACK, listens
from playerfl.flower.operate.register import KeyRegister
from playerfl.version import __version__

SECONDS = 10.0
CLOCK_SECONDS = 60.0
"""Flower refuses a node whose clock is 300 s off."""
SPACE = 2**30
Outcome = Literal["ok", "warning", "failure"]


@dataclass(frozen=True)
class Check:
    """The result of one check."""

    check: str
    outcome: Outcome
    message: str
    """The finding, and what to do about it."""


def check_machine() -> Iterator[Check]:
    """For every party: versions, Flower's programs."""
    python = ".".join(map(str, sys.version_info[:3]))
    yield Check("versions", "ok", f"playerfl {__version__}, Python {python}, {_versions('flwr', 'torch')}")
    for name in ("flwr", "flower-superlink", "flower-supernode"):
        try:
            program(name)
        except PlayerflError as problem:
            yield Check("programs", "failure", str(problem))


def check_server(home: ServerHome) -> Iterator[Check]:
    """The server's directory: permissions, certificates, keys, port, space."""
    try:
        port = home.port
    except PlayerflError as problem:
        yield Check("directory", "failure", str(problem))
        return
    yield from _private(home.path, "directory")
    yield from _private(home.path / "server.key", "server.key")
    yield from _writable(home.jobs)
    try:
        warnings = expiry_warnings(home.path)
        ends = expiry(home.path / "server.pem")
        expired = min(ends, expiry(home.authority)) < datetime.now(UTC)
        for warning in warnings:
            yield Check("certificate", "failure" if expired else "warning", warning)
        if not warnings:
            yield Check("certificate", "ok", f"valid until {ends:%Y-%m-%d}")
        keys = KeyRegister(home.path).read()
        yield Check("sites", "ok" if keys else "warning", f"registered: {', '.join(sorted(keys)) or 'none yet'}")
    except PlayerflError as problem:
        yield Check("files", "failure", str(problem))
    yield from _server_port(home, port)


def _server_port(home: ServerHome, port: int) -> Iterator[Check]:
    if not listens(LOOPBACK, port):
        with socket.socket() as probe:
            try:
                probe.bind((LOOPBACK, port))
            except OSError as problem:
                yield Check("port", "failure", f"port {port} is not free: {problem.strerror}; choose another --port")
            else:
                yield Check("port", "warning", f"the server is not running; port {port} is free: playerfl flower up")
        return
    yield from check_connection(LOOPBACK, port, home.authority)
    outside = _outside_address()
    if outside and listens(outside, port):
        yield Check(
            "exposure",
            "failure",
            f"{outside}:{port} answers, so others can reach Flower's control interface, which has no authentication; "
            "let only the proxy reach it",
        )


def check_site(
    server: str,
    authority: Path,
    key: Path,
    state: Path,
    load_data: Callable[[], str] | None = None,
    policy: Path | None = None,
) -> Iterator[Check]:
    """A site: its key, its directory, its policy, its data, and the connection to the server."""
    try:
        yield Check("key", "ok", f"{key}, fingerprint {fingerprint_of_site(key)}")
        yield from _private(key, "key")
    except (OSError, ValueError) as problem:
        yield Check("key", "failure", f"{key} cannot be used: {problem}")
    yield from _writable(state)
    if policy is not None:
        yield _policy(policy, server)
    if load_data is not None:
        try:
            yield Check("data", "ok", load_data())
        except PlayerflError as problem:
            yield Check("data", "failure", str(problem))
    host, _, port = server.rpartition(":")
    if not host or not port.isdecimal():
        yield Check("server", "failure", f"--server must be NAME:PORT, as in fl.example.org:443, not {server!r}")
        return
    yield from check_connection(host, int(port), authority)


def _policy(file: Path, server: str) -> Check:
    from playerfl.flower.site.policy import Policy

    try:
        policy = Policy.read(file)
        policy.check_server(server)
    except PlayerflError as problem:
        return Check("policy", "failure", str(problem))
    if file.stat().st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        return Check("policy", "warning", f"others may write what this site agrees to: chmod go-w {file}")
    approval = "a person approves every new job" if policy.approval == "person" else "jobs start without approval"
    return Check("policy", "ok", f"{file}: {approval}")


def check_connection(host: str, port: int, authority: Path) -> Iterator[Check]:
    """Reaches a server as its sites do: TLS with its certificate, its health, its clock."""
    try:
        context = ssl.create_default_context(cafile=str(authority))
    except (OSError, ssl.SSLError) as problem:
        yield Check("TLS", "failure", f"{authority} is not a file of certificates: {problem}")
        return
    connection = http.client.HTTPSConnection(host, port, timeout=SECONDS, context=context)
    try:
        asked = time.time()
        connection.request("GET", "/health")
        answer = connection.getresponse()
        answer.read()
    except ssl.SSLCertVerificationError as problem:
        reason = problem.verify_message or str(problem)
        yield Check("TLS", "failure", f"{authority} does not vouch for the certificate of {host}:{port}: {reason}")
        return
    except ssl.SSLError as problem:
        yield Check("TLS", "failure", f"{host}:{port} does not speak TLS correctly: {problem}")
        return
    except OSError as problem:
        yield Check("server", "failure", f"{host}:{port} cannot be reached: {problem}; is a firewall in the way?")
        return
    except http.client.HTTPException as problem:
        yield Check("server", "failure", f"{host}:{port} does not answer like a server: {type(problem).__name__}")
        return
    finally:
        connection.close()
    outcome: Outcome = "ok" if answer.status == 200 else "warning"
    yield Check("server", outcome, f"{host}:{port} answers over TLS (/health: {answer.status})")
    with suppress(TypeError, ValueError):
        offset = parsedate_to_datetime(answer.headers["Date"]).timestamp() - (asked + time.time()) / 2
        outcome = "ok" if abs(offset) < CLOCK_SECONDS else "failure"
        advice = "" if outcome == "ok" else "; Flower refuses nodes that are 5 minutes off: use NTP"
        yield Check("clock", outcome, f"{abs(offset):.0f} s off the server's{advice}")


def _private(path: Path, what: str) -> Iterator[Check]:
    try:
        mode = path.stat().st_mode
        if not os.access(path, os.R_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    except OSError as problem:
        yield Check("permissions", "failure", f"the {what} {path} cannot be read: {problem.strerror}")
        return
    if mode & (stat.S_IRWXG | stat.S_IRWXO):
        yield Check("permissions", "warning", f"others may read the {what} {path}: chmod go-rwx {path}")


def _writable(folder: Path) -> Iterator[Check]:
    if not os.access(folder if folder.exists() else folder.parent, os.W_OK | os.X_OK):
        user = os.environ.get("USER", "this user")
        yield Check("permissions", "failure", f"{user} may not write to {folder}: chown it to the service's user")
        return
    free = shutil.disk_usage(folder if folder.exists() else folder.parent).free
    outcome: Outcome = "ok" if free >= SPACE else "warning"
    yield Check("space", outcome, f"{free / 2**30:.1f} GiB free in {folder}")


def _outside_address() -> str | None:
    """This machine's own address as others see it; nothing is sent."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))
            address = str(probe.getsockname()[0])
        except OSError:
            return None
    return None if address.startswith("127.") else address


def _versions(*names: str) -> str:
    versions = []
    for name in names:
        try:
            versions.append(f"{name} {version(name)}")
        except PackageNotFoundError:
            versions.append(f"{name} is missing")
    return ", ".join(versions)
