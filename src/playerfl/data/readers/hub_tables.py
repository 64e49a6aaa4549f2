"""Datasets in the Hugging Face Hub's layout: a parquet table that holds images as encoded files."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from playerfl.data.readers.pictures import read_picture
from playerfl.errors import DataError


def hub_table(folder: Path) -> Path | None:
    """The table in a dataset's folder, if the folder is a copy from the hub."""
    table = folder / "train.parquet"
    return table if table.is_file() else None


def hub_rows(table: Path, columns: tuple[str, ...]) -> Iterator[dict[str, Any]]:
    """The named columns of a table, row by row, read in pieces."""
    try:
        import pyarrow as arrow
        from pyarrow import parquet
    except ImportError as problem:
        raise DataError(f"reading {table.name} needs pyarrow; pip install 'playerfl[parquet]'") from problem
    try:
        with parquet.ParquetFile(table) as file:
            if missing := sorted(set(columns) - set(file.schema_arrow.names)):
                raise DataError(f"{table.name} lacks the columns {', '.join(missing)}")
            for piece in file.iter_batches(batch_size=1000, columns=list(columns)):
                yield from piece.to_pylist()
    except (OSError, ValueError, arrow.ArrowException) as problem:
        raise DataError(f"{table.name} cannot be read as parquet: {problem}; fetch it again") from problem


def hub_pictures(
    table: Path, picture: str, label: str, classes: int, side: int, most: int
) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """The first `most` images (rows, 3, side, side) and their labels."""
    pixels, labels = [], []
    for number, row in enumerate(hub_rows(table, (picture, label))):
        if number == most:
            break
        content = (row[picture] or {}).get("bytes")
        if not isinstance(content, bytes) or row[label] not in range(classes):
            raise DataError(f"{table.name} has no image with a label below {classes} in row {number}")
        pixels.append(read_picture(content, f"{table.name}, row {number}", side))
        labels.append(row[label])
    if not pixels:
        raise DataError(f"{table.name} is empty")
    return np.stack(pixels), np.array(labels, dtype=np.uint8)
