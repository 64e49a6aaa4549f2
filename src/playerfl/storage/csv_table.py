"""Rows as the text of a CSV file."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable

_FORMULA = set("=+-@＝＋－＠")
"""A spreadsheet runs text that starts with one of these as a formula."""


def csv_text(rows: Iterable[Iterable[object]]) -> str:
    """One line per row; floats are written so that they read back bit for bit.

    Names and reasons may come from other institutions, and tables are opened in spreadsheets. Text that a
    spreadsheet would run gets an apostrophe in front; `csv_cell` says which.

    >>> csv_text([("site", "loss"), ("north, old", 0.1)])
    'site,loss\\n"north, old",0.1\\n'
    >>> csv_text([("=HYPERLINK(0)", -0.5)])
    "'=HYPERLINK(0),-0.5\\n"
    """
    text = io.StringIO()
    plain = csv.writer(text, lineterminator="\n")
    # Before Python 3.13 the writer does not quote a carriage return, which would begin a row of its own.
    quoting = csv.writer(text, lineterminator="\n", quoting=csv.QUOTE_NONNUMERIC)
    for row in rows:
        cells = [csv_cell(value) for value in row]
        returns = any(isinstance(cell, str) and "\r" in cell for cell in cells)
        (quoting if returns else plain).writerow(cells)
    return text.getvalue()


def csv_cell(value: object) -> object:
    """A value for a table: text that looks like a formula, but is not a number, is made harmless.

    >>> csv_cell("-0.5"), csv_cell(-0.5), csv_cell("-cmd|' /C calc'!A0"), csv_cell("north")
    ('-0.5', -0.5, "'-cmd|' /C calc'!A0", 'north')
    """
    if not isinstance(value, str) or _is_number(value):
        return value
    risky = value.lstrip()[:1] in _FORMULA or value[:1] in set("\t\r\n")
    return f"'{value}" if risky else value


def plain_cell(text: str) -> str:
    """The inverse of `csv_cell`, for tables that are read back.

    >>> plain_cell("'=1+1"), plain_cell("'quoted'"), plain_cell("north")
    ('=1+1', "'quoted'", 'north')
    """
    return text[1:] if text.startswith("'") and csv_cell(text[1:]) != text[1:] else text


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return text.isascii() and text == text.strip()
