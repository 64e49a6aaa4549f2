"""The columns of all sites' tables: what kind each is, and which model inputs it becomes."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from playerfl.data.encoding.cells import (
    NO_RULES,
    Cells,
    Flags,
    Numbers,
    cells_of,
    refuse_flags_among_numbers,
    text_among_numbers,
)
from playerfl.data.encoding.forms import EXAMPLES, FORMS, Form
from playerfl.data.encoding.rules import CellRules
from playerfl.data.readers.site_tables import SiteTable
from playerfl.errors import DataError

MOST_CATEGORIES = 50
Kind = Literal["number", "boolean", "category", "percent", "ratio", "time"]
_ENOUGH_ROWS = 20
_AS_CODES = "name the column in data.category_columns"
_IN_TRAINING = "clear the cell, or name the column in data.category_columns"
_SHOWN_CATEGORIES = 10
_INPUTS: dict[Kind, tuple[str, ...]] = {"ratio": (" (first)", " (second)"), "time": (" (sine)", " (cosine)")}
_DATE = re.compile(
    r"\d{4}[-/.]\d{1,2}([-/.]\d{1,2}([ T].*)?)?|\d{8}T\d{4,6}.*|\d{1,2}[-/.]\d{1,2}[-/.]\d{2,4}([ T].*)?"
    r"|\d{1,2}(\.? |-)[A-Za-zä]{3,9}(\.? |-)\d{2,4}([ :].*)?|[A-Za-zä]{3,9}\.? (\d{1,2}(st|nd|rd|th)?,? )?\d{4}"
    r"|\d{1,2}[A-Za-zä]{3}\d{2,4}([ :].*)?|\d{4}-?W\d{2}(-?\d)?"
)


@dataclass(frozen=True)
class ColumnKind:
    """What a column holds, which is the same at all sites."""

    name: str
    kind: Kind
    categories: tuple[str, ...] = ()
    as_text: bool = False
    """Whether even what looks like a number is a category, such as a code with leading zeros."""

    @property
    def input_names(self) -> tuple[str, ...]:
        """The model inputs it becomes.

        >>> ColumnKind("ward", "category", ("heart", "lung")).input_names
        ('ward = heart', 'ward = lung')
        """
        if self.kind == "category":
            return tuple(f"{self.name} = {category}" for category in self.categories)
        return tuple(f"{self.name}{part}" for part in _INPUTS.get(self.kind, ("",)))

    @property
    def width(self) -> int:
        return len(self.categories) if self.kind == "category" else len(_INPUTS.get(self.kind, ("",)))

    @property
    def is_measured(self) -> bool:
        """Whether its inputs have a scale of their own; the others are 0 and 1, or points on a circle."""
        return self.kind in ("number", "percent", "ratio")

    def inputs(self, cells: Cells, remedy: str = _IN_TRAINING) -> Numbers:
        """(rows, width), not yet scaled; nan where a value is missing.

        Refuses a cell that is of another kind; `remedy` is what else than correcting it can be done.
        """
        if self.kind == "category":
            return self._one_hot(cells)
        if self.kind == "number" or self.kind == "boolean":
            if cells.is_text.any():
                raise text_among_numbers(cells, f"or {remedy}")
            if self.kind == "boolean" and not np.isin(cells.present, (0.0, 1.0)).all():
                first = int((~np.isin(cells.numbers, (0.0, 1.0)) & ~cells.is_missing).argmax())
                raise DataError(f"{cells.at(first)}: {cells.numbers[first]:g} is not true or false; correct it")
            return cells.numbers[:, None]
        return self._parsed(cells, self.kind, remedy)

    def _one_hot(self, cells: Cells) -> Numbers:
        chosen = cells.positions_in(self.categories)
        if (chosen == -2).any():
            first = int((chosen == -2).argmax())
            names, codes = cells.spellings
            known = ", ".join(self.categories[:_SHOWN_CATEGORIES])
            more = ", …" if len(self.categories) > _SHOWN_CATEGORIES else ""
            raise DataError(
                f"{cells.at(first)}: {names[codes[first]][:40]!r} is an unknown category; known: {known}{more}"
            )
        hot = np.eye(len(self.categories) + 1)[chosen][:, :-1]
        hot[chosen < 0] = np.nan
        return hot

    def _parsed(self, cells: Cells, form: Form, remedy: str) -> Numbers:
        names, codes = cells.spellings
        values = np.full((len(names) + 1, self.width), np.nan)
        for position, text in enumerate(names):
            value = FORMS[form](text) or (_plain(text) if form == "percent" else None)
            if value is None:
                raise _another_form(cells, int((codes == position).argmax()), form, remedy)
            values[position] = value
        return values[codes]


def _plain(text: str) -> tuple[float] | None:
    try:
        return None if "_" in text else (float(text),)
    except ValueError:
        return None


def _another_form(cells: Cells, position: int, form: Form, remedy: str) -> DataError:
    names, codes = cells.spellings
    return DataError(
        f"{cells.at(position)}: {names[codes[position]][:40]!r} is not written like {EXAMPLES[form]}, as the rest of "
        f"the column is; correct it, or {remedy}"
    )


@dataclass(frozen=True)
class ColumnAtSites:
    """A column's kind, and its cells at each site."""

    kind: ColumnKind
    cells: Mapping[str, Cells]

    @property
    def name(self) -> str:
        return self.kind.name

    @property
    def looks_like_identifier(self) -> bool:
        """Whether it has a different integer in every row, as patient numbers do and measurements rarely do."""
        return self.kind.kind == "number" and all(
            len(cells) >= _ENOUGH_ROWS
            and len(np.unique(cells.numbers)) == len(cells)
            and bool((cells.numbers % 1 == 0).all())
            for cells in self.cells.values()
        )

    def filtered(self, rows: Mapping[str, NDArray[np.bool_]]) -> ColumnAtSites:
        return ColumnAtSites(self.kind, {site: cells.filtered(rows[site]) for site, cells in self.cells.items()})


def column_of(
    tables: Mapping[str, SiteTable], name: str, *, as_text: bool = False, rules: CellRules = NO_RULES
) -> ColumnAtSites:
    """A column at all sites; refuses text among numbers, dates, and too many categories for one-hot encoding."""
    cells = {site: cells_of(table, name, as_text=as_text, rules=rules.at(site)) for site, table in tables.items()}
    kind = "category" if as_text else kind_of(cells)
    if kind != "category":
        return ColumnAtSites(ColumnKind(name, kind), cells)
    categories = {text for site_cells in cells.values() for text in site_cells.spellings[0]}
    if len(categories) > MOST_CATEGORIES:
        raise DataError(
            f"column {name!r} has {len(categories):,} different text values, such as {min(categories)[:40]!r}; at most "
            f"{MOST_CATEGORIES} categories are supported, so merge some, leave the column out with data.drop_columns, "
            f"or, if it says whose row it is, keep each patient's rows together with data.group={name}"
        )
    return ColumnAtSites(ColumnKind(name, kind, tuple(sorted(categories)), as_text), cells)


def kind_of(cells: Mapping[str, Cells], as_codes: str = _AS_CODES) -> Kind:
    """The kind of a column, from the cells of all sites; refuses text among numbers, and dates."""
    every = cells.values()
    if not any(site.is_text.any() for site in every):
        all_boolean = all((site.is_boolean | site.is_missing).all() for site in every)
        if all_boolean and any(site.is_boolean.any() for site in every):
            return "boolean"
        refuse_flags(every, as_codes)
        return "number"
    form = form_of(every)
    if form is not None:
        return form
    for site in every:
        numbers = int((~np.isnan(site.numbers) & ~site.is_boolean).sum())
        if 2 * numbers > int((~site.is_missing).sum()):
            texts = next((other for other in every if 2 * int(other.is_text.sum()) > len(other)), None)
            if texts is not None and texts.texts is not None and not site.is_text.any():
                raise DataError(
                    f"{site.file} has numbers in column {site.column!r}, but {texts.file} has text, such as "
                    f"{texts.texts[int(texts.is_text.argmax())][:40]!r}; use the same codes, for example "
                    f"with data.recode, or {as_codes} if its numbers are codes"
                )
            raise text_among_numbers(
                next(other for other in every if other.is_text.any()),
                f"clear the cell, name it in data.missing_codes if it means unknown, or {as_codes} if its numbers are "
                "codes",
            )
    for site in every:
        is_date = dates_in(site)
        if 2 * int(is_date.sum()) > int(site.is_text.sum()):
            assert site.texts is not None
            first = int(is_date.argmax())
            raise DataError(
                f"{site.at(first)}: {site.texts[first]!r} is a date; convert dates to a number, such as days since "
                "admission, or leave the column out with data.drop_columns"
            )
    return "category"


def refuse_flags(sites: Collection[Cells], as_codes: str) -> None:
    """Refuses true and false beside numbers other than 1 and 0, with which they mean the same."""
    if all(np.isin(site.present, (0.0, 1.0)).all() for site in sites):
        return
    for site in sites:
        refuse_flags_among_numbers(
            site,
            f", name it in data.missing_codes if it means unknown, or {as_codes} if its numbers are codes",
        )


def dates_in(cells: Cells) -> Flags:
    """Which cells are texts that are dates."""
    return _matching(cells, _DATE.fullmatch)


def form_of(sites: Collection[Cells]) -> Form | None:
    """The form in which most cells of at least one site are written; other sites may leave out a percent sign."""
    for form, parse in FORMS.items():
        if any(2 * int(_matching(site, parse).sum()) > int((~site.is_missing).sum()) for site in sites):
            return form
    return None


def _matching(cells: Cells, match: Callable[[str], object]) -> Flags:
    """Which cells are texts that match."""
    names, codes = cells.spellings
    passed = np.array([*(match(name) is not None for name in names), False])
    return np.asarray(passed[codes] & cells.is_text)
