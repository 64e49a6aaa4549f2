"""The shipped nginx configuration forwards the fleet interface and nothing else."""

from __future__ import annotations

import http.client
import os
import shutil
import ssl
from collections.abc import Iterator
from contextlib import ExitStack
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from flower.institutions import start_nginx
from playerfl.flower.operate.certificates import names_in, write_certificates
from playerfl.flower.operate.processes import LOOPBACK, free_port
from web import answering

NGINX = shutil.which("nginx", path=f"{os.environ.get('PATH', '')}:/usr/sbin")


@pytest.fixture
def behind(tmp_path: Path) -> Iterator[tuple[int, list[str], Path]]:
    """nginx in front of a server that accepts anything: its port, the paths it forwarded, and the certificates."""
    if NGINX is None:
        pytest.skip("nginx is not installed, so its configuration cannot be tested; apt-get install nginx-light")
    write_certificates(tmp_path, [LOOPBACK, "localhost"])
    seen: list[str] = []

    class Everything(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length", 0)))
            seen.append(self.path)
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        do_GET = do_POST  # noqa: N815

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer((LOOPBACK, 0), Everything)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(tmp_path / "server.pem", tmp_path / "server.key")
    server.socket = context.wrap_socket(server.socket, server_side=True)
    public = free_port()
    with ExitStack() as stack:
        stack.enter_context(answering(server))
        start_nginx(NGINX, tmp_path / "nginx", tmp_path, server.server_address[1], public, stack)
        yield public, seen, tmp_path


def ask(port: int, certificates: Path, path: str, body: bytes = b"") -> int:
    trusting = ssl.create_default_context(cafile=str(certificates / "ca.crt"))
    connection = http.client.HTTPSConnection(LOOPBACK, port, context=trusting, timeout=20)
    try:
        connection.putrequest("POST", path, skip_accept_encoding=True)
        connection.putheader("Content-Length", str(len(body)))
        connection.endheaders(body)
        return connection.getresponse().status
    finally:
        connection.close()


@pytest.mark.system
def test_only_the_fleet_interface_is_forwarded(behind: tuple[int, list[str], Path]) -> None:
    port, seen, certificates = behind
    assert ask(port, certificates, "/v1/fleet/pull-messages", b"x" * 6_000_000) == 200
    assert ask(port, certificates, "/health") == 200
    closed = [
        "/",
        "/v1/control/start-run",
        "/v1/runtime/get-nodes",
        "/v1/fleet/../control/start-run",
        "/v1/fleet/%2e%2e/control/start-run",
        "/v1/fleet/..%2fcontrol/start-run",
        "//v1/control/start-run",
        "/V1/CONTROL/start-run",
        "/health/../v1/control/start-run",
        "/docs",
        "/openapi.json",
    ]
    assert {path: ask(port, certificates, path) for path in closed} == dict.fromkeys(closed, 404)
    assert seen == ["/v1/fleet/pull-messages", "/health"]


@pytest.mark.system
def test_a_path_that_only_looks_like_the_fleet_interface_reaches_no_other(behind: tuple[int, list[str], Path]) -> None:
    """nginx decides by the normalised path, and must forward that one, not the one it received."""
    port, seen, certificates = behind
    for path in ("/v1/control/../fleet/pull", "/v1/fleet/a/../../fleet/pull", "/v1//fleet/%2e/pull"):
        ask(port, certificates, path)
    assert set(seen) == {"/v1/fleet/pull"}


def test_a_certificate_is_valid_for_the_names_it_was_made_for(tmp_path: Path) -> None:
    write_certificates(tmp_path, [LOOPBACK, "fl.example.org"])
    assert names_in(tmp_path / "server.pem") == [LOOPBACK, "fl.example.org"]
    assert (tmp_path / "server.key").stat().st_mode & 0o077 == 0
