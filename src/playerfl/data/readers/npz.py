"""The arrays of an npz file, which may be malicious."""

from __future__ import annotations

import math
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from playerfl.data.readers.file_limits import ARCHIVE_ERRORS, check_file, in_units, unpacked_limit
from playerfl.errors import DataError


def read_npz(path: Path, group: str | None = None) -> dict[str, NDArray[Any]]:
    """x (rows, inputs), y (rows), and the array `group` (rows) if the file has one of this name.

    Nothing is unpickled, and sizes are checked before anything is unpacked.
    """
    name = path.name
    check_file(path, name)
    try:
        with zipfile.ZipFile(path) as archive:
            further = [group] if group is not None and f"{group}.npy" in archive.namelist() else []
            arrays = {array: _array(archive, name, array) for array in dict.fromkeys(("x", "y", *further))}
    except ARCHIVE_ERRORS as problem:
        reason = str(problem)[:100]
        raise DataError(f"{name} cannot be read as an npz file ({reason}); write it with np.savez") from problem
    for array, values in arrays.items():
        if len(values) != len(arrays["x"]):
            raise DataError(
                f"{name} has {len(arrays['x']):,} rows in x but {len(values):,} in {array}; both need the same number"
            )
    return arrays


def _meant(array: str) -> str:
    return "numbers, rows by inputs" if array == "x" else "numbers or texts, one per row"


def _array(archive: zipfile.ZipFile, file: str, name: str) -> NDArray[Any]:
    held = sorted(archive.namelist())
    if f"{name}.npy" not in held:
        raise DataError(
            f"{file} has no array {name!r}, only {', '.join(held[:10]) or 'nothing'}; "
            "write it with np.savez(file, x=inputs, y=targets)"
        )
    entry = archive.getinfo(f"{name}.npy")
    if entry.file_size > unpacked_limit(entry.compress_size):
        raise DataError(
            f"{file} unpacks {name} from {in_units(entry.compress_size)} to {in_units(entry.file_size)}, far "
            "more than its size suggests; if that is right, write it with np.savez, uncompressed"
        )
    try:
        with archive.open(entry) as member:
            _check_header(member, entry.file_size, file, name)
        with archive.open(entry) as member:
            values: NDArray[Any] = np.lib.format.read_array(member, allow_pickle=False)
    except (DataError, OSError, zipfile.BadZipFile):
        raise
    except Exception as problem:
        # numpy parses the header as Python; what a crafted one raises is undocumented.
        raise DataError(f"{file} has a damaged array {name!r}; write it with np.savez") from problem
    return values


def _check_header(member: Any, size: int, file: str, name: str) -> None:
    """Checks the header before numpy allocates memory for it."""
    # Later versions allow 4 GiB headers, for field names that plain arrays do not have.
    if np.lib.format.read_magic(member) != (1, 0):
        raise DataError(f"{file} has the array {name!r} in an unusual format; write it with np.savez")
    shape, _, kind = np.lib.format.read_array_header_1_0(member)
    if kind.hasobject:
        raise DataError(
            f"{file} holds Python objects in {name!r}, which could run code when read; save it as {_meant(name)}"
        )
    if kind.kind not in ("biuf" if name == "x" else "biufU") or len(shape) != (2 if name == "x" else 1):
        raise DataError(f"{file} has {name} of kind {kind} and shape {shape}; it must hold {_meant(name)}")
    if min(shape) < 0 or math.prod(shape) * kind.itemsize != size - member.tell():
        raise DataError(
            f"{file} says that {name} has the shape {shape}, but holds {size - member.tell():,} bytes of it; "
            "write it again with np.savez"
        )
