"""The agent's Unix socket, which only the agent's own user and its node's user may use."""

from __future__ import annotations

import logging
import os
import socket
import threading
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from playerfl.errors import ConfigError, PlayerflError
from playerfl.flower.node.connection import peer_user, short_path
from playerfl.flower.site.process.memory import return_freed_memory
from playerfl.flower.wire.parcel import MOST_BYTES, Parcel, receive, send

log = logging.getLogger("playerfl.flower.site")

READ_SECONDS = 120.0
"""How long the other end may be silent within a parcel."""
MOST_CONNECTIONS = 8


@contextmanager
def listening(
    path: Path,
    answer: Callable[[Parcel], Parcel],
    users: Collection[int] = (),
    *,
    group: int | None = None,
    most_bytes: int = MOST_BYTES,
) -> Iterator[None]:
    """Answers parcels that arrive at a socket, in threads, until the block ends.

    `users`: who may connect besides this process's own user. `group`: whose members may reach the socket.
    """
    allowed = {os.getuid(), *users}
    free = threading.BoundedSemaphore(MOST_CONNECTIONS)
    server = _bound(path, group)

    def serve() -> None:
        while True:
            try:
                connection, _ = server.accept()
            except OSError:
                return
            if not free.acquire(blocking=False):
                connection.close()
                continue
            threading.Thread(target=handle, args=(connection,), daemon=True).start()

    def handle(connection: socket.socket) -> None:
        try:
            with connection:
                _respond(connection, answer, allowed, most_bytes)
        finally:
            free.release()
            return_freed_memory()

    thread = threading.Thread(target=serve, daemon=True, name="agent")
    thread.start()
    try:
        yield
    finally:
        with suppress(OSError):
            server.shutdown(socket.SHUT_RDWR)
        server.close()
        thread.join(5)
        path.unlink(missing_ok=True)


def _bound(path: Path, group: int | None) -> socket.socket:
    """A socket that nobody else can reach, not even for a moment, unless they belong to `group`."""
    server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        with short_path(path) as reachable:
            _remove_old(path, reachable)
            mask = os.umask(0o177)
            try:
                server.bind(reachable)
            finally:
                os.umask(mask)
        if group is not None:
            os.chown(path, -1, group)
            path.chmod(0o660)
        server.listen(MOST_CONNECTIONS)
    except OSError as problem:
        server.close()
        reason = problem.strerror or problem
        raise ConfigError(f"cannot listen at {path}: {reason}; choose another --socket") from problem
    except ConfigError:
        server.close()
        raise
    return server


def _respond(
    connection: socket.socket, answer: Callable[[Parcel], Parcel], allowed: Collection[int], most_bytes: int
) -> None:
    user = peer_user(connection)
    if user is not None and user not in allowed:
        log.warning("user %s may not connect; only %s", user, sorted(allowed))
        return
    connection.settimeout(READ_SECONDS)
    try:
        parcel = receive(connection, most_bytes)
        # The answer may take as long as training does.
        response = answer(parcel)
        send(connection, response)
    except (PlayerflError, OSError) as problem:
        log.warning("a connection ended early: %s", problem)


def _remove_old(path: Path, reachable: str) -> None:
    """Removes the socket of an agent that was killed; refuses if one is alive."""
    if not path.is_socket():
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        try:
            probe.connect(reachable)
        except OSError:
            path.unlink(missing_ok=True)
            return
    raise ConfigError(f"another agent is listening at {path}; stop it first")
