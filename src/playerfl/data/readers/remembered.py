"""remembered: reads a file again only if it has changed. Every run may load its own split, so files are read often."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache, wraps
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

Arguments = ParamSpec("Arguments")
Content = TypeVar("Content")


def remembered(most: int) -> Callable[[Callable[Arguments, Content]], Callable[Arguments, Content]]:
    """Makes a function remember what it last returned for up to `most` combinations of arguments.

    Arguments must be positional and hashable. If one is a path, the file's size and modification time count too. The
    content is shared between callers, so they must not change it.

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
        status = path.stat()
    except OSError:
        return None  # reading the file will say what is wrong
    return status.st_size, status.st_mtime_ns
