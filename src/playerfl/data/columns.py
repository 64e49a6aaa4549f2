"""A column of several sites' tables as numbers, true/false or categories; refuses what could be neither."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from playerfl.data.readers.site_tables import SiteTable
from playerfl.errors import DataError

if TYPE_CHECKING:
    import pandas as pd

MOST_CATEGORIES = 50
Kind = Literal["number", "boolean", "category"]
Numbers = NDArray[np.float64]
# Beyond this, float32 knows only infinity.
_LARGEST_NUMBER = 3e38
_ENOUGH_ROWS = 20
_DECIMAL_COMMA = re.compile(r"-?\d+,\d+")
_DATE = re.compile(
    r"\d{4}[-/.]\d{1,2}[-/.]\d{1,2}([ T].*)?|\d{1,2}[-/.]\d{1,2}[-/.]\d{2,4}([ T].*)?"
    r"|\d{1,2}\.? [A-Za-zä]{3,9}\.? \d{4}"
)


@dataclass(frozen=True)
class Cells:
    """One column of one site."""

    file: str
    column: str
    rows: Sequence[int]
    """The rows' numbers in the file."""
    numbers: Numbers
    """nan where a cell is no number; true and false count as 1 and 0."""
    texts: NDArray[np.object_] | None = None
    """None where a cell is no text; no array at all where no cell is."""
    booleans: NDArray[np.bool_] | None = None

    @cached_property
    def is_text(self) -> NDArray[np.bool_]:
        if self.texts is None:
            return np.zeros(len(self.numbers), dtype=bool)
        return np.array([text is not None for text in self.texts], dtype=bool)

    @cached_property
    def is_boolean(self) -> NDArray[np.bool_]:
        return np.zeros(len(self.numbers), dtype=bool) if self.booleans is None else self.booleans

    @cached_property
    def is_missing(self) -> NDArray[np.bool_]:
        return np.isnan(self.numbers) & ~self.is_text

    def at(self, position: int) -> str:
        """Where a cell is, for a sentence about it."""
        return f"{self.file}, column {self.column!r}, row {self.rows[position]}"

    def spelled(self) -> list[str | None]:
        """Every cell as a category: texts as they are, numbers as written by hand, None where it is missing."""
        texts: Any = [None] * len(self.numbers) if self.texts is None else self.texts
        return [
            text if text is not None else spelled(number, boolean)
            for text, number, boolean in zip(texts, self.numbers.tolist(), self.is_boolean.tolist(), strict=True)
        ]

    def kept(self, rows: NDArray[np.bool_]) -> Cells:
        return Cells(
            self.file,
            self.column,
            np.asarray(self.rows)[rows],  # type: ignore[arg-type]
            self.numbers[rows],
            None if self.texts is None else self.texts[rows],
            None if self.booleans is None else self.booleans[rows],
        )


def spelled(number: float, boolean: bool = False) -> str | None:
    """
    >>> spelled(3.0), spelled(0.5), spelled(1.0, boolean=True), spelled(float("nan"))
    ('3', '0.5', 'True', None)
    """
    if number != number:
        return None
    if boolean:
        return str(bool(number))
    return str(int(number)) if number.is_integer() else repr(number)


def cells_of(table: SiteTable, column: str, *, as_text: bool = False) -> Cells:
    """The cells of a column, each as what it is."""
    import pandas as pd

    series = table.frame[column]
    rows: Any = table.frame.index
    if as_text:
        texts = _objects(None if pd.isna(cell) else _text(cell) for cell in series)
        return Cells(table.file, column, rows, np.full(len(series), np.nan), texts)
    if pd.api.types.is_bool_dtype(series.dtype):
        return Cells(table.file, column, rows, _floats(series), None, np.ones(len(series), dtype=bool))
    if pd.api.types.is_numeric_dtype(series.dtype):
        return _finite(Cells(table.file, column, rows, _floats(series)))
    cells = [None if pd.isna(cell) else _cell(cell) for cell in series]
    texts = _objects(cell if isinstance(cell, str) else None for cell in cells)
    numbers = np.array([np.nan if cell is None or isinstance(cell, str) else cell for cell in cells], dtype=float)
    booleans = np.array([isinstance(cell, bool) for cell in cells])
    found = _finite(Cells(table.file, column, rows, numbers, texts, booleans))
    commas = [i for i, text in enumerate(texts) if text is not None and _DECIMAL_COMMA.fullmatch(text)]
    if 2 * len(commas) > int(found.is_text.sum()):
        raise DataError(
            f"{found.at(commas[0])}: {texts[commas[0]]!r} is a number with a comma; write decimals with a point (1.5)"
        )
    return found


def _floats(series: pd.Series[Any]) -> Numbers:
    return series.to_numpy(dtype=np.float64)


def _objects(values: Any) -> NDArray[np.object_]:
    listed = list(values)
    array = np.empty(len(listed), dtype=object)
    array[:] = listed
    return array


def _text(cell: Any) -> str | None:
    if isinstance(cell, float | np.floating):
        return spelled(float(cell))
    return str(cell).strip() or None


def _cell(cell: Any) -> bool | float | str | None:
    if isinstance(cell, bool | np.bool_):
        return bool(cell)
    if not isinstance(cell, str):
        try:
            return float(cell)
        except OverflowError:  # a whole number of more than 308 digits
            return math.inf
    text = cell.strip()
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    if not text or text.lower() == "nan":
        return None
    try:
        # Python reads 1_000 as a number; nobody means that in a table.
        return text if "_" in text else float(text)
    except ValueError:
        return text


def _finite(cells: Cells) -> Cells:
    too_large = np.abs(cells.numbers) > _LARGEST_NUMBER
    if too_large.any():
        first = int(too_large.argmax())
        raise DataError(
            f"{cells.at(first)}: {cells.numbers[first]} is no finite number; correct it, or leave the cell empty and "
            "set data.missing"
        )
    return cells


@dataclass(frozen=True)
class Column:
    """What a column is at all sites, and its cells at each."""

    name: str
    kind: Kind
    cells: Mapping[str, Cells]
    categories: tuple[str, ...] = ()

    @property
    def width(self) -> int:
        """How many inputs it becomes."""
        return len(self.categories) if self.kind == "category" else 1

    @property
    def looks_like_identifier(self) -> bool:
        """Whether it has another whole number in every row, as patient numbers have and measurements rarely."""
        return self.kind == "number" and all(
            len(own.numbers) >= _ENOUGH_ROWS
            and len(np.unique(own.numbers)) == len(own.numbers)
            and bool((own.numbers % 1 == 0).all())
            for own in self.cells.values()
        )

    def kept(self, rows: Mapping[str, NDArray[np.bool_]]) -> Column:
        return Column(self.name, self.kind, {s: c.kept(rows[s]) for s, c in self.cells.items()}, self.categories)

    def inputs(self, site: str) -> Numbers:
        """(rows, width); nan where a value is missing."""
        cells = self.cells[site]
        if self.kind != "category":
            return cells.numbers[:, None]
        position = {category: i for i, category in enumerate(self.categories)}
        chosen = [-1 if text is None else position[text] for text in cells.spelled()]
        hot = np.eye(len(self.categories) + 1)[chosen][:, :-1]
        hot[np.array(chosen) < 0] = np.nan
        return hot


def column_of(tables: Mapping[str, SiteTable], name: str, *, as_text: bool = False) -> Column:
    """A column at all sites; refuses text among numbers, dates, and more categories than a one-hot code is for."""
    cells = {site: cells_of(table, name, as_text=as_text) for site, table in tables.items()}
    kind = kind_of(cells, as_text=as_text)
    if kind != "category":
        return Column(name, kind, cells)
    found = {text for own in cells.values() for text in own.spelled() if text is not None}
    if len(found) > MOST_CATEGORIES:
        raise DataError(
            f"column {name!r} has {len(found):,} different texts, such as {min(found)[:40]!r}; at most "
            f"{MOST_CATEGORIES} are taken as categories, so group them, or leave it out with data.drop_columns"
        )
    return Column(name, kind, cells, tuple(sorted(found)))


def kind_of(cells: Mapping[str, Cells], *, as_text: bool = False) -> Kind:
    """Numbers, true/false or texts, by what the cells of all sites are."""
    if as_text:
        return "category"
    if not any(own.is_text.any() for own in cells.values()):
        all_boolean = all((own.is_boolean | own.is_missing).all() for own in cells.values())
        return "boolean" if all_boolean and any(own.is_boolean.any() for own in cells.values()) else "number"
    for own in cells.values():
        numbers = int((~np.isnan(own.numbers) & ~own.is_boolean).sum())
        if 2 * numbers > int((~own.is_missing).sum()):
            raise _text_among_numbers(cells)
    for own in cells.values():
        texts = [(i, text) for i, text in enumerate(own.texts if own.texts is not None else ()) if text is not None]
        if texts and 2 * sum(_DATE.fullmatch(text) is not None for _, text in texts) > len(texts):
            first, text = next((i, text) for i, text in texts if _DATE.fullmatch(text))
            raise DataError(
                f"{own.at(first)}: {text!r} is a date; turn dates into a number (days since a day), or leave the "
                "column out with data.drop_columns"
            )
    return "category"


def _text_among_numbers(cells: Mapping[str, Cells]) -> DataError:
    own = next(own for own in cells.values() if own.is_text.any())
    first = int(own.is_text.argmax())
    assert own.texts is not None
    text = own.texts[first]
    hint = " (write decimals with a point)" if re.fullmatch(r"-?\d+,\d+", text) else ""
    return DataError(
        f"{own.at(first)}: {text[:40]!r} is text where numbers belong{hint}; correct it or leave the cell empty, or "
        "name the column in data.category_columns if its numbers are codes"
    )
