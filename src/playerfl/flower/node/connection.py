"""The Unix socket between a node and its site's agent: one parcel each way, from known users only."""

from __future__ import annotations

import os
import socket
import struct
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from playerfl.errors import ConfigError
from playerfl.flower.wire.parcel import Parcel, receive, send

CONNECT_SECONDS = 30.0
_LONGEST_PATH = 100
"""Longer paths of sockets are refused by the operating system (108 bytes on Linux, 104 on macOS)."""


def ask_agent(path: str, parcel: Parcel, seconds: float | None = None) -> Parcel:
    """Passes one parcel to the agent and waits for its response; `seconds` limits each wait, training included."""
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    with connection, short_path(Path(path)) as reachable:
        connection.settimeout(CONNECT_SECONDS)
        _connect(connection, reachable)
        send(connection, parcel)
        connection.settimeout(seconds)
        return receive(connection)


def _connect(connection: socket.socket, reachable: str) -> None:
    ends = time.monotonic() + CONNECT_SECONDS
    while True:
        try:
            connection.connect(reachable)
            return
        except BlockingIOError:
            # Too many others are waiting to be let in; a socket with a timeout does not queue up by itself.
            if time.monotonic() > ends:
                raise
            time.sleep(0.05)


@contextmanager
def short_path(path: Path) -> Iterator[str]:
    """A name for a socket that is short enough: through its folder's descriptor, if the path itself is too long."""
    if len(os.fsencode(path)) <= _LONGEST_PATH:
        yield str(path)
        return
    if not Path("/proc/self/fd").exists():
        raise ConfigError(f"the socket's path {path} is longer than {_LONGEST_PATH} bytes; choose a shorter --socket")
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        yield f"/proc/self/fd/{folder}/{path.name}"
    finally:
        os.close(folder)


def peer_user(connection: socket.socket) -> int | None:
    """The user id of the process at the other end; None where the operating system does not say (not Linux)."""
    if not hasattr(socket, "SO_PEERCRED"):
        return None
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    user: int = struct.unpack("3i", credentials)[1]
    return user
