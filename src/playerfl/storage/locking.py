"""DirectoryLock: one process at a time works in a directory."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from playerfl.errors import RunDirectoryError


class DirectoryLock:
    """Held until it is released or the process ends, however it ends. On Windows it locks nothing."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._held: int | None = None

    def take(self, *, shared: bool = False, wait: bool = False) -> None:
        """Refuses if another process holds the lock, or waits for it; several processes may hold it `shared`."""
        try:
            import fcntl
        except ImportError:  # Windows
            return
        handle = os.open(self.path, os.O_RDONLY)
        try:
            fcntl.flock(handle, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError as problem:
            os.close(handle)
            raise RunDirectoryError(f"{self.path} is in use by another process; wait for it to end") from problem
        self._held = handle

    @contextmanager
    def released_on_failure(self) -> Iterator[None]:
        """Releases the lock if anything in the block fails, since the caller may want to try again."""
        try:
            yield
        except BaseException:
            self.release()
            raise

    def release(self) -> None:
        if self._held is not None:
            os.close(self._held)
            self._held = None


@contextmanager
def locked(path: Path, *, wait: bool = False) -> Iterator[None]:
    """Holds the lock of a directory for a block."""
    lock = DirectoryLock(path)
    lock.take(wait=wait)
    try:
        yield
    finally:
        lock.release()
