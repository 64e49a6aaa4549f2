"""The agent's Unix socket, which only the agent's own user and its node's user may use."""

from __future__ import annotations

import logging
import os
import socket
import threading
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from playerfl.errors import ConfigError, PlayerflError, RunDirectoryError
from playerfl.flower.node.connection import peer_user, short_path
from playerfl.flower.site.process.memory import return_freed_memory
from playerfl.flower.wire.parcel import MOST_BYTES, Parcel, receive, send
from playerfl.listeners.connections import Connections
from playerfl.storage.locking import DirectoryLock

log = logging.getLogger("playerfl.flower.site")

PEER_SECONDS = 120.0
"""How long the other end may take for a whole message, and again for reading the whole response."""
MOST_CONNECTIONS = 8
_LOOK_SECONDS = 1.0
"""Seconds between two checks for connections that take too long."""


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
    connections = Connections(MOST_CONNECTIONS, PEER_SECONDS)

    def serve() -> None:
        while True:
            connections.close_late()
            try:
                connection, _ = server.accept()
            except TimeoutError:
                continue
            except OSError:
                if server.fileno() < 0:
                    return
                # Too many open files, for example: the next connection may succeed.
                time.sleep(_LOOK_SECONDS)
                continue
            # Others are turned away first, so that they cannot crowd out the node.
            if not _is_allowed(connection, allowed) or not connections.add(connection):
                connection.close()
                continue
            try:
                threading.Thread(target=handle, args=(connection,), daemon=True).start()
            except RuntimeError:
                log.exception("a connection cannot be answered")
                connections.remove(connection)
                connection.close()

    def handle(connection: socket.socket) -> None:
        try:
            with connection:
                _respond(connection, answer, connections, most_bytes)
        finally:
            connections.remove(connection)
            return_freed_memory()

    with _only_one(path):
        server = _bound(path, group)
        server.settimeout(_LOOK_SECONDS)
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


@contextmanager
def _only_one(path: Path) -> Iterator[None]:
    """Two agents that start at the same moment would each take the other's socket for that of a dead one."""
    file = path.with_name(f".{path.name}.lock")
    lock = DirectoryLock(file)
    try:
        file.touch(mode=0o600)
        lock.take()
    except OSError as problem:
        raise _cannot_listen(path, problem) from problem
    except RunDirectoryError as problem:
        raise _another_agent(path) from problem
    try:
        yield
    finally:
        lock.release()


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
        server.listen(128)
    except OSError as problem:
        server.close()
        raise _cannot_listen(path, problem) from problem
    except ConfigError:
        server.close()
        raise
    return server


def _remove_old(path: Path, reachable: str) -> None:
    """Removes the socket of an agent that was killed; refuses if something listens there."""
    if not path.is_socket():
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        try:
            probe.connect(reachable)
        except OSError:
            path.unlink(missing_ok=True)
            return
    raise _another_agent(path)


def _another_agent(path: Path) -> ConfigError:
    return ConfigError(f"another agent is listening at {path}; stop it first")


def _cannot_listen(path: Path, problem: OSError) -> ConfigError:
    return ConfigError(f"cannot listen at {path}: {problem.strerror or problem}; choose another --socket")


def _is_allowed(connection: socket.socket, allowed: Collection[int]) -> bool:
    try:
        user = peer_user(connection)
    except OSError:
        return False
    if user is not None and user not in allowed:
        log.warning("user %s may not connect; only %s", user, sorted(allowed))
        return False
    return True


def _respond(
    connection: socket.socket, answer: Callable[[Parcel], Parcel], connections: Connections, most_bytes: int
) -> None:
    try:
        parcel = receive(connection, most_bytes)
        # The answer may take as long as training does.
        with connections.working(connection):
            response = answer(parcel)
        send(connection, response)
    except (PlayerflError, OSError) as problem:
        log.warning("a connection ended early: %s", problem)
