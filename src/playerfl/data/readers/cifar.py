"""CIFAR-10's binary version: records of a label byte and 3,072 pixel bytes. The Python version is a pickle."""

from __future__ import annotations

import gzip
import zlib
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from playerfl.errors import DataError

_RECORD = 1 + 3 * 32 * 32
_LARGEST = 60_000 * _RECORD


def read_cifar10(files: list[Path]) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """Images (rows, 3, 32, 32) and labels 0 to 9 of several binary files, in order."""
    table = np.concatenate([_records(file) for file in files])
    labels = table[:, 0]
    return table[:, 1:].reshape(-1, 3, 32, 32), labels


def _records(path: Path) -> NDArray[np.uint8]:
    try:
        with gzip.open(path, "rb") if path.suffix == ".gz" else path.open("rb") as file:
            content = file.read(_LARGEST + 1)
    except (OSError, EOFError, zlib.error) as problem:
        raise DataError(f"{path.name} cannot be read: {problem}; download it again") from problem
    if not content or len(content) % _RECORD or len(content) > _LARGEST:
        raise DataError(
            f"{path.name} holds {len(content):,} bytes, not a whole number of CIFAR-10 records ({_RECORD} bytes each, "
            f"at most 60,000); download it again"
        )
    table = np.frombuffer(content, dtype=np.uint8).reshape(-1, _RECORD)
    if table[:, 0].max() > 9:
        raise DataError(f"{path.name} has the label {table[:, 0].max()}; CIFAR-10 has 0 to 9")
    return table
