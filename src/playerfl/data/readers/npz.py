"""The arrays of an npz file, which may be malicious."""

from __future__ import annotations

import math
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from playerfl.data.readers.file_limits import ARCHIVE_ERRORS, check_file, in_units, unpacked_limit
from playerfl.errors import DataError


@dataclass(frozen=True)
class _Wanted:
    """The required content of an array."""

    name: str
    kinds: str
    dimensions: int | None
    """None: any number from 1."""
    meant: str


_INPUTS = _Wanted("x", "biuf", 2, "numbers, rows by inputs")


def read_npz(path: Path, group: str | None = None) -> dict[str, NDArray[Any]]:
    """x (rows, inputs), y (rows), and the array `group` (rows) if the file has one of this name.

    Nothing is unpickled, and sizes are checked before anything is unpacked.
    """
    with _opened(path) as archive:
        further = [group] if group is not None and f"{group}.npy" in archive.namelist() else []
        others = [_Wanted(name, "biufU", 1, "numbers or text, one per row") for name in ("y", *further) if name != "x"]
        arrays = {array.name: _array(archive, path.name, array, "x=inputs, y=targets") for array in (_INPUTS, *others)}
    for array, values in arrays.items():
        if len(values) != len(arrays["x"]):
            hint = "; save x.T, if its columns are rows" if arrays["x"].shape[1] == len(values) else ""
            raise DataError(
                f"{path.name} has {len(arrays['x']):,} rows in x but {len(values):,} in {array}; both need the same "
                f"number{hint}"
            )
    return arrays


def read_inputs(path: Path) -> NDArray[Any]:
    """x (rows, inputs) alone, for rows whose targets are not known."""
    with _opened(path) as archive:
        return _array(archive, path.name, _INPUTS, "x=inputs")


def read_arrays(path: Path, names: Sequence[str]) -> dict[str, NDArray[Any]]:
    """Arrays of numbers by name, rows first; read as safely as x and y."""
    with _opened(path) as archive:
        return {
            name: _array(archive, path.name, _Wanted(name, "biuf", None, "numbers, one or more per row"), f"{name}=…")
            for name in names
        }


@contextmanager
def _opened(path: Path) -> Iterator[zipfile.ZipFile]:
    check_file(path, path.name)
    try:
        with zipfile.ZipFile(path) as archive:
            yield archive
    except ARCHIVE_ERRORS as problem:
        reason = str(problem)[:100]
        raise DataError(f"{path.name} cannot be read as an npz file ({reason}); write it with np.savez") from problem


def _array(archive: zipfile.ZipFile, file: str, wanted: _Wanted, written_as: str) -> NDArray[Any]:
    name = wanted.name
    held = sorted(archive.namelist())
    if f"{name}.npy" not in held:
        raise DataError(
            f"{file} has no array {name!r}, only {', '.join(held[:10]).replace('.npy', '') or 'nothing'}; "
            f"write it with np.savez(file, {written_as})"
        )
    entry = archive.getinfo(f"{name}.npy")
    if entry.file_size > unpacked_limit(entry.compress_size):
        raise DataError(
            f"{file} unpacks {name} from {in_units(entry.compress_size)} to {in_units(entry.file_size)}, far "
            "more than its size suggests; if that is right, write it with np.savez, uncompressed"
        )
    try:
        with archive.open(entry) as member:
            _check_header(member, entry.file_size, file, wanted)
        with archive.open(entry) as member:
            values: NDArray[Any] = np.lib.format.read_array(member, allow_pickle=False)
    except (DataError, OSError, zipfile.BadZipFile):
        raise
    except Exception as problem:
        # numpy parses the header as Python; what a crafted one raises is undocumented.
        raise DataError(f"{file} has a damaged array {name!r}; write it with np.savez") from problem
    return values


def _repaired(wanted: _Wanted, shape: tuple[int, ...]) -> str:
    """How to bring an array into the right shape, where that can be guessed."""
    name = wanted.name
    if wanted.dimensions == 1 and len(shape) == 2:
        return f": save {name}.ravel()" if shape[1] == 1 else f": of one column per class, save {name}.argmax(1)"
    if wanted.dimensions == 2 and len(shape) != 2:
        return f": save {name}.reshape(len({name}), -1)"
    return ""


def _check_header(member: Any, size: int, file: str, wanted: _Wanted) -> None:
    """Checks the header before numpy allocates memory for it."""
    name = wanted.name
    # Later versions allow 4 GiB headers, for field names that plain arrays do not have.
    if np.lib.format.read_magic(member) != (1, 0):
        raise DataError(f"{file} has the array {name!r} in an unusual format; write it with np.savez")
    shape, _, kind = np.lib.format.read_array_header_1_0(member)
    if kind.hasobject:
        raise DataError(
            f"{file} holds Python objects in {name!r}, which could run code when read; save it as {wanted.meant}"
        )
    fits = len(shape) == wanted.dimensions if wanted.dimensions else len(shape) > 0
    if kind.kind not in wanted.kinds or not fits:
        raise DataError(
            f"{file} has {name} of kind {kind} and shape {shape}; it must hold {wanted.meant}{_repaired(wanted, shape)}"
        )
    if min(shape) < 0 or math.prod(shape) * kind.itemsize != size - member.tell():
        raise DataError(
            f"{file} says that {name} has the shape {shape}, but holds {size - member.tell():,} bytes of it; "
            "write it again with np.savez"
        )
