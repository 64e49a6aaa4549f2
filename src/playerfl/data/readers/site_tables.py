"""One site's table, from a CSV, parquet or npz file."""

from __future__ import annotations

import csv
import gzip
import io
import re
import warnings
import zlib
from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from playerfl.data.readers.file_limits import Bounded, check_array, check_file, in_units, unpacked_limit
from playerfl.data.readers.npz import read_npz
from playerfl.errors import DataError

if TYPE_CHECKING:
    import pandas as pd

ENDINGS = (".csv", ".csv.gz", ".parquet", ".npz")
NPZ_TARGET = "y"
_LONGEST_HEADING = 2**22
_MOST_COLUMNS = 100_000


@dataclass(frozen=True)
class SiteTable:
    """A site's rows and columns, as in its file."""

    file: str
    frame: pd.DataFrame
    """Its index counts rows as a spreadsheet does: from 1, including a CSV file's header."""
    dropped: frozenset[str] = frozenset()
    """Columns of the file that were left out on request."""


def read_site_table(
    path: Path, drop: Collection[str] = (), text_columns: Collection[str] = (), group: str | None = None
) -> SiteTable:
    """Reads one file without the columns in `drop`.

    In `text_columns` and in `group`, anything that looks like a number (such as a code with leading zeros) stays text.
    """
    text_columns = [*text_columns, *([] if group is None else [group])]
    if path.name.lower().endswith(".npz"):
        frame = _from_npz(path, group)
    elif path.name.lower().endswith(".parquet"):
        frame = _from_parquet(path, drop)
    else:
        frame = _from_csv(path, text_columns)
    dropped = frozenset(drop) & frozenset(frame.columns)
    frame = frame.drop(columns=list(dropped))
    if frame.shape[1] == 0:
        raise DataError(f"{path.name} has no columns left; name fewer in data.drop_columns")
    frame = frame.dropna(how="all")
    if len(frame) == 0:
        raise DataError(f"{path.name} has no rows; add data, or remove the file")
    return SiteTable(path.name, frame, dropped)


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
            _check_names(path.name, names)
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
    for field in file.schema_arrow:
        if field.name in drop:
            continue
        kind = field.type.value_type if types.is_dictionary(field.type) else field.type
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
                f"{name}, column {field.name!r}, row 1: dates and times ({kind}) are not numbers; convert them to a "
                "number, such as days since admission, or leave the column out with data.drop_columns"
            )
        if not any(is_kind(kind) for is_kind in known):
            raise DataError(
                f"{name}, column {field.name!r}, row 1: values of kind {kind} cannot be read; numbers, text and "
                "true/false can, so convert them or leave the column out with data.drop_columns"
            )


def _from_csv(path: Path, text_columns: Collection[str]) -> pd.DataFrame:
    import pandas as pd

    size = check_file(path, path.name)
    try:
        separator, names = _headings(path, size)
        with _opened(path, size) as content, warnings.catch_warnings():
            # pandas only warns about rows longer than the header, and truncates them.
            warnings.simplefilter("error", pd.errors.ParserWarning)
            frame = pd.read_csv(
                content,
                sep=separator,
                header=0,
                names=names,
                index_col=False,
                dtype={name: str for name in text_columns if name in names},
                encoding="utf-8-sig",
                # Types are inferred from whole columns; blank lines keep row numbers right.
                low_memory=False,
                skip_blank_lines=False,
            )
    except UnicodeError as problem:
        raise DataError(f"{path.name} is not UTF-8 text; save it as CSV in UTF-8") from problem
    except pd.errors.ParserWarning as problem:
        raise DataError(
            f"{path.name} has rows with more values than the {len(names)} columns of its first row; "
            "correct them, or quote values that contain a comma"
        ) from problem
    except (pd.errors.ParserError, pd.errors.EmptyDataError, csv.Error) as problem:
        reason = str(problem).strip().removeprefix("Error tokenizing data. C error: ")
        raise DataError(f"{path.name} cannot be read as a table: {reason}; correct that row") from problem
    except (EOFError, zlib.error, gzip.BadGzipFile) as problem:
        raise DataError(f"{path.name} is damaged or not a gzip file ({problem}); compress it again") from problem
    except OSError as problem:
        raise DataError(f"cannot read {path.name}: {problem.strerror or problem}") from problem
    frame.index += 2
    return frame


def _opened(path: Path, size: int) -> IO[bytes]:
    if path.name.lower().endswith(".gz"):
        unpacked = Bounded(gzip.GzipFile(path), path.name, unpacked_limit(size))
        return io.BufferedReader(unpacked)
    return path.open("rb")


def _headings(path: Path, size: int) -> tuple[str, list[str]]:
    """The separator and the column names, from the first row."""
    with _opened(path, size) as content:
        start = content.read(_LONGEST_HEADING)
    line_end = re.search(rb"[\r\n]", start)
    if line_end is None and len(start) == _LONGEST_HEADING:
        raise DataError(
            f"{path.name} has no line break in its first {in_units(_LONGEST_HEADING)}; "
            "it must be a CSV file with column names in its first row"
        )
    first = (start if line_end is None else start[: line_end.start()]).decode("utf-8-sig")
    separator = max(",;\t", key=first.count)
    names = [name.strip() for name in next(csv.reader([first], delimiter=separator), [])]
    _check_names(path.name, names)
    return separator, names


def _check_names(file: str, names: list[str]) -> None:
    if not names:
        raise DataError(f"{file} has an empty first row; put the column names there")
    if len(names) > _MOST_COLUMNS:
        raise DataError(f"{file} has {len(names):,} columns; the limit is {_MOST_COLUMNS:,}")
    if "" in names:
        raise DataError(
            f"{file} has no name for column {names.index('') + 1}; name it or remove it (pandas writes such a column "
            "of row numbers unless index=False)"
        )
    twice = [name for name, count in Counter(names).items() if count > 1]
    if twice:
        raise DataError(f"{file} has several columns called {twice[0]!r}; give each its own name")
