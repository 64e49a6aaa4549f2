"""One site's table, from a CSV, parquet or npz file."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from playerfl.data.readers.csv_head import check_names
from playerfl.data.readers.file_limits import check_array, check_file, in_units, unpacked_limit
from playerfl.data.readers.npz import read_npz
from playerfl.data.readers.site_csv import read_site_csv
from playerfl.errors import DataError

if TYPE_CHECKING:
    import pandas as pd

ENDINGS = (".csv", ".csv.gz", ".parquet", ".npz")
NPZ_TARGET = "y"


@dataclass(frozen=True)
class SiteTable:
    """A site's rows and columns, as in its file."""

    file: str
    frame: pd.DataFrame
    """Its index counts rows as a spreadsheet does: from 1, including a CSV file's header."""
    dropped: frozenset[str] = frozenset()
    """Columns of the file that were left out on request."""
    words: Mapping[str, pd.Series[Any]] = field(default_factory=dict)
    """For columns of texts or of few numbers: cells that count as missing although they hold a word, such as None or
    NA; by row number."""

    leading_zeros: Mapping[str, str] = field(default_factory=dict)
    """Columns of integers some of which are written with leading zeros, as codes are, and one of these."""

    def with_words(self, column: str, kept: Collection[str] = ()) -> pd.Series[Any]:
        """A column's cells; those of its `words` that are among `kept` are there, the others missing."""
        cells = self.frame[column]
        words = self.words.get(column)
        named = words[words.isin(list(kept))] if words is not None and kept else None
        if named is None or named.empty:
            return cells
        cells = cells.astype(object)
        cells[named.index] = named
        return cells


def read_site_table(
    path: Path, drop: Collection[str] = (), text_columns: Collection[str] = (), group: str | None = None
) -> SiteTable:
    """Reads one file without the columns in `drop`.

    In `text_columns` and in `group`, anything that looks like a number (such as a code with leading zeros) stays text.
    """
    text_columns = [*text_columns, *([] if group is None else [group])]
    words: dict[str, pd.Series[Any]] = {}
    leading_zeros: dict[str, str] = {}
    if path.name.lower().endswith(".npz"):
        frame = _from_npz(path, group)
    elif path.name.lower().endswith(".parquet"):
        frame = _from_parquet(path, drop)
    else:
        frame, words, leading_zeros = read_site_csv(path, text_columns, drop)
    dropped = frozenset(drop) & frozenset(frame.columns)
    frame = frame.drop(columns=list(dropped))
    if frame.shape[1] == 0:
        raise DataError(f"{path.name} has no columns left; name fewer in data.drop_columns")
    frame = frame.dropna(how="all")
    if len(frame) == 0:
        raise DataError(f"{path.name} has no rows; add data, or remove the file")
    return SiteTable(path.name, frame, dropped, words, leading_zeros)


def _from_npz(path: Path, group: str | None) -> pd.DataFrame:
    import pandas as pd

    arrays = read_npz(path, group)
    x = arrays.pop("x")
    frame = pd.DataFrame(x, columns=[f"x{i}" for i in range(x.shape[1])]).assign(**arrays)
    frame.index += 1
    return frame


def _from_parquet(path: Path, drop: Collection[str]) -> pd.DataFrame:
    try:
        import pyarrow as arrow
        from pyarrow import parquet
    except ImportError as problem:
        raise DataError(
            f"reading {path.name} needs pyarrow; pip install 'playerfl[parquet]', or save it as CSV"
        ) from problem
    size = check_file(path, path.name)
    try:
        with parquet.ParquetFile(path) as file:
            _check_parquet(path.name, file, size, drop, arrow.types)
            names = list(file.schema_arrow.names)
            check_names(path.name, names)
            kept = [name for name in names if name not in drop]
            frame: pd.DataFrame = file.read(kept).to_pandas(ignore_metadata=True)
    except (OSError, ValueError, arrow.ArrowException) as problem:
        reason = str(problem).strip().partition("\n")[0][:100]
        raise DataError(f"{path.name} cannot be read as a parquet file ({reason}); write it again") from problem
    # pandas may store its row numbers as a column, which is not a measurement.
    frame = frame.drop(columns=[name for name in kept if name.startswith("__index_level_")])
    frame.index += 1
    return frame.assign(**{name: None for name in names if name in drop})


def _check_parquet(name: str, file: Any, size: int, drop: Collection[str], types: Any) -> None:
    """Checks the sizes and types that the file states, before any column is read."""
    stated = file.metadata
    packed_columns = sum(stated.row_group(i).total_byte_size for i in range(stated.num_row_groups))
    # A value repeated a million times takes a few bytes in the file, but eight bytes each in memory.
    unpacked = max(packed_columns, 8 * stated.num_rows * stated.num_columns)
    if unpacked > unpacked_limit(size):
        raise DataError(
            f"{name} unpacks from {in_units(size)} to {in_units(unpacked)}, far more than its size suggests; "
            "if that is right, save it as CSV"
        )
    check_array(stated.num_rows, stated.num_columns, 8, name, "split it or leave columns out")
    for column in file.schema_arrow:
        if column.name in drop:
            continue
        kind = column.type.value_type if types.is_dictionary(column.type) else column.type
        known = (
            types.is_integer,
            types.is_floating,
            types.is_decimal,
            types.is_boolean,
            types.is_string,
            types.is_large_string,
            types.is_null,
        )
        if types.is_temporal(kind):
            raise DataError(
                f"{name}, column {column.name!r}, row 1: dates and times ({kind}) are not numbers; convert them to a "
                "number, such as days since admission, or leave the column out with data.drop_columns"
            )
        if not any(is_kind(kind) for is_kind in known):
            raise DataError(
                f"{name}, column {column.name!r}, row 1: values of kind {kind} cannot be read; numbers, texts and "
                "true/false can, so convert them or leave the column out with data.drop_columns"
            )
