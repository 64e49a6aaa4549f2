"""The first rows of a CSV file: its separator and column names, or what is there instead of them."""

from __future__ import annotations

import csv
import io
import re
from collections import Counter
from itertools import islice

from playerfl.data.readers.file_limits import in_units
from playerfl.errors import DataError

LONGEST = 2**22
"""Bytes in which the first row must end."""
_SEPARATORS = ",;\t|"
_MOST_COLUMNS = 100_000
_LOOKED_AT = 2**16
_MOST_ROWS = 30
_FEWEST_NAMES = 2
_SHOWN = 3
_EXCEL = "an Excel workbook or a zip archive; save the table as CSV in UTF-8"
_OTHER_FORMATS = {
    b"PK\x03\x04": _EXCEL,
    b"\xd0\xcf\x11\xe0": _EXCEL,
    b"\x1f\x8b": "a gzip file; add .gz to its name",
    b"PAR1": "a Parquet file; give it the ending .parquet",
    b"version https://git-lfs": "a pointer of Git LFS; fetch the file itself with git lfs pull",
    **dict.fromkeys((b"<!DOCTYPE", b"<!doctype", b"<html", b"<?xml", b"<table"), "a web page or XML; export CSV"),
    **dict.fromkeys((b'{"', b"[{", b"{\n"), "JSON; export CSV"),
}


def separator_and_names(file: str, start: bytes) -> tuple[str, list[str]]:
    """The separator and the column names; `start`: the first bytes of the file, up to `LONGEST`."""
    for magic, meaning in _OTHER_FORMATS.items():
        if start.lstrip().startswith(magic):
            raise DataError(f"{file} is {meaning}")
    line_end = re.search(rb"[\r\n]", start)
    if line_end is None and len(start) == LONGEST:
        raise DataError(
            f"{file} has no line break in its first {in_units(LONGEST)}; "
            "it must be a CSV file with column names in its first row"
        )
    looked_at = max(_LOOKED_AT, start.find(b"\n", 0 if line_end is None else line_end.start()) + 1)
    # A piece must not end within a character.
    whole = start if looked_at >= len(start) else start[: start.rfind(b"\n", 0, looked_at) + 1]
    text = whole.decode("utf-8-sig")
    first = (text.splitlines() or [""])[0]
    if first.lower().startswith("sep="):
        raise DataError(f"{file} starts with the line {first.strip()[:20]!r}, which is for Excel; remove it")
    separator = max(_SEPARATORS, key=first.count)
    rows = _rows(text, separator)
    names = [re.sub(r"\s*[\r\n]+\s*", " ", name.strip()) for name in (rows or [[]])[0]]
    _refuse_title(file, text, names, rows)
    check_names(file, names)
    return separator, names


def _rows(text: str, separator: str) -> list[list[str]]:
    try:
        return list(islice(csv.reader(io.StringIO(text, newline=""), delimiter=separator), _MOST_ROWS))
    except csv.Error:
        # pandas reads some rows that Python does not.
        return [text.splitlines()[0].split(separator)]


def _refuse_title(file: str, text: str, names: list[str], rows: list[list[str]]) -> None:
    """Refuses a file with a title or a merged heading above the row of column names."""
    if "" not in names and len(names) == _usual_length(rows[1:]):
        return
    for separator in _SEPARATORS:
        rows = _rows(text, separator)
        usual = _usual_length(rows[1:])
        for number, row in enumerate(rows[:-1], start=1):
            cells = [cell.strip() for cell in row]
            if number > 1 and len(cells) == usual == len(rows[number]) and _may_be_names(cells):
                shown = ", ".join(map(repr, cells[:_SHOWN]))
                raise DataError(
                    f"{file} seems to have its column names in row {number} ({shown}, …); remove the rows above it"
                )
            if number == 1 and len(cells) == usual and _may_be_names(cells):
                break


def _usual_length(rows: list[list[str]]) -> int:
    return Counter(map(len, rows)).most_common(1)[0][0] if rows else 0


def _may_be_names(cells: list[str]) -> bool:
    named = len(cells) >= _FEWEST_NAMES and all(cells) and len(set(cells)) == len(cells)
    return named and not any(re.fullmatch(r"[-+]?[\d.,]+\s*%?", cell) for cell in cells)


def check_names(file: str, names: list[str]) -> None:
    if not any(names):
        raise DataError(f"{file} has an empty first row; put the column names there")
    if len(names) > _MOST_COLUMNS:
        raise DataError(f"{file} has {len(names):,} columns; the limit is {_MOST_COLUMNS:,}")
    if "" in names:
        first = names.index("")
        remedy = "name it or remove it"
        if first == 0:
            remedy += " (pandas writes such a column of row numbers unless index=False)"
        elif not any(names[first:]):
            remedy = "remove the empty columns at the right (with a spreadsheet, delete them, not just their cells)"
        raise DataError(f"{file} has no name for column {first + 1}; {remedy}")
    twice = [name for name, count in Counter(names).items() if count > 1]
    if twice:
        raise DataError(f"{file} has several columns called {twice[0]!r}; give each its own name")
