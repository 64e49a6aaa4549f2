"""One download: resumed after an interruption, checked against its SHA-256, never left incomplete under its name."""

from __future__ import annotations

import hashlib
import os
import urllib.request
from collections.abc import Callable, Iterator
from http.client import HTTPException, HTTPResponse
from pathlib import Path
from typing import IO, cast
from urllib.error import HTTPError, URLError
from urllib.parse import urlsplit

from playerfl.errors import DataError
from playerfl.storage.atomic_files import RERUN_HINT, storage_error

ByteProgress = Callable[[int, int | None], None]
"""Called with the bytes so far, and the size if that is known."""

TIMEOUT_SECONDS = 30.0
_CHUNK = 1 << 16
# NIST's server refuses Python's default user agent.
_HEADERS = {"User-Agent": "Mozilla/5.0 (compatible; playerfl)"}
_PARTIAL_CONTENT, _RANGE_NOT_SATISFIABLE = 206, 416


class UnreachableError(DataError):
    """The server cannot be reached, or does not have the file."""


class _WrongFileError(DataError):
    """The bytes received are not those of the file."""


def download(
    url: str, target: Path, sha256: str, size: int | None = None, progress: ByteProgress | None = None
) -> None:
    """Downloads `url` to `target`, which appears only once its checksum is right.

    Bytes collect in `target.part`, which survives a broken connection: the next call asks only for the rest.
    """
    if urlsplit(url).scheme not in ("http", "https"):
        raise DataError(f"{url} cannot be downloaded: only http and https addresses are allowed")
    part = target.with_name(target.name + ".part")
    try:
        if size is not None and _length(part) > size:
            part.unlink()
        if size is None or _length(part) < size:
            _fill(part, url, size, progress)
        digest = sha256_of(part)
        if digest != sha256:
            raise _WrongFileError(
                f"{target.name} from {url} has the SHA-256 {digest} instead of {sha256}, so it was deleted; "
                "try again later, or get the file elsewhere"
            )
        with part.open("rb+") as file:
            os.fsync(file.fileno())
        part.replace(target)
    except _WrongFileError:
        part.unlink(missing_ok=True)
        raise
    except OSError as problem:
        raise storage_error(target, problem, RERUN_HINT) from problem


def sha256_of(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _length(part: Path) -> int:
    return part.stat().st_size if part.exists() else 0


def _fill(part: Path, url: str, size: int | None, progress: ByteProgress | None) -> None:
    """Downloads the rest of the file into `part`."""
    have = _length(part)
    response = _ask(url, have)
    if response is None:
        return
    with response:
        have = _start(response, have, url)
        end = _end(response, have)
        part.parent.mkdir(parents=True, exist_ok=True)
        with part.open("ab") as file:
            file.truncate(have)
            for chunk in _chunks(response, url, file):
                have += len(chunk)
                if size is not None and have > size:
                    raise _WrongFileError(f"{url} sends more than the {size:,} bytes of the file, so it was deleted")
                file.write(chunk)
                if progress:
                    progress(have, end if size is None else size)
    # Some servers end a response early without an error.
    if (expected := size if end is None else end) is not None and have < expected:
        raise _broken_off(url, have)


def _ask(url: str, start: int) -> HTTPResponse | None:
    """The response to a request for everything from byte `start` on; None if there is nothing more."""
    request = urllib.request.Request(url, headers=_HEADERS)
    if start:
        request.add_header("Range", f"bytes={start}-")
    try:
        return cast(HTTPResponse, _opener().open(request, timeout=TIMEOUT_SECONDS))
    except HTTPError as problem:
        with problem:
            if problem.code == _RANGE_NOT_SATISFIABLE and start:
                return None
            raise UnreachableError(f"{_host(url)} answers {problem.code} {problem.reason} for {url}") from problem
    except (OSError, HTTPException) as problem:
        reason = problem.reason if isinstance(problem, URLError) else problem
        raise UnreachableError(f"cannot reach {_host(url)} ({reason}); is there an internet connection?") from problem


def _opener() -> urllib.request.OpenerDirector:
    """Follows redirects to http and https only; urllib's default opener also follows ftp, file and data."""
    opener = urllib.request.OpenerDirector()
    for handler in (
        urllib.request.ProxyHandler,
        urllib.request.UnknownHandler,
        urllib.request.HTTPHandler,
        urllib.request.HTTPSHandler,
        urllib.request.HTTPDefaultErrorHandler,
        urllib.request.HTTPRedirectHandler,
        urllib.request.HTTPErrorProcessor,
    ):
        opener.add_handler(handler())
    return opener


def _start(response: HTTPResponse, asked: int, url: str) -> int:
    """Where the response starts in the file: at `asked`, or at 0 if the server does not support ranges."""
    if response.status != _PARTIAL_CONTENT:
        return 0
    if not response.headers.get("Content-Range", "").startswith(f"bytes {asked}-"):
        raise _WrongFileError(f"{_host(url)} sent a different part of {url} than requested; {RERUN_HINT}")
    return asked


def _end(response: HTTPResponse, start: int) -> int | None:
    """Where the response ends in the file, if it says so."""
    length = response.headers.get("Content-Length", "")
    return start + int(length) if length.isdecimal() and len(length) < 20 else None


def _chunks(response: HTTPResponse, url: str, file: IO[bytes]) -> Iterator[bytes]:
    while True:
        try:
            chunk = response.read(_CHUNK)
        except (OSError, HTTPException) as problem:
            raise _broken_off(url, file.tell()) from problem
        if not chunk:
            return
        yield chunk


def _broken_off(url: str, have: int) -> DataError:
    return DataError(
        f"the connection to {_host(url)} was lost after {have:,} bytes of {url}; {RERUN_HINT} to continue from there"
    )


def _host(url: str) -> str:
    return urlsplit(url).hostname or url
