"""DirectoryLock: one process at a time works in a directory."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from playerfl.errors import RunDirectoryError

_TRIES = 4
_TRY_SECONDS = 0.02


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
        kind = fcntl.LOCK_SH if shared else fcntl.LOCK_EX
        handle = os.open(self.path, os.O_RDONLY)
        # A process that only checks (`in_use`) holds the lock for a moment.
        for tries_left in reversed(range(_TRIES)):
            try:
                fcntl.flock(handle, kind | (0 if wait else fcntl.LOCK_NB))
                break
            except BlockingIOError as problem:
                if not tries_left:
                    os.close(handle)
                    raise RunDirectoryError(
                        f"{self.path} is in use by another process; wait for it to end"
                    ) from problem
                time.sleep(_TRY_SECONDS)
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


def in_use(path: Path) -> bool:
    """Whether a process holds the lock of a directory; on Windows, always False."""
    try:
        with locked(path):
            return False
    except RunDirectoryError:
        return True
