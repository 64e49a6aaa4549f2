"""The IDX files of MNIST's family, plain or gzipped."""

from __future__ import annotations

import gzip
import zlib
from pathlib import Path
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray

from playerfl.data.readers.file_limits import find_file
from playerfl.errors import DataError

_UNSIGNED_BYTES = 0x08
_LARGEST = 2**31


def read_idx(path: Path) -> NDArray[np.uint8]:
    """An array of unsigned bytes; its header must match the size of the file."""
    try:
        with gzip.open(path, "rb") if path.suffix == ".gz" else path.open("rb") as file:
            head = file.read(4)
            if len(head) < 4 or head[:2] != b"\0\0" or head[2] != _UNSIGNED_BYTES or not 1 <= head[3] <= 4:
                raise DataError(f"{path.name} is not an IDX file of bytes: it begins with {head.hex() or 'nothing'}")
            sizes = file.read(4 * head[3])
            if len(sizes) < 4 * head[3]:
                raise DataError(f"{path.name} is truncated in its header; download it again")
            shape = tuple(int(n) for n in np.frombuffer(sizes, dtype=">u4"))
            count = int(np.prod([int(n) for n in shape], dtype=object))
            if count > _LARGEST:
                raise DataError(f"{path.name} claims {count:,} bytes (shape {shape}); the limit is {_LARGEST:,}")
            # Pages that are never written take no memory, so a small file that claims a large array does no harm.
            content = np.zeros(count, dtype=np.uint8)
            held = _fill(file, content) + len(file.read(1))
    except (OSError, EOFError, zlib.error, MemoryError) as problem:
        raise DataError(f"{path.name} cannot be read: {problem}; download it again") from problem
    if held != count:
        size = f"more than {count:,}" if held > count else f"{held:,}"
        raise DataError(f"{path.name} promises {count:,} bytes but holds {size}; download it again")
    return content.reshape(shape)


def _fill(file: BinaryIO | gzip.GzipFile, content: NDArray[np.uint8]) -> int:
    """Reads into an existing array, which avoids a second copy of the file in memory."""
    filled = 0
    with content.data as view:
        while filled < len(content) and (more := file.readinto(view[filled:])):  # type: ignore[union-attr]
            filled += more
    return filled


def read_labelled(folder: Path, images: str, labels: str) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """Matching images and labels, each plain or with .gz appended."""
    pixels, classes = (read_idx(find_file(folder, name)) for name in (images, labels))
    if pixels.ndim != 3 or classes.ndim != 1 or len(pixels) != len(classes):
        raise DataError(f"{images} and {labels} do not match: their shapes are {pixels.shape} and {classes.shape}")
    return pixels, classes
