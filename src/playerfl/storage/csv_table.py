"""Rows as the text of a CSV file."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable


def csv_text(rows: Iterable[Iterable[object]]) -> str:
    """One line per row; floats are written so that they read back bit for bit.

    >>> csv_text([("site", "loss"), ("north, old", 0.1)])
    'site,loss\\n"north, old",0.1\\n'
    """
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue()
