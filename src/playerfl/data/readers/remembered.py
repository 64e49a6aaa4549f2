"""remembered: files that were read are read again only if they have changed, since every run may load its own split."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache, wraps
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

Arguments = ParamSpec("Arguments")
Content = TypeVar("Content")


def remembered(most: int) -> Callable[[Callable[Arguments, Content]], Callable[Arguments, Content]]:
    """Makes a function remember what it last returned for up to `most` combinations of arguments.

    Arguments are positional and hashable; those that are paths count with the size and time of the file. The content is
    shared, so nobody may change it.

    >>> read = remembered(1)(lambda path: object())
    >>> read(Path("/")) is read(Path("/"))
    True
    """

    def make(read: Callable[Arguments, Content]) -> Callable[Arguments, Content]:
        with_any: Callable[..., Content] = read

        @lru_cache(maxsize=most)
        def known(stamps: tuple[Any, ...], *given: Any) -> Content:
            return with_any(*given)

        @wraps(read)
        def call(*given: Arguments.args, **_: Arguments.kwargs) -> Content:
            return known(tuple(_stamp(path) for path in given if isinstance(path, Path)), *given)

        return call

    return make


def _stamp(path: Path) -> tuple[int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None  # reading it says what is wrong
    return found.st_size, found.st_mtime_ns
