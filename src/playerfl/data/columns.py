"""One column across all sites' tables, as numbers, booleans or categories; refuses anything else."""

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
# Anything larger is infinity in float32.
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
    """Row numbers in the file."""
    numbers: Numbers
    """nan where a cell is not a number; true and false are 1 and 0."""
    texts: NDArray[np.object_] | None = None
    """None where a cell is not text; None instead of an array if no cell is text."""
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
        """Where a cell is, for error messages."""
        return f"{self.file}, column {self.column!r}, row {self.rows[position]}"

    def spelled(self) -> list[str | None]:
        """Every cell as a category: texts unchanged, numbers as one would type them, None where missing."""
        texts: Any = [None] * len(self.numbers) if self.texts is None else self.texts
        return [
            text if text is not None else spelled(number, boolean)
            for text, number, boolean in zip(texts, self.numbers.tolist(), self.is_boolean.tolist(), strict=True)
        ]

    def filtered(self, rows: NDArray[np.bool_]) -> Cells:
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
    """The cells of a column, each as a number, a boolean or a text."""
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
    mixed = _finite(Cells(table.file, column, rows, numbers, texts, booleans))
    commas = [i for i, text in enumerate(texts) if text is not None and _DECIMAL_COMMA.fullmatch(text)]
    if 2 * len(commas) > int(mixed.is_text.sum()):
        raise DataError(
            f"{mixed.at(commas[0])}: {texts[commas[0]]!r} is a number with a comma; write decimals with a point (1.5)"
        )
    return mixed


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
        except OverflowError:  # an integer of more than 308 digits
            return math.inf
    text = cell.strip()
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    if not text or text.lower() == "nan":
        return None
    try:
        # Python reads 1_000 as a number, but in a table it is text.
        return text if "_" in text else float(text)
    except ValueError:
        return text


def _finite(cells: Cells) -> Cells:
    too_large = np.abs(cells.numbers) > _LARGEST_NUMBER
    if too_large.any():
        first = int(too_large.argmax())
        raise DataError(
            f"{cells.at(first)}: {cells.numbers[first]} is too large; correct it, or leave the cell empty and "
            "set data.missing"
        )
    return cells


@dataclass(frozen=True)
class Column:
    """A column's kind, which is the same at all sites, and its cells at each site."""

    name: str
    kind: Kind
    cells: Mapping[str, Cells]
    categories: tuple[str, ...] = ()

    @property
    def width(self) -> int:
        """Number of model inputs it becomes."""
        return len(self.categories) if self.kind == "category" else 1

    @property
    def looks_like_identifier(self) -> bool:
        """Whether it has a different integer in every row, as patient numbers do and measurements rarely do."""
        return self.kind == "number" and all(
            len(cells.numbers) >= _ENOUGH_ROWS
            and len(np.unique(cells.numbers)) == len(cells.numbers)
            and bool((cells.numbers % 1 == 0).all())
            for cells in self.cells.values()
        )

    def filtered(self, rows: Mapping[str, NDArray[np.bool_]]) -> Column:
        return Column(self.name, self.kind, {s: c.filtered(rows[s]) for s, c in self.cells.items()}, self.categories)

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
    """A column at all sites; refuses text among numbers, dates, and too many categories for one-hot encoding."""
    cells = {site: cells_of(table, name, as_text=as_text) for site, table in tables.items()}
    kind = kind_of(cells, as_text=as_text)
    if kind != "category":
        return Column(name, kind, cells)
    categories = {text for site_cells in cells.values() for text in site_cells.spelled() if text is not None}
    if len(categories) > MOST_CATEGORIES:
        raise DataError(
            f"column {name!r} has {len(categories):,} different texts, such as {min(categories)[:40]!r}; at most "
            f"{MOST_CATEGORIES} categories are supported, so group them, or leave the column out with data.drop_columns"
        )
    return Column(name, kind, cells, tuple(sorted(categories)))


def kind_of(cells: Mapping[str, Cells], *, as_text: bool = False) -> Kind:
    """Whether the cells of all sites are numbers, booleans or categories."""
    if as_text:
        return "category"
    every = cells.values()
    if not any(site.is_text.any() for site in every):
        all_boolean = all((site.is_boolean | site.is_missing).all() for site in every)
        return "boolean" if all_boolean and any(site.is_boolean.any() for site in every) else "number"
    for site in every:
        numbers = int((~np.isnan(site.numbers) & ~site.is_boolean).sum())
        if 2 * numbers > int((~site.is_missing).sum()):
            raise text_among_numbers(
                next(other for other in every if other.is_text.any()),
                "clear the cell, or name the column in data.category_columns if its numbers are codes",
            )
    for site in every:
        texts = [(i, text) for i, text in enumerate(site.texts if site.texts is not None else ()) if text is not None]
        dates = [(i, text) for i, text in texts if _DATE.fullmatch(text)]
        if 2 * len(dates) > len(texts):
            first, text = dates[0]
            raise DataError(
                f"{site.at(first)}: {text!r} is a date; convert dates to a number, such as days since admission, or "
                "leave the column out with data.drop_columns"
            )
    return "category"


def text_among_numbers(cells: Cells, remedy: str) -> DataError:
    """The error for the first text of a column that should hold numbers."""
    first = int(cells.is_text.argmax())
    assert cells.texts is not None
    text = cells.texts[first]
    hint = " (write decimals with a point)" if _DECIMAL_COMMA.fullmatch(text) else ""
    return DataError(f"{cells.at(first)}: {text[:40]!r} is text in a column of numbers{hint}; correct it, {remedy}")
