"""Reader: one kind of file that somebody else may have written, and how it is read."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Reader:
    """`example` writes valid files into an empty folder; `read` reads that folder."""

    name: str
    example: Callable[[Path], None]
    read: Callable[[Path], object]
    repair: Callable[[Path], object] = lambda folder: None
    """Corrects checksums after a file was broken, so that the code behind them is reached."""
    repairs: tuple[str, ...] = ()
    """The files that `repair` changes."""
    weight: float = 1.0
    """Relative share of all inputs; slow readers get fewer."""
    writes: bool = False
    """Whether reading changes the folder."""
    skips: tuple[str, ...] = ()
    """Files that are left intact."""


class NotAnInput(BaseException):
    """An input that says nothing about a reader: a message Flower refuses to build, a run that would take hours."""


def written(files: dict[str, str | bytes], folder: Path) -> None:
    for name, content in files.items():
        file = folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content if isinstance(content, bytes) else content.encode())
