"""The column to predict, as classes or as a number, and the rows that can be used."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from playerfl.data.encoding.cells import NO_RULES, Cells, Flags, cells_of, text_among_numbers
from playerfl.data.encoding.columns import ColumnAtSites, ColumnKind, form_of, kind_of, refuse_flags
from playerfl.data.encoding.forms import EXAMPLES
from playerfl.data.encoding.rules import CellRules
from playerfl.data.readers.site_tables import SiteTable
from playerfl.errors import DataError

MOST_CLASSES = 1000
_FEW_NUMBERS = 20
_TIMES_EACH = 5
_AS_CODES = 'set data.kind="classes"'
TargetKind = Literal["auto", "classes", "number"]
MissingPolicy = Literal["refuse", "drop", "mean"]


@dataclass(frozen=True)
class Target:
    """The column to predict: one of `classes`, or a number if there are none."""

    name: str
    cells: Mapping[str, Cells]
    classes: tuple[str, ...] = ()
    merges_booleans: bool = False
    """Whether true and false were read as 1 and 0, because the column holds these too."""

    def filtered(self, rows: Mapping[str, Flags]) -> Target:
        return replace(self, cells={site: cells.filtered(rows[site]) for site, cells in self.cells.items()})

    def values(self, site: str) -> Tensor:
        """Class numbers, or the numbers themselves."""
        cells = self.cells[site]
        return torch.tensor(cells.positions_in(self.classes) if self.classes else cells.numbers)


def target_of(tables: Mapping[str, SiteTable], name: str, kind: TargetKind, rules: CellRules = NO_RULES) -> Target:
    """The target column at all sites, as classes or as a number."""
    cells = {site: _as_numbers(cells_of(table, name, rules=rules.at(site))) for site, table in tables.items()}
    merges = _has_booleans_and_digits(cells)
    if merges:
        cells = {site: replace(of_site, booleans=None) for site, of_site in cells.items()}
    if kind == "number":
        for site in cells.values():
            if site.is_text.any():
                raise text_among_numbers(site, 'or set data.kind="classes"')
        refuse_flags(cells.values(), _AS_CODES)
    # Texts that a rule put among numbers are meant to be there.
    has_chosen = any(rules.at(site).new_values(name) and of_site.is_text.any() for site, of_site in cells.items())
    is_class = kind == "classes" or (
        kind == "auto" and (has_chosen or _kind(name, cells) != "number" or _few_numbers(cells))
    )
    target = Target(name, cells, _classes(name, cells) if is_class else (), merges)
    values = {value for site in cells.values() for value in np.unique(site.present).tolist()}
    if len(target.classes or values) < 2:
        raise DataError(f"the target {name!r} has the same value in every row, so there is nothing to learn")
    return target


def _has_booleans_and_digits(cells: Mapping[str, Cells]) -> bool:
    """Whether a column holds true and false as well as 1 and 0, and nothing else: they mean the same."""
    if any(site.is_text.any() or not np.isin(site.present, (0.0, 1.0)).all() for site in cells.values()):
        return False
    digits = any((~site.is_boolean & ~site.is_missing).any() for site in cells.values())
    return digits and any(site.is_boolean.any() for site in cells.values())


def _as_numbers(cells: Cells) -> Cells:
    """Percentages as numbers."""
    if cells.is_text.any() and form_of([cells]) == "percent":
        return replace(cells, numbers=ColumnKind(cells.column, "percent").inputs(cells)[:, 0], texts=None)
    return cells


def _kind(name: str, cells: Mapping[str, Cells]) -> str:
    kind = kind_of(cells, _AS_CODES)
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
    texts = {text for site in cells.values() for text in site.spellings[0]}
    if len(texts) > MOST_CLASSES:
        raise DataError(
            f"the target {name!r} has {len(texts):,} different values; at most {MOST_CLASSES:,} classes are "
            'supported, so set data.kind="number" if it is a number, or name another column in data.target'
        )
    if any(site.is_text.any() for site in cells.values()):
        return tuple(sorted(texts))
    return tuple(sorted(texts, key=_number))


def _number(text: str) -> tuple[float, str]:
    return float({"True": 1, "False": 0}.get(text, text)), text


def usable_rows(columns: Sequence[ColumnAtSites], target: Target, policy: MissingPolicy) -> dict[str, Flags]:
    """Which rows of each site are used under a policy for missing values."""
    incomplete = {}
    for site, targets in target.cells.items():
        inputs = [column.cells[site] for column in columns]
        if policy == "refuse":
            for cells in (*inputs, targets):
                cells.refuse_missing('or set data.missing="drop" (rows) or "mean"')
        incomplete[site] = np.zeros(len(targets), dtype=bool)
        for cells in inputs:
            incomplete[site] |= cells.is_missing
    return rows_left(incomplete, target, policy)


def rows_left(incomplete: Mapping[str, Flags], target: Target, policy: MissingPolicy) -> dict[str, Flags]:
    """Which rows of each site have what the policy asks for; `incomplete` says which lack an input.

    Refuses a site of which nothing is left.
    """
    usable = {}
    for site, targets in target.cells.items():
        usable[site] = ~targets.is_missing & ~(incomplete[site] & (policy == "drop"))
        if targets.is_missing.all():
            raise DataError(
                f"{targets.file} has no value in the target column {target.name!r}; fill it in, or leave the site out "
                "with data.skip_sites"
            )
        if not usable[site].any():
            raise DataError(
                f"{targets.file} has no row without missing values; fill them in, leave columns out with "
                'data.drop_columns, or set data.missing="mean"'
            )
    return usable
