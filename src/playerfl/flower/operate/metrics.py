"""The server's state as Prometheus reads it, from the server's own files: a scrape asks Flower nothing."""

from __future__ import annotations

import csv
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from threading import Thread

from playerfl.errors import ConfigError, PlayerflError
from playerfl.flower.operate.certificates import expiry
from playerfl.flower.operate.launch import ServerHome
from playerfl.flower.operate.register import KeyRegister
from playerfl.flower.operate.supervision import job_statuses
from playerfl.flower.server.job_status import PARTICIPATION
from playerfl.listeners.http_server import BoundedHTTPServer
from playerfl.version import __version__

STATES = ("waiting for sites", "running", "interrupted", "stopped", "ended", "failed", "finished")
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


def metrics_text(home: ServerHome, now: float | None = None) -> str:
    """All metrics in Prometheus' text format."""
    now = time.time() if now is None else now
    text = _Text()
    text.add("playerfl_info", "gauge", "The version of playerfl.", 1, version=__version__)
    for name in ("server.pem", "ca.crt"):
        try:
            ends = expiry(home.path / name).timestamp()
        except PlayerflError:
            continue
        text.add(
            "playerfl_certificate_expiry_seconds", "gauge", "When a certificate expires (Unix time).", ends, file=name
        )
    try:
        text.add("playerfl_registered_sites", "gauge", "Registered keys.", len(KeyRegister(home.path).read()))
    except PlayerflError:
        text.add("playerfl_registered_sites", "gauge", "Registered keys.", float("nan"))
    statuses = job_statuses(home)
    for status in statuses:
        for state in STATES:
            value = int(status.state == state)
            text.add("playerfl_job_state", "gauge", "1 for the state of a job.", value, job=status.job, state=state)
    for status in statuses:
        text.add("playerfl_job_round", "gauge", "Rounds completed.", status.round or 0, job=status.job)
    for status in statuses:
        text.add("playerfl_job_rounds", "gauge", "Rounds in all.", status.rounds, job=status.job)
    for status in statuses:
        text.add("playerfl_job_missing_sites", "gauge", "Sites waited for.", len(status.missing), job=status.job)
    for status in statuses:
        for site, missing in status.missing.items():
            since = now - datetime.fromisoformat(str(missing["since"])).timestamp()
            help_text = "How long a site has not responded."
            text.add("playerfl_site_missing_seconds", "gauge", help_text, round(since, 1), job=status.job, site=site)
    for status in statuses:
        for (site, outcome), count in sorted(_outcomes(home.jobs / status.job / PARTICIPATION).items()):
            labels = {"job": status.job, "site": site, "outcome": outcome}
            text.add("playerfl_messages_total", "counter", "Messages to sites by their outcome.", count, **labels)
    return str(text)


def _outcomes(table: Path) -> Counter[tuple[str, str]]:
    try:
        with table.open(newline="", encoding="utf-8") as file:
            return Counter((row["site"], row["outcome"]) for row in csv.DictReader(file))
    except (OSError, ValueError, KeyError, csv.Error):
        return Counter()


class _Text:
    def __init__(self) -> None:
        self._lines: list[str] = []
        self._described: set[str] = set()

    def add(self, name: str, kind: str, help_text: str, value: float, **labels: str) -> None:
        if name not in self._described:
            self._described.add(name)
            self._lines += [f"# HELP {name} {help_text}", f"# TYPE {name} {kind}"]
        inside = ",".join(f'{label}="{_escaped(text)}"' for label, text in labels.items())
        self._lines.append(f"{name}{{{inside}}} {value}" if inside else f"{name} {value}")

    def __str__(self) -> str:
        return "\n".join(self._lines) + "\n"


def _escaped(text: str) -> str:
    r"""A label's value.

    >>> print(_escaped('a "b" \\ c'))
    a \"b\" \\ c
    """
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


@contextmanager
def serving_metrics(home: ServerHome, host: str, port: int) -> Iterator[int]:
    """Serves /metrics, and nothing else, for a block; gives the port."""

    class Handler(BaseHTTPRequestHandler):
        server_version, sys_version = "playerfl", ""

        def do_GET(self) -> None:
            if self.path != "/metrics":
                self.send_error(404)
                return
            with server.connections.working(self.connection):
                body = metrics_text(home).encode()
            self.send_response(200)
            self.send_header("Content-Type", CONTENT_TYPE)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Scrapes are not logged."""

    try:
        server = BoundedHTTPServer((host, port), Handler)
    except OSError as problem:
        raise ConfigError(
            f"metrics cannot be served on {host}:{port}: {problem.strerror or problem}; choose another --metrics-port, "
            "or 0 for none"
        ) from problem
    Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield int(server.server_address[1])
    finally:
        server.shutdown()
        server.server_close()
