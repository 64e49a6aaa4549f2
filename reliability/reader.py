"""Reader: one way in for files that somebody else may have written."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Reader:
    """One way in. `example` writes valid files into an empty folder; `read` reads that folder."""

    name: str
    example: Callable[[Path], None]
    read: Callable[[Path], object]
    mend: Callable[[Path], object] = lambda folder: None
    """Makes checksums right again after a file was broken, so that what lies behind them is reached."""
    mends: tuple[str, ...] = ()
    """The files that are changed by that."""
    weight: float = 1.0
    """Share of all inputs, against those of the others; slow readers get fewer."""
    writes: bool = False
    """Whether reading changes the folder."""
    skips: tuple[str, ...] = ()
    """Files that are not broken."""


class NotAnInput(BaseException):
    """Nothing that tells about a reader: a message that Flower refuses to make, a run that asks for hours of work."""


def written(files: dict[str, str | bytes], folder: Path) -> None:
    for name, content in files.items():
        file = folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content if isinstance(content, bytes) else content.encode())
