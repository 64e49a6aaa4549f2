"""One column of one site's table: every cell as a number, a boolean or a text."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from playerfl.data.encoding.rules import CellRules, parse, spelled
from playerfl.data.encoding.written import plain_number
from playerfl.data.readers.site_tables import SiteTable
from playerfl.errors import DataError

if TYPE_CHECKING:
    import pandas as pd

Numbers = NDArray[np.float64]
Flags = NDArray[np.bool_]
DECIMAL_COMMA = re.compile(r"-?\d+(,\d+)+(\.\d+)?")
THOUSANDS = re.compile(r"-?[1-9]\d{0,2}(,\d{3})+(\.\d+)?")
# Anything larger is infinity in float32.
_LARGEST_NUMBER = 3e38
NO_RULES = CellRules()


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
    booleans: Flags | None = None

    def __len__(self) -> int:
        return len(self.numbers)

    @cached_property
    def is_text(self) -> Flags:
        if self.texts is None:
            return np.zeros(len(self), dtype=bool)
        return _is_there(self.texts)

    @cached_property
    def is_boolean(self) -> Flags:
        return np.zeros(len(self), dtype=bool) if self.booleans is None else self.booleans

    @cached_property
    def is_missing(self) -> Flags:
        return np.isnan(self.numbers) & ~self.is_text

    @property
    def present(self) -> Numbers:
        """The numbers that are there."""
        return self.numbers[~np.isnan(self.numbers)]

    def at(self, position: int) -> str:
        """Where a cell is, for error messages."""
        return f"{self.file}, column {self.column!r}, row {self.rows[position]}"

    def refuse_missing(self, remedy: str) -> None:
        if self.is_missing.any():
            first, count = int(self.is_missing.argmax()), int(self.is_missing.sum())
            raise DataError(
                f"{self.at(first)}: the value is missing, as in {count} of {len(self)} rows; fill it in, {remedy}"
            )

    @cached_property
    def spellings(self) -> tuple[tuple[str, ...], NDArray[np.int64]]:
        """The different values as categories, and which of them every cell has (-1 where it is missing).

        Texts stay as they are; numbers are written as one would type them.
        """
        names: dict[str, int] = {}
        codes = np.full(len(self), -1, dtype=np.int64)
        is_number = ~np.isnan(self.numbers)
        for kind in (False, True):
            chosen = np.flatnonzero(is_number & (self.is_boolean == kind))
            values, which = np.unique(self.numbers[chosen], return_inverse=True)
            known = [names.setdefault(spelled(value, kind), len(names)) for value in values.tolist()]
            codes[chosen] = np.array(known, dtype=np.int64)[which]
        if self.texts is not None:
            import pandas as pd

            chosen = np.flatnonzero(self.is_text)
            which, texts = pd.factorize(self.texts[chosen])
            known = [names.setdefault(text, len(names)) for text in texts]
            codes[chosen] = np.array(known, dtype=np.int64)[which]
        return tuple(names), codes

    def positions_in(self, categories: Sequence[str]) -> NDArray[np.int64]:
        """Every cell's position in a list of categories: -1 where it is missing, -2 where it is none of them."""
        names, codes = self.spellings
        position = {category: i for i, category in enumerate(categories)}
        return np.array([*(position.get(name, -2) for name in names), -1], dtype=np.int64)[codes]

    def filtered(self, rows: Flags) -> Cells:
        if rows.all():
            return self
        return Cells(
            self.file,
            self.column,
            np.asarray(self.rows)[rows],  # type: ignore[arg-type]
            self.numbers[rows],
            None if self.texts is None else self.texts[rows],
            None if self.booleans is None else self.booleans[rows],
        )


def cells_of(table: SiteTable, column: str, *, as_text: bool = False, rules: CellRules = NO_RULES) -> Cells:
    """The cells of a column, each as a number, a boolean or a text; `rules` are those of the table's site."""
    new_values = rules.new_values(column)
    cells = _recoded(_all_cells(table, column, as_text=as_text, kept=new_values), new_values, as_text=as_text)
    meant = rules.missing(column)
    if not meant:
        return cells
    names, which = cells.spellings
    is_code = np.array([*(name in meant for name in names), False])[which]
    if not is_code.any():
        return cells
    texts = None if cells.texts is None else _only(cells.texts, ~is_code)
    return Cells(table.file, column, cells.rows, np.where(is_code, np.nan, cells.numbers), texts, cells.booleans)


def _recoded(cells: Cells, new_values: Mapping[str, str], *, as_text: bool) -> Cells:
    if not new_values or not new_values.keys() & set(cells.spellings[0]):
        return cells
    names, which = cells.spellings
    numbers, booleans = cells.numbers.copy(), cells.is_boolean.copy()
    texts = _objects([None] * len(cells)) if cells.texts is None else cells.texts.copy()
    for position, name in enumerate(names):
        if name not in new_values:
            continue
        rows, value = which == position, new_values[name] if as_text else parse(new_values[name])
        is_text = isinstance(value, str)
        numbers[rows], booleans[rows] = np.nan if is_text or value is None else value, isinstance(value, bool)
        texts[rows] = value if is_text else None
    return _finite(Cells(cells.file, cells.column, cells.rows, numbers, texts, booleans))


def _all_cells(table: SiteTable, column: str, *, as_text: bool, kept: Collection[str]) -> Cells:
    import pandas as pd

    series = table.with_words(column, kept)
    rows: Any = table.frame.index
    if as_text:
        return Cells(table.file, column, rows, np.full(len(series), np.nan), _each(series, _text))
    if pd.api.types.is_bool_dtype(series.dtype):
        return Cells(table.file, column, rows, _floats(series), None, np.ones(len(series), dtype=bool))
    if pd.api.types.is_numeric_dtype(series.dtype):
        return _finite(Cells(table.file, column, rows, _floats(series)))
    cells = _each(series, parse)
    kinds, which = _kinds(cells)
    is_text = np.array([issubclass(kind, str) for kind in kinds])[which]
    is_boolean = np.array([issubclass(kind, bool) for kind in kinds])[which]
    texts = _only(cells, is_text)
    numbers = np.full(len(cells), np.nan)
    is_number = _is_there(cells) & ~is_text
    numbers[is_number] = cells[is_number].astype(np.float64)
    mixed = _finite(Cells(table.file, column, rows, numbers, texts, is_boolean))
    names, spelling = mixed.spellings
    is_comma = np.array([*(DECIMAL_COMMA.fullmatch(name) is not None for name in names), False])[spelling]
    commas = np.flatnonzero(is_comma)
    if 2 * len(commas) > int(is_text.sum()):
        first = texts[commas[0]]
        written = "decimals with a point (1.5)"
        if all(THOUSANDS.fullmatch(texts[position]) for position in commas[:1000]):
            written = f"thousands without a comma ({first.replace(',', '')}), and decimals with a point (1.5)"
        raise DataError(f"{mixed.at(commas[0])}: {first!r} is a number with a comma; write {written}")
    _refuse_written(mixed)
    return mixed


def _refuse_written(cells: Cells) -> None:
    """Refuses a column of numbers with separators or a currency: they would be categories, or far too many of them."""
    names, spelling = cells.spellings
    plain = {name: plain_number(name) for name in names}
    # 12% is read as it is.
    differs = [text is not None and text != name.replace("%", " %").replace("  ", " ") for name, text in plain.items()]
    is_written = np.array([*differs, False])[spelling] & cells.is_text
    if 2 * int(is_written.sum()) > int(cells.is_text.sum()):
        first = int(is_written.argmax())
        text = names[spelling[first]]
        raise DataError(
            f"{cells.at(first)}: {text!r} is a number formatted for people; write {plain[text]}, or name the column in "
            "data.category_columns if it is a code"
        )


def _is_there(values: NDArray[np.object_]) -> Flags:
    import pandas as pd

    return np.asarray(pd.notna(values))


def _only(values: NDArray[np.object_], chosen: Flags) -> NDArray[np.object_]:
    """The same values, with None for those not chosen."""
    copied = values.copy()
    copied[~chosen] = None
    return copied


def _kinds(cells: NDArray[np.object_]) -> tuple[list[type], NDArray[np.int64]]:
    numbers: dict[type, int] = {}
    which = np.fromiter((numbers.setdefault(type(cell), len(numbers)) for cell in cells), np.int64, len(cells))
    return list(numbers), which


def _floats(series: pd.Series[Any]) -> Numbers:
    return series.to_numpy(dtype=np.float64)


def _each(series: pd.Series[Any], change: Any) -> NDArray[np.object_]:
    """Every cell changed; a text that occurs often is changed once, because a table may have millions of rows."""
    import pandas as pd

    if all(kind is str or kind is float for kind in map(type, series.array[:1000])):
        which, values = pd.factorize(series)
        if len(values) < len(series) / 2 and all(isinstance(value, str) for value in values):
            return _objects([*map(change, values), None])[which]
    missing = pd.isna(series).to_numpy()
    return _objects(None if gone else change(cell) for gone, cell in zip(missing, series, strict=True))


def _objects(values: Any) -> NDArray[np.object_]:
    listed = list(values)
    array = np.empty(len(listed), dtype=object)
    array[:] = listed
    return array


def _text(cell: Any) -> str | None:
    if isinstance(cell, float | np.floating):
        return spelled(float(cell))
    return str(cell).strip() or None


def _finite(cells: Cells) -> Cells:
    too_large = np.abs(cells.numbers) > _LARGEST_NUMBER
    if too_large.any():
        first = int(too_large.argmax())
        raise DataError(f"{cells.at(first)}: {cells.numbers[first]} is too large; correct it")
    return cells


def refuse_flags_among_numbers(cells: Cells, remedy: str) -> None:
    """Refuses true and false in a column of numbers, where they would be read as 1 and 0."""
    flags = cells.is_boolean & ~cells.is_missing
    if flags.any():
        first = int(flags.argmax())
        raise DataError(
            f"{cells.at(first)}: {spelled(cells.numbers[first], boolean=True)} is not a number, but the column holds "
            f"numbers; correct it{remedy}"
        )


def text_among_numbers(cells: Cells, remedy: str) -> DataError:
    """The error for the first text of a column that should hold numbers."""
    first = int(cells.is_text.argmax())
    assert cells.texts is not None
    text = cells.texts[first]
    hint = " (write decimals with a point)" if DECIMAL_COMMA.fullmatch(text) else ""
    return DataError(f"{cells.at(first)}: {text[:40]!r} is text in a column of numbers{hint}; correct it, {remedy}")
