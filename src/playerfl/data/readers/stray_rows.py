"""Rows of a table that are not data: units below the column names, the names once more, a note or totals at the end."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, Any

from playerfl.data.encoding.rules import parse
from playerfl.errors import DataError

if TYPE_CHECKING:
    import pandas as pd

_FEWEST_ROWS = 5
_LAST = 5
_SAMPLED = 200
_NEARLY_ALL = 0.9
_SHOWN = 3


def refuse_stray_rows(file: str, frame: pd.DataFrame, meant: Collection[str], skip: Collection[str] = ()) -> None:
    """Only looks for text in columns of numbers, which is refused anyway, but column by column and for another reason.

    `meant`: texts that the settings explain; `skip`: columns in which numbers are codes.
    """
    import pandas as pd

    texts = [name for name in frame.columns if not pd.api.types.is_numeric_dtype(frame[name]) and name not in skip]
    if not texts or len(frame) < _FEWEST_ROWS:
        return
    repeated = frame[texts[0]].astype(str).str.strip() == texts[0]
    for number in frame.index[repeated][:_SHOWN] if len(texts) > 1 else ():
        if all(str(frame.at[number, name]).strip() == name for name in texts):
            raise DataError(f"{file}, row {number} repeats the column names; remove it")
    numeric = [name for name in texts if _holds_numbers(frame[name].iloc[1:-_LAST])]
    others = [name for name in frame.columns if name not in texts]
    first = {name: cell for name in numeric if isinstance(cell := parse(frame[name].iloc[0]), str)}
    numbers = frame[others].iloc[0].notna().any() or any(_is_number(frame[name].iloc[0]) for name in numeric)
    if first and not numbers and not set(first.values()) & set(meant) and len(first) >= min(2, len(numeric)):
        raise DataError(
            f"{file}, row {frame.index[0]}: {_shown(first.values())} where the rows below have numbers, as a row of "
            "units has; remove the row"
        )
    for position in range(-_LAST, 0):
        row = frame.iloc[position]
        stray = {name: cell for name in numeric if isinstance(cell := parse(row[name]), str) and cell not in meant}
        if stray and 2 * int(row.isna().sum()) > len(row):
            raise DataError(
                f"{file}, row {frame.index[position]}: {_shown(stray.values())} and little else, as a note or a total "
                "below the table has; remove the row"
            )


def _holds_numbers(column: pd.Series[Any]) -> bool:
    present = column.dropna()[:_SAMPLED]
    return len(present) > 1 and sum(map(_is_number, present)) >= _NEARLY_ALL * len(present)


def _is_number(cell: Any) -> bool:
    return isinstance(parse(cell), float) and cell == cell


def _shown(texts: Collection[str]) -> str:
    return ", ".join(repr(text[:40]) for text in list(texts)[:_SHOWN]) + (", …" if len(texts) > _SHOWN else "")
