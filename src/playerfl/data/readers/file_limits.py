"""Finding a file, and limits on its size and unpacked size, checked before memory is allocated."""

from __future__ import annotations

import gzip
import io
import struct
import tarfile
import zipfile
import zlib
from pathlib import Path
from typing import IO

from playerfl.errors import DataError

ARCHIVE_ERRORS = (
    *(OSError, EOFError, ValueError, LookupError, OverflowError, NotImplementedError, RuntimeError, struct.error),
    *(zipfile.BadZipFile, tarfile.TarError, zlib.error),
)
"""Exceptions that reading a crafted zip or tar archive may raise; most of them are undocumented."""
LARGEST_FILE = 4 * 2**30
LARGEST_ARRAY = 8 * 2**30
_ALWAYS_UNPACKED = 2**28
_USUAL_RATIO = 200


def find_file(folder: Path, *names: str) -> Path:
    """The first of these files that the folder has, plain or with .gz appended."""
    for name in names:
        for path in (folder / name, folder / f"{name}.gz"):
            if path.is_file():
                return path
    raise DataError(f"{folder} has no {' or '.join(names)}, plain or with .gz; put it there")


def check_file(path: Path, name: str, largest: int = LARGEST_FILE) -> int:
    """The size of a file, after checking that it is safe to open."""
    try:
        size = path.stat().st_size
        # Reading a pipe or device with this name would never end.
        regular = path.is_file()
    except OSError as problem:
        raise DataError(f"cannot read {name}: {problem.strerror or problem}") from problem
    if not regular:
        raise DataError(f"{name} is not a regular file; put a file with the site's data there, or remove it")
    if size > largest:
        raise DataError(f"{name} is {in_units(size)}; the limit is {in_units(largest)}, so split or shrink it")
    if size == 0:
        raise DataError(f"{name} is empty; add data, or remove the file")
    return size


def unpacked_limit(packed: int) -> int:
    """How many bytes a compressed file may unpack to.

    Data rarely compress more than 200-fold; a file that claims more may only unpack to a harmless size.

    >>> unpacked_limit(1000) == 2**28, unpacked_limit(2**40) == LARGEST_FILE
    (True, True)
    """
    return min(LARGEST_FILE, max(_ALWAYS_UNPACKED, _USUAL_RATIO * packed))


def check_array(rows: int, inputs: int, itemsize: int, name: str, remedy: str) -> None:
    """Refuses an array that would not fit into memory."""
    size = rows * inputs * itemsize
    if size > LARGEST_ARRAY:
        raise DataError(
            f"{name} would become {rows:,} rows of {inputs:,} inputs, {in_units(size)}; the limit is "
            f"{in_units(LARGEST_ARRAY)}, so {remedy}"
        )


class Bounded(io.RawIOBase):
    """A stream that unpacks as it is read, up to a limit."""

    def __init__(self, stream: IO[bytes] | gzip.GzipFile, name: str, limit: int) -> None:
        super().__init__()
        self._stream = stream
        self._name = name
        self._limit = limit
        self._left = limit

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        content = self._stream.read(len(buffer))
        self._left -= len(content)
        if self._left < 0:
            raise DataError(
                f"{self._name} unpacks to more than {in_units(self._limit)}, far more than its size suggests; "
                "if that is right, unpack it yourself"
            )
        buffer[: len(content)] = content
        return len(content)

    def close(self) -> None:
        self._stream.close()
        super().close()


def in_units(size: int) -> str:
    """
    >>> in_units(5 * 2**30), in_units(300), in_units(3 * 2**19)
    ('5.0 GiB', '300 bytes', '1.5 MiB')
    """
    for unit, power in (("GiB", 30), ("MiB", 20)):
        if size >= 2**power:
            return f"{size / 2**power:,.1f} {unit}"
    return f"{size:,} bytes"
