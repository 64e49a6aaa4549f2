"""Connections: what a listener keeps open. A peer that is silent, or sends a byte now and then, does not block it."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress


class Connections:
    """At most `most` connections, none of which keeps the listener waiting for more than `seconds` per message.

    The listener calls `add` for every connection, and `close_late` about once a second. The thread that answers a
    connection marks it with `working` while the peer is not expected to do anything, and calls `remove` at the end.
    """

    def __init__(self, most: int, seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self.most = most
        self.seconds = seconds
        self._clock = clock
        self._lock = threading.Lock()
        self._waiting_since: dict[socket.socket, float] = {}
        """When the listener began to wait for a peer to send its message, or to read the answer."""
        self._answered: set[socket.socket] = set()

    def add(self, connection: socket.socket) -> bool:
        """Keeps a connection. If there are too many, the one that has been waited for longest is closed.

        False if that is not possible, because all others are being answered.
        """
        with self._lock:
            if len(self._waiting_since) + len(self._answered) >= self.most:
                if not self._waiting_since:
                    return False
                self._end(min(self._waiting_since, key=self._waiting_since.__getitem__))
            self._waiting_since[connection] = self._clock()
            return True

    def remove(self, connection: socket.socket) -> None:
        with self._lock:
            self._waiting_since.pop(connection, None)
            self._answered.discard(connection)

    @contextmanager
    def working(self, connection: socket.socket) -> Iterator[None]:
        """For the time in which the answer is computed, however long it takes."""
        with self._lock:
            if self._waiting_since.pop(connection, None) is not None:
                self._answered.add(connection)
        try:
            yield
        finally:
            with self._lock:
                if connection in self._answered:
                    self._answered.discard(connection)
                    self._waiting_since[connection] = self._clock()

    def close_late(self) -> None:
        """Closes connections that have been waited for too long, even if bytes still trickle in."""
        with self._lock:
            since = self._clock() - self.seconds
            for connection in [one for one, began in self._waiting_since.items() if began <= since]:
                self._end(connection)

    def _end(self, connection: socket.socket) -> None:
        del self._waiting_since[connection]
        # Not closed here: its number could be given to another connection while a thread still reads from it.
        with suppress(OSError):
            connection.shutdown(socket.SHUT_RDWR)
