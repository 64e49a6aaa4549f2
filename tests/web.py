"""A local web server that misbehaves as a test asks."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from socketserver import BaseServer


@dataclass
class Web:
    """How the server answers, and the requests it received."""

    address: str = ""
    files: dict[str, bytes] = field(default_factory=dict)
    knows_ranges: bool = True
    says_length: bool = True
    cut_after: int | None = None
    """Bytes of a response after which the connection is closed."""
    redirect_to: str | None = None
    range_header: str | None = None
    """A Content-Range to send instead of the right one."""
    asked: list[tuple[str, str | None]] = field(default_factory=list)
    """Path and range of each request."""

    def put(self, name: str, content: bytes) -> tuple[str, str]:
        """The address and SHA-256 of a new file."""
        self.files[f"/{name}"] = content
        return f"{self.address}/{name}", hashlib.sha256(content).hexdigest()


@contextmanager
def answering(server: BaseServer) -> Iterator[None]:
    """A server at work in a thread, until the block ends."""
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@contextmanager
def serving() -> Iterator[Web]:
    web = Web()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            _answer(self, web)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    web.address = f"http://127.0.0.1:{server.server_port}"
    with answering(server):
        yield web


def _answer(request: BaseHTTPRequestHandler, web: Web) -> None:
    wanted = request.headers.get("Range")
    web.asked.append((request.path, wanted))
    if web.redirect_to:
        request.send_response(302)
        request.send_header("Location", web.redirect_to)
        request.end_headers()
        return
    content = web.files.get(request.path)
    if content is None:
        request.send_error(404)
        return
    start = int(wanted.removeprefix("bytes=").removesuffix("-")) if wanted and web.knows_ranges else 0
    if start and start >= len(content):
        request.send_error(416)
        return
    request.send_response(206 if start else 200)
    if start:
        right = f"bytes {start}-{len(content) - 1}/{len(content)}"
        request.send_header("Content-Range", web.range_header or right)
    if web.says_length:
        request.send_header("Content-Length", str(len(content) - start))
    request.end_headers()
    request.wfile.write(content[start:][: web.cut_after])
