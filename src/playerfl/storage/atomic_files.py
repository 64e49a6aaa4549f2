"""Files that are written completely or not at all, and one sentence if they cannot be written."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterable, Iterator
from pathlib import Path

from playerfl.errors import StorageError

RESUME = "continue with --resume"
RERUN_HINT = "run the same command again"


def write_atomically(
    path: Path, data: bytes | Iterable[bytes | memoryview], then: str = RESUME, *, secret: bool = False
) -> None:
    """Replaces a file so that a crash leaves either the old one or the new one, never a part of it.

    `then`: what the user should do once the cause of a failed write is fixed. `secret`: only the owner can ever
    read the file, even while it is being written.
    """
    temporary = temp_path(path)
    try:
        if secret:
            temporary.unlink(missing_ok=True)
            temporary.touch(mode=0o600, exist_ok=False)
        with temporary.open("wb") as file:
            file.writelines([data] if isinstance(data, bytes) else data)
            file.flush()
            os.fsync(file.fileno())
        # The directory is not synced: after a power cut the old file may be back. Resuming from it works too, unless
        # another machine relies on the new file (see `fsync_dir`).
        temporary.replace(path)
    except OSError as problem:
        with contextlib.suppress(OSError):  # a read-only disk does not let us remove it either
            temporary.unlink(missing_ok=True)
        raise storage_error(path, problem, then) from problem


def temp_path(path: Path) -> Path:
    """The name of a file while it is being written; it is left behind if the disk turns read-only in the meantime."""
    return path.with_name(f".{path.name}.tmp")


def make_directory(path: Path, then: str = RERUN_HINT, *, secret: bool = False) -> None:
    """Makes a directory and its parents unless it exists; StorageError if it cannot be made.

    `secret`: only its owner may read it.
    """
    try:
        path.mkdir(parents=True, exist_ok=True)
        if secret:
            path.chmod(0o700)
    except OSError as problem:
        raise storage_error(path, problem, then) from problem


def fsync_dir(folder: Path) -> None:
    """Makes the replaced files of a directory survive a power cut."""
    try:
        handle = os.open(folder, os.O_RDONLY)
    except OSError:  # Windows does not open directories
        return
    try:
        os.fsync(handle)
    except OSError as problem:
        raise storage_error(folder, problem) from problem
    finally:
        os.close(handle)


def storage_error(path: Path, problem: OSError, then: str = RESUME) -> StorageError:
    """One sentence about a failed write: what, why, and what to do."""
    remedy = {
        errno.ENOSPC: "free some space",
        errno.EDQUOT: "free some of your quota",
        errno.EFBIG: "allow larger files",
        errno.EACCES: "choose a directory you may write to",
        errno.EPERM: "choose a directory you may write to",
        errno.EROFS: "choose a directory that is not read-only",
    }.get(problem.errno or 0, "fix this")
    return StorageError(f"cannot write {path}: {problem.strerror or problem}; {remedy}", then)


@contextlib.contextmanager
def storage_advice(then: str) -> Iterator[None]:
    """Replaces the advice in storage errors, for example where there is no --resume.

    >>> with storage_advice("run the job again"):
    ...     raise StorageError("the disk is full; free some space", RESUME)
    Traceback (most recent call last):
    playerfl.errors.StorageError: the disk is full; free some space and run the job again
    """
    try:
        yield
    except StorageError as error:
        raise StorageError(error.problem, then) from error.__cause__
