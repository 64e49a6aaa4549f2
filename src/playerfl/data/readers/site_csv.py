"""One site's CSV file as pandas reads it, and what pandas does not tell: words read as missing, leading zeros."""

from __future__ import annotations

import csv
import gzip
import io
import warnings
import zlib
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from playerfl.data.readers.csv_head import LONGEST, separator_and_names
from playerfl.data.readers.file_limits import Bounded, check_file, unpacked_limit
from playerfl.errors import DataError

if TYPE_CHECKING:
    import pandas as pd

_ROWS_AT_ONCE = 50_000
_ROWS_LOOKED_AT = 1_000
_FEW_NUMBERS = 20
# What pandas takes for a missing value.
_MISSING_WORDS = (
    *("None", "none", "NA", "N/A", "n/a", "<NA>", "#NA", "#N/A", "#N/A N/A", "NULL", "null", "NaN", "nan"),
    *("-NaN", "-nan", "1.#IND", "-1.#IND", "1.#QNAN", "-1.#QNAN"),
)
# Rows are counted as a spreadsheet does, in which the column names are row 1.
_FIRST_ROW = 2


def read_site_csv(
    path: Path, text_columns: Collection[str], drop: Collection[str]
) -> tuple[pd.DataFrame, dict[str, pd.Series[Any]], dict[str, str]]:
    """The table, its `words` and its `leading_zeros` (see `SiteTable`); columns in `drop` are not looked at."""
    import pandas as pd

    size = check_file(path, path.name)
    try:
        file = _CsvFile(path, size, *_headings(path, size))
        with file.opened() as content, warnings.catch_warnings():
            # pandas only warns about rows longer than the header, and truncates them.
            warnings.simplefilter("error", pd.errors.ParserWarning)
            types = {name: str for name in text_columns if name in file.names}
            # Types are inferred from whole columns.
            frame = pd.read_csv(content, dtype=types, low_memory=False, **file.form)
        words = _missing_words(file, [name for name in _may_hold_words(frame) if name not in drop])
        numbers = [str(name) for name in frame.columns if frame[name].dtype.kind in "if" and name not in drop]
        leading_zeros = _leading_zeros(file, numbers)
    except UnicodeError as problem:
        raise DataError(f"{path.name} is not UTF-8 text; save it as CSV in UTF-8") from problem
    except pd.errors.ParserWarning as problem:
        raise DataError(
            f"{path.name} has rows with more values than the {len(file.names)} columns of its first row; "
            "correct them, or quote values that contain a comma"
        ) from problem
    except (pd.errors.ParserError, pd.errors.EmptyDataError, csv.Error) as problem:
        reason = str(problem).strip().removeprefix("Error tokenizing data. C error: ")
        raise DataError(f"{path.name} cannot be read as a table: {reason}; correct that row") from problem
    except (EOFError, zlib.error, gzip.BadGzipFile) as problem:
        raise DataError(f"{path.name} is damaged or not a gzip file ({problem}); compress it again") from problem
    except OSError as problem:
        raise DataError(f"cannot read {path.name}: {problem.strerror or problem}") from problem
    frame.index += _FIRST_ROW
    return frame, words, leading_zeros


@dataclass(frozen=True)
class _CsvFile:
    path: Path
    size: int
    separator: str
    names: Sequence[str]

    @property
    def form(self) -> dict[str, Any]:
        """How pandas has to read it; blank lines are kept, so that row numbers are right."""
        return {
            **{"sep": self.separator, "header": 0, "names": self.names, "index_col": False},
            **{"encoding": "utf-8-sig", "skip_blank_lines": False},
        }

    def opened(self) -> IO[bytes]:
        return _opened(self.path, self.size)


def _may_hold_words(frame: pd.DataFrame) -> Iterator[str]:
    """Columns with missing values in which a word such as None may be a value: those of texts or of few numbers."""
    import pandas as pd

    for name in frame.columns[frame.isna().any()]:
        column = frame[name].dropna()
        if not pd.api.types.is_numeric_dtype(column.dtype) or column.nunique() <= _FEW_NUMBERS:
            yield str(name)


def _missing_words(file: _CsvFile, columns: list[str]) -> dict[str, pd.Series[Any]]:
    """The cells of columns that are missing because of a word; an empty cell is not one of them."""
    import pandas as pd

    if not columns:
        return {}
    pieces_of: dict[str, list[pd.Series[Any]]] = {name: [] for name in columns}
    texts: dict[str, Any] = {"usecols": columns, "dtype": str, "keep_default_na": False, "chunksize": _ROWS_AT_ONCE}
    with file.opened() as content:
        for piece in pd.read_csv(content, **texts, **file.form):
            piece.index += _FIRST_ROW
            for name in columns:
                stripped = piece[name].str.strip()
                pieces_of[name].append(stripped[stripped.isin(_MISSING_WORDS)])
    words = {name: pd.concat(pieces) for name, pieces in pieces_of.items()}
    return {name: of_column for name, of_column in words.items() if len(of_column)}


def _leading_zeros(file: _CsvFile, columns: list[str]) -> dict[str, str]:
    """Columns of numbers of which the first rows are written like 0123, and such a number."""
    import pandas as pd

    if not columns:
        return {}
    with file.opened() as content:
        texts = pd.read_csv(content, usecols=columns, dtype=str, nrows=_ROWS_LOOKED_AT, **file.form)
    examples = {}
    for name in columns:
        written = texts[name].dropna()
        coded = written[written.str.fullmatch(r"\s*0\d+\s*")]
        if len(coded):
            examples[name] = str(coded.iloc[0]).strip()
    return examples


def _opened(path: Path, size: int) -> IO[bytes]:
    if path.name.lower().endswith(".gz"):
        unpacked = Bounded(gzip.GzipFile(path), path.name, unpacked_limit(size))
        return io.BufferedReader(unpacked)
    return path.open("rb")


def _headings(path: Path, size: int) -> tuple[str, list[str]]:
    with _opened(path, size) as content:
        return separator_and_names(path.name, content.read(LONGEST))
