"""BoundedHTTPServer: a small web server of our own that slow or silent visitors cannot exhaust."""

from __future__ import annotations

import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from playerfl.listeners.connections import Connections

MOST_CONNECTIONS = 32
"""A browser opens about six."""
SECONDS = 30.0
"""For the whole request, and again for the whole answer."""


class BoundedHTTPServer(ThreadingHTTPServer):
    """Answers each connection in a thread; as many as `Connections` keeps."""

    daemon_threads = True

    def __init__(self, address: tuple[str, int], handler: type[BaseHTTPRequestHandler]) -> None:
        self.connections = Connections(MOST_CONNECTIONS, SECONDS)
        super().__init__(address, handler)

    def process_request(self, request: Any, client_address: Any) -> None:
        if self.connections.add(request):
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def shutdown_request(self, request: Any) -> None:
        self.connections.remove(request)
        super().shutdown_request(request)

    def service_actions(self) -> None:
        """Called by `serve_forever` after every request, and at least twice a second."""
        self.connections.close_late()

    def handle_error(self, request: Any, client_address: Any) -> None:
        # A visitor that hangs up, or is hung up on, is not worth a traceback on the operator's screen.
        if not isinstance(sys.exc_info()[1], OSError):
            super().handle_error(request, client_address)
