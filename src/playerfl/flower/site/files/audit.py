"""AuditLog: what left a site and what it refused, as a hash chain of JSON lines, in which any change is detected."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO

from playerfl.errors import RunDirectoryError
from playerfl.flower.site.files.names import OWN
from playerfl.storage.atomic_files import make_directory, storage_error, write_atomically

START = "0" * 64
"""The first line's value for the hash of the line before it."""
GAP = "gap"
"""The event that says that lines are missing before it."""
_TAIL = 2**20


def line_hash(entry: Mapping[str, Any]) -> str:
    """The hash of everything in a line except the hash itself, including the hash of the line before."""
    rest = {key: value for key, value in entry.items() if key != "hash"}
    return hashlib.sha256(json.dumps(rest, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


@dataclass(frozen=True)
class AuditLog:
    """Lines are only ever added, each with the hash of the line before it.

    Which line was written last is noted in a file of its own, so that the log itself says when lines are missing: a
    chain that was cut off, or begun anew, has no broken link.
    """

    path: Path

    @property
    def last_line(self) -> Path:
        """Where the last line is noted."""
        return self.path.parent / OWN / "last_line.json"

    def add(self, event: str, **facts: Any) -> dict[str, Any]:
        """Adds a line; when this returns, it is on the disk."""
        try:
            with self._open() as file:
                number, before, end = _last(file, self.path)
                file.truncate(end)
                noted = self._noted()
                missing = noted is not None and noted != (number, before) and not _contains(file, noted)
                file.seek(end)
                if noted is not None and missing:
                    gap = _entry(number, before, GAP, {"detail": _missing(noted)})
                    file.write(_written(gap) + b"\n")
                    number, before = gap["n"], gap["hash"]
                entry = _entry(number, before, event, facts)
                file.write(_written(entry) + b"\n")
                file.flush()
                os.fsync(file.fileno())
                make_directory(self.last_line.parent, secret=True)
                write_atomically(self.last_line, json.dumps([entry["n"], entry["hash"]]).encode(), secret=True)
                return entry
        except OSError as problem:
            raise storage_error(self.path, problem) from problem

    def _noted(self) -> tuple[int, str] | None:
        """The number and hash of the last line that was written, or of an earlier one after a power cut."""
        try:
            number, hashed = json.loads(self.last_line.read_bytes())
            return int(number), str(hashed)
        except (OSError, ValueError, TypeError, RecursionError):
            return None

    @contextmanager
    def _open(self) -> Iterator[BinaryIO]:
        """The agent and a person's commands may write at the same time."""
        import fcntl

        self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        while True:
            descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT, 0o600)
            with os.fdopen(descriptor, "r+b") as file:
                fcntl.flock(file, fcntl.LOCK_EX)
                # Replaced while we waited for the lock: a line in the old file would be lost.
                if _is_at(descriptor, self.path):
                    yield file
                    return

    def entries(self) -> list[dict[str, Any]]:
        """All lines; RunDirectoryError if one was changed, removed or inserted, the last ones included.

        An unfinished last line, as a power cut leaves it, is left out: what it would have recorded never left. So are
        blank lines at the end, as an editor leaves them.
        """
        # Before the log itself, to which the agent may add a line at any time.
        noted = self._noted()
        try:
            lines = self.path.read_bytes().split(b"\n")
        except FileNotFoundError:
            lines = [b""]
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
        if noted is not None and noted[1] not in (entry["hash"] for entry in entries[noted[0] - 1 : noted[0]]):
            raise RunDirectoryError(f"{self.path}: {_missing(noted)}")
        return entries


def _is_at(descriptor: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False


def _entry(number: int, before: str, event: str, facts: Mapping[str, Any]) -> dict[str, Any]:
    """The line after line `number`, whose hash is `before`."""
    entry: dict[str, Any] = {
        "n": number + 1,
        "time": datetime.now(UTC).isoformat(timespec="milliseconds"),
        "event": event,
        **facts,
        "previous": before,
    }
    return {**entry, "hash": line_hash(entry)}


def _contains(file: BinaryIO, noted: tuple[int, str]) -> bool:
    """Whether a line is in its place in the file."""
    number, hashed = noted
    file.seek(0)
    line = next(islice(file, max(0, number - 1), None), b"")
    return f'"hash": "{hashed}"'.encode() in line


def _missing(noted: tuple[int, str]) -> str:
    number, hashed = noted
    return f"line {number}, written with the hash {hashed}, is missing; the log was cut off, replaced or deleted"


def _written(entry: Mapping[str, Any]) -> bytes:
    return json.dumps(entry).encode()


def _last(file: BinaryIO, path: Path) -> tuple[int, str, int]:
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
                except (ValueError, KeyError, TypeError, RecursionError) as problem:
                    raise RunDirectoryError(
                        f"{path}: the last line is damaged; move the file elsewhere, and keep it"
                    ) from problem
        elif back >= size:
            break
        back *= 2
    return 0, START, 0


def sent_entries(entry: Mapping[str, Any]) -> dict[str, Any]:
    """The tensors that a line says have left: name to type and shape."""
    return dict(entry.get("entries") or {})
