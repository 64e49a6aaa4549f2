"""LiveServer: the live page on the loopback address, while somebody watches."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any, NamedTuple

from playerfl.errors import ConfigError, PlayerflError
from playerfl.listeners.connections import Connections
from playerfl.listeners.http_server import BoundedHTTPServer
from playerfl.live.page import content_security_policy, live_page, status_part
from playerfl.live.status import FolderStatus, Watcher

_LOOPBACK = "127.0.0.1"
_NAMES = (_LOOPBACK, "localhost")
_REPORT_POLICY = "frame-ancestors 'self'"


class LiveServer:
    """Answers three addresses: the page, its changing part, and the report of the finished runs."""

    def __init__(self, home: Path, title: str, port: int = 0) -> None:
        self.home = home
        self.title = title
        self._watcher = Watcher(home)
        self._looking = threading.Lock()
        self._reporting = threading.Lock()
        self._report: tuple[int, str] | None = None
        self.reported = 0
        """How many finished runs the last report that was sent covers."""
        try:
            self._server = BoundedHTTPServer((_LOOPBACK, port), _handler(self))
        except (OSError, OverflowError) as problem:
            raise ConfigError(f"port {port} cannot be used: {problem}; choose another with --port") from problem

    @property
    def port(self) -> int:
        return int(self._server.server_port)

    @property
    def address(self) -> str:
        return f"http://{_LOOPBACK}:{self.port}/"

    @property
    def connections(self) -> Connections:
        return self._server.connections

    def serve(self) -> None:
        """Until it is closed or interrupted."""
        self._server.serve_forever(poll_interval=0.2)

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def status(self) -> FolderStatus:
        with self._looking:
            return self._watcher.look()

    def report(self) -> str:
        """The report on the finished runs; computed again only if more have finished."""
        finished = self.status().finished
        with self._reporting:
            if self._report is None or self._report[0] != finished:
                self._report = (finished, self._written_report())
            self.reported = finished
            return self._report[1]

    def _written_report(self) -> str:
        from playerfl.report.compute.report import build_report
        from playerfl.report.write.documents import as_page
        from playerfl.studies.collecting import collect

        return as_page(build_report(collect(self.home)), f"Federated learning report: {self.home.resolve().name}")

    def wait_for_readers(self, seconds: float) -> None:
        """Gives an open page time to fetch the last report before the command ends."""
        end = time.monotonic() + seconds
        finished = self.status().finished
        while self.reported < finished and time.monotonic() < end:
            time.sleep(0.1)


@contextmanager
def serving(server: LiveServer) -> Iterator[LiveServer]:
    """Serves in the background for a block."""
    thread = threading.Thread(target=server.serve, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.close()
        thread.join()


class _Answer(NamedTuple):
    code: int
    text: str
    kind: str = "text/html"
    policy: str = "default-src 'none'"


def _handler(live: LiveServer) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        server_version = "playerfl"
        sys_version = ""

        def do_GET(self) -> None:
            # A report takes as long as it takes; only a visitor that keeps the server waiting is dropped.
            with live.connections.working(self.connection):
                answer = self._answer()
            self._send(answer)

        def _answer(self) -> _Answer:
            # A web page may point its own domain name at this address (DNS rebinding); its requests carry that name.
            host = self.headers.get("Host", "").rpartition(":")[0]
            if host not in _NAMES:
                return _Answer(403, "This page is only for a browser on the same computer.", "text/plain")
            path = self.path.partition("?")[0]
            try:
                if path == "/":
                    return _Answer(200, live_page(live.title, live.status()), policy=content_security_policy())
                if path == "/status":
                    return _Answer(200, status_part(live.status()), policy=content_security_policy())
                if path == "/report":
                    return _Answer(200, live.report(), policy=_REPORT_POLICY)
            except PlayerflError as problem:
                return _Answer(503, str(problem), "text/plain")
            return _Answer(404, "There is nothing here.", "text/plain")

        def _send(self, answer: _Answer) -> None:
            body = answer.text.encode("utf-8", "replace")
            self.send_response(answer.code)
            for name, value in (
                ("Content-Type", f"{answer.kind}; charset=utf-8"),
                ("Content-Length", str(len(body))),
                ("Content-Security-Policy", answer.policy),
                ("Cache-Control", "no-store"),
                ("X-Content-Type-Options", "nosniff"),
                ("Referrer-Policy", "no-referrer"),
            ):
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            pass

    return Handler
