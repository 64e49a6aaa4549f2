"""The column to predict, as classes or as a number, and the rows that can be used."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from playerfl.data.encoding.cells import Cells, Flags, cells_of, text_among_numbers
from playerfl.data.encoding.columns import Column, ColumnKind, kind_of
from playerfl.data.encoding.forms import EXAMPLES
from playerfl.data.readers.site_tables import SiteTable
from playerfl.errors import DataError

MOST_CLASSES = 1000
_FEW_NUMBERS = 20
_TIMES_EACH = 5
TargetKind = Literal["auto", "classes", "number"]
MissingPolicy = Literal["refuse", "drop", "mean"]


@dataclass(frozen=True)
class Target:
    """The column to predict: one of `classes`, or a number if there are none."""

    name: str
    cells: Mapping[str, Cells]
    classes: tuple[str, ...] = ()

    def filtered(self, rows: Mapping[str, Flags]) -> Target:
        return replace(self, cells={site: cells.filtered(rows[site]) for site, cells in self.cells.items()})

    def values(self, site: str) -> Tensor:
        """Class numbers, or the numbers themselves."""
        cells = self.cells[site]
        return torch.tensor(cells.positions_in(self.classes) if self.classes else cells.numbers)


def target_of(tables: Mapping[str, SiteTable], name: str, kind: TargetKind, codes: Sequence[str] = ()) -> Target:
    """The target column at all sites, as classes or as a number; `codes` are values that stand for a missing one."""
    cells = {site: _as_numbers(cells_of(table, name, codes=codes)) for site, table in tables.items()}
    if kind == "number":
        for site in cells.values():
            if site.is_text.any():
                raise text_among_numbers(site, 'or set data.kind="classes"')
    is_class = kind == "classes" or (kind == "auto" and (_kind(name, cells) != "number" or _few_numbers(cells)))
    target = Target(name, cells, _classes(name, cells) if is_class else ())
    values = {value for site in cells.values() for value in np.unique(site.present).tolist()}
    if len(target.classes or values) < 2:
        raise DataError(f"the target {name!r} has the same value in every row, so there is nothing to learn")
    return target


def _as_numbers(cells: Cells) -> Cells:
    """Percentages as numbers."""
    if cells.is_text.any() and kind_of({"": cells}) == "percent":
        return replace(cells, numbers=ColumnKind(cells.column, "percent").inputs(cells)[:, 0], texts=None)
    return cells


def _kind(name: str, cells: Mapping[str, Cells]) -> str:
    kind = kind_of(cells)
    if kind in ("ratio", "time"):
        raise DataError(
            f"the target {name!r} has values such as {EXAMPLES[kind]}; write one number per cell, or name another "
            'column in data.target (data.kind="classes" makes every value a class)'
        )
    return kind


def _few_numbers(cells: Mapping[str, Cells]) -> bool:
    numbers = np.concatenate([site.present for site in cells.values()])
    distinct = len(np.unique(numbers))
    return distinct <= _FEW_NUMBERS and distinct * _TIMES_EACH <= len(numbers)


def _classes(name: str, cells: Mapping[str, Cells]) -> tuple[str, ...]:
    """Sorted as numbers if all of them are, else as texts."""
    found = {text for site in cells.values() for text in site.spellings[0]}
    if len(found) > MOST_CLASSES:
        raise DataError(
            f"the target {name!r} has {len(found):,} different values; at most {MOST_CLASSES:,} classes are "
            'supported, so set data.kind="number" if it is a number, or name another column in data.target'
        )
    if any(site.is_text.any() for site in cells.values()):
        return tuple(sorted(found))
    return tuple(sorted(found, key=_number))


def _number(text: str) -> tuple[float, str]:
    return float({"True": 1, "False": 0}.get(text, text)), text


def usable_rows(columns: Sequence[Column], target: Target, policy: MissingPolicy) -> dict[str, Flags]:
    """Which rows of each site are used under a policy for missing values."""
    usable = {}
    for site, targets in target.cells.items():
        every = [*(column.cells[site] for column in columns), targets]
        if policy == "refuse":
            for cells in every:
                cells.refuse_missing('or set data.missing="drop" (rows) or "mean"')
        rows = np.ones(len(targets), dtype=bool)
        for cells in every if policy == "drop" else [targets]:
            rows &= ~cells.is_missing
        if not rows.any():
            raise DataError(
                f"{targets.file} has no row without missing values; fill them in, leave columns out with "
                'data.drop_columns, or set data.missing="mean"'
            )
        usable[site] = rows
    return usable
