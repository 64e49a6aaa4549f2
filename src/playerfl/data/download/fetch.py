"""Fetches a dataset's files into its folder in the data directory."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

from playerfl.data.download.file import UnreachableError, download, sha256_of
from playerfl.data.download.hub import copy_from_hub
from playerfl.data.download.sources import RemoteFile, Source, source_of
from playerfl.data.download.unpack import unpack
from playerfl.errors import DataError, RunDirectoryError
from playerfl.storage.atomic_files import RERUN_HINT, make_directory, storage_advice, storage_error
from playerfl.storage.locking import locked

FileProgress = Callable[[str, int, int | None], None]
"""Called with a file's name, its bytes so far, and its size if that is known."""


def fetch(name: str, progress: FileProgress | None = None, *, hub: bool = False) -> Path:
    """The folder of a dataset, after fetching missing files from the official source or from the hub."""
    source = source_of(name)
    if hub:
        if source.hub is None:
            raise DataError(f"dataset {name!r} has no copy on the hub; {_other_ways(source)}")
        with _in_use(source):
            copy_from_hub(source.hub, source.home)
        return source.home
    if not source.files:
        raise DataError(f"dataset {name!r} cannot be downloaded directly; {_other_ways(source, hub=True)}")
    place = source.place()
    if place in source.other_places:
        return place
    with _in_use(source):
        for file in source.files:
            _fetch_file(source, file, progress)
    return source.home


def _other_ways(source: Source, *, hub: bool = False) -> str:
    ways = [command for command in source.commands if command.endswith("--hub") == hub]
    return ", or ".join([*ways, f"by hand: {source.instructions}"])


def _fetch_file(source: Source, file: RemoteFile, progress: FileProgress | None) -> None:
    target = source.home / file.path
    if file.members and all(path.is_file() for path in file.results(source.home)):
        # The archive is still there if it could not be removed after unpacking.
        if target.is_file() and sha256_of(target) == file.sha256:
            _remove(target)
        return
    if target.is_file():
        digest = sha256_of(target)
        if digest != file.sha256:
            raise DataError(
                f"{target} has the SHA-256 {digest} instead of {file.sha256}; move it away to fetch the official file"
            )
    else:
        download(file.url, target, file.sha256, file.size, partial(progress, file.path) if progress else None)
    if file.members:
        unpack(target, source.home, file.members)
        _remove(target)


def _remove(archive: Path) -> None:
    try:
        archive.unlink()
    except OSError as problem:
        raise storage_error(archive, problem) from problem


@contextmanager
def _in_use(source: Source) -> Iterator[None]:
    """Creates and locks the folder; if the source cannot be reached, removes it again and says what to do."""
    folder = source.home
    try:
        with storage_advice(f"{RERUN_HINT}, perhaps with another --data-dir"):
            make_directory(folder)
            with locked(folder):
                yield
    except RunDirectoryError as problem:
        raise DataError(str(problem)) from problem
    except UnreachableError as problem:
        raise DataError(f"{problem}; by hand: {source.instructions}") from problem
    finally:
        with suppress(OSError):
            folder.rmdir()
