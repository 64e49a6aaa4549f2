"""AuditLog: what left a site and what it refused, as a hash chain of JSON lines, in which any change is detected."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, BinaryIO

from playerfl.errors import RunDirectoryError
from playerfl.storage.atomic_files import storage_error

START = "0" * 64
"""The first line's value for the hash of the line before it."""
_TAIL = 2**20


def line_hash(entry: Mapping[str, Any]) -> str:
    """The hash of everything in a line except the hash itself, including the hash of the line before."""
    rest = {key: value for key, value in entry.items() if key != "hash"}
    return hashlib.sha256(json.dumps(rest, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


@dataclass(frozen=True)
class AuditLog:
    """Lines are only ever added, each with the hash of the line before it."""

    path: Path

    def add(self, event: str, **facts: Any) -> dict[str, Any]:
        """Adds a line; when this returns, it is on the disk."""
        try:
            with self._open() as file:
                number, before, end = _last(file)
                file.truncate(end)
                file.seek(end)
                entry: dict[str, Any] = {
                    "n": number + 1,
                    "time": datetime.now(UTC).isoformat(timespec="milliseconds"),
                    "event": event,
                    **facts,
                    "previous": before,
                }
                entry["hash"] = line_hash(entry)
                file.write(_written(entry) + b"\n")
                file.flush()
                os.fsync(file.fileno())
                return entry
        except OSError as problem:
            raise storage_error(self.path, problem) from problem

    @contextmanager
    def _open(self) -> Iterator[BinaryIO]:
        """The agent and a person's commands may write at the same time."""
        import fcntl

        self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT, 0o600)
        with os.fdopen(descriptor, "r+b") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield file

    def entries(self) -> list[dict[str, Any]]:
        """All lines; RunDirectoryError if one was changed, removed or inserted.

        An unfinished last line, as a power cut leaves it, is left out: what it would have recorded never left. So are
        blank lines at the end, as an editor leaves them.
        """
        try:
            lines = self.path.read_bytes().split(b"\n")
        except FileNotFoundError:
            return []
        except OSError as problem:
            raise RunDirectoryError(f"{self.path} cannot be read: {problem.strerror or problem}") from problem
        entries: list[dict[str, Any]] = []
        before = START
        whole = lines[:-1]
        while whole and not whole[-1].strip():
            whole.pop()
        for number, line in enumerate(whole, start=1):
            try:
                entry = json.loads(line)
                sound = entry["n"] == number and entry["previous"] == before and entry["hash"] == line_hash(entry)
                # The hash is of the parsed line: a repeated key, or an escape, would go unnoticed.
                sound = sound and _written(entry) == line
            except (ValueError, KeyError, TypeError, RecursionError):
                sound = False
            if not sound:
                raise RunDirectoryError(
                    f"{self.path}: line {number} does not fit the line before it; the log was changed or damaged "
                    "there, so do not rely on anything from this line on"
                )
            before = entry["hash"]
            entries.append(entry)
        return entries


def _written(entry: Mapping[str, Any]) -> bytes:
    return json.dumps(entry).encode()


def _last(file: BinaryIO) -> tuple[int, str, int]:
    """The number and hash of the last whole line, and where it ends."""
    size = file.seek(0, os.SEEK_END)
    back = _TAIL
    while size:
        file.seek(max(0, size - back))
        whole, newline, _ = file.read(min(back, size)).rpartition(b"\n")
        blank = whole.find(b"\n", len(whole.rstrip()))
        whole = whole if blank < 0 else whole[:blank]
        if newline and whole.strip():
            line = whole.rpartition(b"\n")[2]
            if len(line) < len(whole) or back >= size:
                try:
                    entry = json.loads(line)
                    return int(entry["n"]), str(entry["hash"]), max(0, size - back) + len(whole) + 1
                except (ValueError, KeyError, TypeError) as problem:
                    raise RunDirectoryError(
                        f"{file.name}: the last line is damaged; move the file elsewhere, and keep it"
                    ) from problem
        elif back >= size:
            break
        back *= 2
    return 0, START, 0


def sent_entries(entry: Mapping[str, Any]) -> dict[str, Any]:
    """The tensors that a line says have left: name to type and shape."""
    return dict(entry.get("entries") or {})
