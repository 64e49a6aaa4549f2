"""Unpacks chosen files from a zip or tar.gz archive, but only if the whole archive looks harmless."""

from __future__ import annotations

import os
import shutil
import stat
import tarfile
import zipfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO

from playerfl.data.readers.file_limits import ARCHIVE_ERRORS
from playerfl.errors import DataError
from playerfl.storage.atomic_files import RERUN_HINT, storage_error

LARGEST = 2 * 10**9
"""How many bytes an archive may unpack to."""


@dataclass(frozen=True)
class _Member:
    name: str
    size: int
    is_file: bool
    open: Callable[[], IO[bytes]]


def unpack(archive: Path, folder: Path, wanted: Sequence[str], *, largest: int = LARGEST) -> None:
    """Writes the wanted members directly into `folder`, each one atomically."""
    try:
        with _opened(archive) as members:
            for member in _chosen(archive.name, members, wanted, largest):
                _write(member, folder / PurePosixPath(member.name).name)
    except ARCHIVE_ERRORS as problem:
        if isinstance(problem, OSError) and problem.errno is not None:
            raise storage_error(folder, problem, RERUN_HINT) from problem
        raise DataError(f"{archive} cannot be unpacked: {problem}; delete it and fetch it again") from problem


def _chosen(archive: str, members: Sequence[_Member], wanted: Sequence[str], largest: int) -> list[_Member]:
    if sum(member.size for member in members) > largest:
        raise DataError(f"{archive} would unpack to more than {largest:,} bytes; nothing was unpacked")
    for member in members:
        if _leaves_its_folder(member.name):
            raise DataError(
                f"{archive} has a member called {member.name!r}, which would be written elsewhere; nothing was unpacked"
            )
    chosen = {member.name: member for member in members if member.name in wanted}
    for name in wanted:
        if name not in chosen:
            raise DataError(f"{archive} has no {name}; nothing was unpacked")
        if not chosen[name].is_file:
            raise DataError(f"{name} in {archive} is not an ordinary file; nothing was unpacked")
    return [chosen[name] for name in wanted]


def _leaves_its_folder(name: str) -> bool:
    """Whether a name is absolute or leads to a parent folder, on any system.

    >>> [_leaves_its_folder(name) for name in ("a/b", "/a", "a/../../b", "C:b", "..\\\\b")]
    [False, True, True, True, True]
    """
    return name.startswith("/") or ".." in name.split("/") or "\\" in name or ":" in name


@contextmanager
def _opened(archive: Path) -> Iterator[list[_Member]]:
    if zipfile.is_zipfile(archive):
        with zipfile.ZipFile(archive) as packed:
            yield [_zip_member(packed, info) for info in packed.infolist()]
    else:
        with tarfile.open(archive, "r:gz") as packed_tar:
            yield [_tar_member(packed_tar, info) for info in packed_tar]


def _zip_member(archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> _Member:
    kind = stat.S_IFMT(info.external_attr >> 16)
    is_file = not info.is_dir() and kind in (0, stat.S_IFREG)
    return _Member(info.filename, info.file_size, is_file, lambda: archive.open(info))


def _tar_member(archive: tarfile.TarFile, info: tarfile.TarInfo) -> _Member:
    def content() -> IO[bytes]:
        file = archive.extractfile(info)
        if file is None:
            raise tarfile.TarError(f"{info.name} has no content")
        return file

    return _Member(info.name, info.size, info.isreg(), content)


def _write(member: _Member, target: Path) -> None:
    # Hidden, so that patterns for the file do not match it.
    part = target.with_name(f".{target.name}.part")
    try:
        with member.open() as content, part.open("wb") as file:
            # Neither kind of archive yields more than the size that was checked.
            shutil.copyfileobj(content, file)
            file.flush()
            os.fsync(file.fileno())
        part.replace(target)
    finally:
        part.unlink(missing_ok=True)
