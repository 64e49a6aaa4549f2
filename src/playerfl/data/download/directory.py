"""Where dataset files are stored: a directory the user names, or the user's cache."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path

VARIABLE = "PLAYERFL_DATA"
_chosen: ContextVar[Path | None] = ContextVar("data directory", default=None)


def data_directory() -> Path:
    """The directory set by `use_data_directory`, else $PLAYERFL_DATA, else playerfl's folder in the user's cache."""
    chosen = _chosen.get()
    if chosen is not None:
        return chosen
    if named := os.environ.get(VARIABLE):
        return Path(named).expanduser()
    if sys.platform == "darwin":
        cache = Path.home() / "Library" / "Caches"
    elif sys.platform == "win32":
        cache = Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local")
    else:
        cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return cache / "playerfl"


@contextmanager
def use_data_directory(path: Path | None) -> Iterator[None]:
    """Looks for dataset files in `path` within the block; None changes nothing."""
    token = _chosen.set(path if path is not None else _chosen.get())
    try:
        yield
    finally:
        _chosen.reset(token)
