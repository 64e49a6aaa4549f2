"""A listener keeps few connections, and waits for none of them for long."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from http.server import BaseHTTPRequestHandler
from urllib.request import urlopen

import pytest

from playerfl.listeners import http_server
from playerfl.listeners.connections import Connections
from playerfl.listeners.http_server import BoundedHTTPServer
from slow_peer import hung_up_on
from web import answering


class Pairs:
    """Connected sockets, and a clock that stands still."""

    def __init__(self, stack: ExitStack) -> None:
        self.stack = stack
        self.now = 0.0

    def connection(self) -> tuple[socket.socket, socket.socket]:
        one, other = socket.socketpair()
        other.settimeout(10)
        return self.stack.enter_context(one), self.stack.enter_context(other)


@pytest.fixture
def pairs() -> Iterator[Pairs]:
    with ExitStack() as stack:
        yield Pairs(stack)


def is_closed(peer: socket.socket) -> bool:
    peer.setblocking(False)
    try:
        return peer.recv(1) == b""
    except BlockingIOError:
        return False


def test_the_connection_waited_for_longest_makes_room(pairs: Pairs) -> None:
    connections = Connections(2, 60.0, lambda: pairs.now)
    peers = []
    for pairs.now in (0.0, 1.0, 2.0):
        own, peer = pairs.connection()
        assert connections.add(own)
        peers.append(peer)
    assert [is_closed(peer) for peer in peers] == [True, False, False]


def test_a_connection_that_is_being_answered_stays(pairs: Pairs) -> None:
    connections = Connections(2, 60.0, lambda: pairs.now)
    (first, first_peer), (second, second_peer), (third, third_peer) = (pairs.connection() for _ in range(3))
    assert connections.add(first) and connections.add(second)
    with connections.working(first):
        pairs.now = 1000.0
        connections.close_late()
        assert [is_closed(first_peer), is_closed(second_peer)] == [False, True]
        assert connections.add(third)
        with connections.working(third):
            assert not connections.add(pairs.connection()[0])
    # Now the peer has to read the answer, for which it has the same time again.
    pairs.now += 59.0
    connections.close_late()
    assert not is_closed(first_peer)
    pairs.now += 1.0
    connections.close_late()
    assert is_closed(first_peer) and is_closed(third_peer)


def test_a_removed_connection_takes_no_place(pairs: Pairs) -> None:
    connections = Connections(1, 60.0, lambda: pairs.now)
    own, peer = pairs.connection()
    connections.add(own)
    connections.remove(own)
    connections.remove(own)
    assert connections.add(pairs.connection()[0]) and not is_closed(peer)


class Hello(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Length", "5")
        self.end_headers()
        self.wfile.write(b"hello")

    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def web() -> Iterator[BoundedHTTPServer]:
    server = BoundedHTTPServer(("127.0.0.1", 0), Hello)
    with answering(server):
        yield server


@pytest.mark.slow
def test_silent_visitors_do_not_keep_others_from_a_page(pairs: Pairs, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_server, "MOST_CONNECTIONS", 4)
    before = threading.active_count()
    with web() as server:
        silent = [
            pairs.stack.enter_context(socket.create_connection(server.server_address[:2], timeout=10))  # type: ignore[arg-type]
            for _ in range(20)
        ]
        with urlopen(f"http://127.0.0.1:{server.server_port}/", timeout=10) as page:
            assert page.read() == b"hello"
        assert silent[0].recv(1) == b""
        ends = time.monotonic() + 10
        while threading.active_count() > before + 1 + 4 and time.monotonic() < ends:
            time.sleep(0.01)
        assert threading.active_count() <= before + 1 + 4


def test_a_visitor_that_sends_a_byte_now_and_then_is_dropped(pairs: Pairs, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_server, "SECONDS", 0.3)
    with web() as server:
        slow = pairs.stack.enter_context(socket.create_connection(server.server_address[:2]))  # type: ignore[arg-type]
        assert hung_up_on(slow, b"GET /" + b"x" * 200)
