"""The IDX files of MNIST's family, plain or gzipped."""

from __future__ import annotations

import gzip
import zlib
from pathlib import Path
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray

from playerfl.errors import DataError

_UNSIGNED_BYTES = 0x08
_LARGEST = 2**31


def read_idx(path: Path) -> NDArray[np.uint8]:
    """An array of unsigned bytes; its header is checked against the size of the file before anything is kept."""
    try:
        with gzip.open(path, "rb") if path.suffix == ".gz" else path.open("rb") as file:
            head = file.read(4)
            if len(head) < 4 or head[:2] != b"\0\0" or head[2] != _UNSIGNED_BYTES or not 1 <= head[3] <= 4:
                raise DataError(f"{path.name} is not an IDX file of bytes: it begins with {head.hex() or 'nothing'}")
            sizes = file.read(4 * head[3])
            if len(sizes) < 4 * head[3]:
                raise DataError(f"{path.name} is cut off in its header; get it again")
            shape = tuple(int(n) for n in np.frombuffer(sizes, dtype=">u4"))
            count = int(np.prod([int(n) for n in shape], dtype=object))
            if count > _LARGEST:
                raise DataError(f"{path.name} claims {count:,} bytes (shape {shape}); at most {_LARGEST:,} are read")
            # Pages that are never filled take no memory, so that a small file cannot claim much of it.
            content = np.zeros(count, dtype=np.uint8)
            found = _fill(file, content) + len(file.read(1))
    except (OSError, EOFError, zlib.error, MemoryError) as problem:
        raise DataError(f"{path.name} cannot be read: {problem}; get it again") from problem
    if found != count:
        held = f"more than {count:,}" if found > count else f"{found:,}"
        raise DataError(f"{path.name} promises {count:,} bytes and holds {held}; get it again")
    return content.reshape(shape)


def _fill(file: BinaryIO | gzip.GzipFile, content: NDArray[np.uint8]) -> int:
    """Reads into what is there already, so that an array of it can be written to without another copy."""
    filled = 0
    with content.data as view:
        while filled < len(content) and (more := file.readinto(view[filled:])):  # type: ignore[union-attr]
            filled += more
    return filled


def read_labelled(folder: Path, images: str, labels: str) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """Images and labels that belong together, each under its name or that name with .gz."""
    pixels, classes = (read_idx(_either(folder, name)) for name in (images, labels))
    if pixels.ndim != 3 or classes.ndim != 1 or len(pixels) != len(classes):
        raise DataError(
            f"{images} and {labels} do not belong together: their shapes are {pixels.shape} and {classes.shape}"
        )
    return pixels, classes


def _either(folder: Path, name: str) -> Path:
    for path in (folder / name, folder / f"{name}.gz"):
        if path.is_file():
            return path
    raise DataError(f"{folder.name} has neither {name} nor {name}.gz")
