"""CSV tables, plain or gzipped, read row by row: memory stays bounded, and errors name row and line."""

from __future__ import annotations

import csv
import gzip
import math
import zlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TextIO

from playerfl.errors import DataError

_LARGEST_ROW = 2**20
_SUSPICIOUS_SIZE = 2**26
_SUSPICIOUS_RATIO = 200


class CsvRow(dict[str, str]):
    """A row's fields by column, with its position for error messages."""

    def __init__(self, fields: Mapping[str, str], file: str, number: int, line: int) -> None:
        super().__init__(fields)
        self.file = file
        self.number = number
        self.line = line

    def error(self, column: str, needed: str) -> DataError:
        """The error for a field with a value that is not allowed."""
        value = self[column]
        shown = repr(value) if len(value) <= 40 else f"{value[:40]!r}…"
        place = f"{self.file}, row {self.number} (line {self.line}), column {column}"
        return DataError(f"{place}: {shown} is not allowed; {needed}")

    def one_of(self, column: str, allowed: Mapping[str, int]) -> int:
        """The number that `allowed` gives for a field's value."""
        if self[column] not in allowed:
            raise self.error(column, f"allowed: {', '.join(allowed)}")
        return allowed[self[column]]


def read_rows(
    path: Path, columns: Sequence[str], *, header: bool = True, encoding: str = "utf-8-sig"
) -> Iterator[CsvRow]:
    """The rows of a table, one at a time, with the named columns.

    With a header, other columns are ignored, and names match in any case. Without one, `columns` names all columns,
    in order.
    """
    lines = _Lines(path)
    try:
        with _opened(path, encoding) as file:
            yield from _rows(path.name, lines, lines.of(file), columns, header)
    except UnicodeDecodeError as problem:
        raise DataError(
            f"{path.name}, near line {lines.count + 1}: the byte {problem.object[problem.start]:#04x} is not "
            f"{encoding.removesuffix('-sig')} text; is it the original file?"
        ) from problem
    except (OSError, EOFError, zlib.error) as problem:
        reason = (isinstance(problem, OSError) and problem.strerror) or problem
        raise DataError(f"{path.name} cannot be read: {reason}; download it again") from problem


def _opened(path: Path, encoding: str) -> TextIO:
    # newline="" leaves line ends inside quoted fields to the csv module.
    if path.suffix == ".gz":
        return gzip.open(path, "rt", encoding=encoding, newline="")
    return path.open(encoding=encoding, newline="")


def _rows(name: str, lines: _Lines, texts: Iterator[str], columns: Sequence[str], header: bool) -> Iterator[CsvRow]:
    rows = _parsed(name, lines, texts)
    if header:
        _, first = next(rows, (0, []))
        positions, width = _positions(name, columns, first), len(first)
    else:
        positions, width = {column: i for i, column in enumerate(columns)}, len(columns)
    for number, (line, fields) in enumerate(rows, start=1):
        if len(fields) != width:
            raise DataError(f"{name}, row {number} (line {line}) has {len(fields)} columns instead of {width}")
        yield CsvRow({column: fields[i] for column, i in positions.items()}, name, number, line)


def _parsed(name: str, lines: _Lines, texts: Iterator[str]) -> Iterator[tuple[int, list[str]]]:
    """Rows that are not blank, each with the line it starts on."""
    reader = csv.reader(texts)
    while True:
        line = lines.count + 1
        lines.begin_row()
        try:
            fields = next(reader)
        except StopIteration:
            return
        except csv.Error as problem:
            raise DataError(f"{name}, line {line}: {problem}; is a quotation mark missing?") from problem
        if fields:
            yield line, fields


def _positions(name: str, columns: Sequence[str], header: Sequence[str]) -> dict[str, int]:
    position = {title.strip().lower(): i for i, title in enumerate(header)}
    if missing := [column for column in columns if column.lower() not in position]:
        has = " ".join(", ".join(header[:20]).split())[:300] or "no columns at all"
        raise DataError(f"{name} lacks the column {', '.join(missing)}; it has {has}")
    return {column: position[column.lower()] for column in columns}


class _Lines:
    """A file's lines for the csv module, with limits on lines, rows and unpacked size so that memory cannot run out."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.count = 0
        self._row = 0

    def begin_row(self) -> None:
        self._row = 0

    def of(self, file: TextIO) -> Iterator[str]:
        total, most = 0, self._most_characters()
        while line := file.readline(_LARGEST_ROW + 1):
            self.count += 1
            self._row += len(line)
            if self._row > _LARGEST_ROW:
                raise DataError(
                    f"{self._path.name}, line {self.count}: the row is longer than {_LARGEST_ROW:,} characters; is "
                    "this a CSV table, or is a quotation mark missing?"
                )
            total += len(line)
            if total > most:
                raise DataError(
                    f"{self._path.name} unpacks to more than {_SUSPICIOUS_RATIO} times its size, which no real "
                    "table does; download it again from its source"
                )
            yield line

    def _most_characters(self) -> float:
        if self._path.suffix != ".gz":
            return math.inf
        return max(_SUSPICIOUS_SIZE, _SUSPICIOUS_RATIO * self._path.stat().st_size)
