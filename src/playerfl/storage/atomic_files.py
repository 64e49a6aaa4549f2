"""Files that are there wholly or not at all, and one sentence where they cannot be written."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterable
from pathlib import Path

from playerfl.errors import StorageError

RESUME = "continue with --resume"
RERUN_HINT = "give the same command again"


def write_atomically(
    path: Path, data: bytes | Iterable[bytes | memoryview], then: str = RESUME, *, secret: bool = False
) -> None:
    """Replaces a file so that a crash leaves either the old one or the new one, never half of one.

    `then`: what to do once a failed write has been mended. `secret`: only its owner can read it, from its first
    byte on.
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
        # The directory is not synced: after a power cut the old file may be back, which is as good to resume from,
        # unless another party relies on the new one (see `fsync_dir`).
        temporary.replace(path)
    except OSError as problem:
        with contextlib.suppress(OSError):  # nor can it be removed where nothing can be written
            temporary.unlink(missing_ok=True)
        raise storage_error(path, problem, then) from problem


def temp_path(path: Path) -> Path:
    """Where a file is until it is whole; a disk that turns read-only in between leaves it there."""
    return path.with_name(f".{path.name}.tmp")


def make_directory(path: Path, then: str = RERUN_HINT, *, secret: bool = False) -> None:
    """Makes a directory and its parents unless it exists; StorageError if it cannot be made.

    `secret`: only its owner may look into it.
    """
    try:
        path.mkdir(parents=True, exist_ok=True)
        if secret:
            path.chmod(0o700)
    except OSError as problem:
        raise storage_error(path, problem, then) from problem


def fsync_dir(folder: Path) -> None:
    """After this, not even a power cut brings back what files in a folder were replaced."""
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
    """One sentence for a failed write: what, why, and what to do."""
    remedy = {
        errno.ENOSPC: "free some space",
        errno.EDQUOT: "free some of your quota",
        errno.EFBIG: "allow larger files",
        errno.EACCES: "choose a directory you may write to",
        errno.EPERM: "choose a directory you may write to",
        errno.EROFS: "choose a directory that is not read-only",
    }.get(problem.errno or 0, "mend that")
    return StorageError(f"cannot write {path}: {problem.strerror or problem}; {remedy} and {then}")
