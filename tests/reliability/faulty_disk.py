"""A disk that fills up or turns read-only: every write in a folder is counted, and from a chosen one onwards all fail.

Or only the chosen one fails, as when there is no room for a large file but still room for small ones.
"""

from __future__ import annotations

import builtins
import errno
import io
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

FULL, READ_ONLY = errno.ENOSPC, errno.EROFS
_real_open = io.open


class FaultyDisk:
    """Counts the writes in `home`; write number `fails_at` fails and, unless `once` is set, so do all later ones."""

    def __init__(self, home: Path, fails_at: int | None = None, problem: int = FULL, *, once: bool = False) -> None:
        self.home = home.resolve()
        self.fails_at = fails_at
        self.problem = problem
        self.once = once
        self.count = 0

    @property
    def failed(self) -> bool:
        return self.fails_at is not None and self.count >= self.fails_at

    def holds(self, path: object) -> bool:
        return isinstance(path, str | os.PathLike) and Path(os.fspath(path)).resolve().is_relative_to(self.home)

    def step(self, path: object) -> None:
        self.count += 1
        if self.count == self.fails_at or (self.failed and not self.once):
            raise OSError(self.problem, os.strerror(self.problem), str(path))

    @contextmanager
    def mounted(self) -> Iterator[FaultyDisk]:
        with pytest.MonkeyPatch.context() as patch:
            for module in (io, builtins):
                patch.setattr(module, "open", self._open)
            for name in ("mkdir", "truncate", "replace", "rename"):
                patch.setattr(os, name, self._watched(getattr(os, name)))
            if self.problem == READ_ONLY:
                # Files can be removed from a full disk, but not from a read-only one.
                for name in ("unlink", "remove", "rmdir", "chmod"):
                    patch.setattr(os, name, self._watched(getattr(os, name)))
            patch.setattr(os, "fsync", self._fsync)
            patch.setattr(os, "open", self._os_open)
            yield self

    def _watched(self, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(path: Any, *others: Any, **named: Any) -> Any:
            # A missing file is missing on any disk.
            if self.holds(path) and (os.path.lexists(path) or real.__name__ == "mkdir"):
                self.step(path)
            return real(path, *others, **named)

        return call

    def _fsync(self, handle: Any) -> None:
        # Nothing is synced: there is no power cut here, and syncing would take most of the time.
        number = handle if isinstance(handle, int) else handle.fileno()
        if self.holds(Path(f"/proc/self/fd/{number}").readlink()):
            self.step("fsync")

    def _os_open(self, path: Any, flags: int, *options: Any, real: Callable[..., int] = os.open, **named: Any) -> int:
        if flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT) and self.holds(path):
            self.step(path)
        return real(path, flags, *options, **named)

    def _open(self, file: Any, mode: str = "r", buffering: int = -1, *options: Any, **named: Any) -> Any:
        if not set(mode) & set("wax+") or not self.holds(file):
            return _real_open(file, mode, buffering, *options, **named)
        self.step(file)
        raw = _Raw(self, os.fspath(file), mode.replace("b", "").replace("t", ""))
        held = io.BufferedRandom(raw) if "+" in mode else io.BufferedWriter(raw)
        return held if "b" in mode else io.TextIOWrapper(held, *options, **named)


class _Raw(io.FileIO):
    def __init__(self, disk: FaultyDisk, path: str, mode: str) -> None:
        super().__init__(path, mode)
        self._disk = disk

    def write(self, data: Any) -> int:
        try:
            self._disk.step(self.name)
        except OSError:
            # A full disk still writes what it has room for.
            if self._disk.problem == FULL:
                super().write(bytes(data)[: len(data) // 2])
            raise
        return super().write(data)
