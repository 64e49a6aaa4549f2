"""Turns all sites' tables into inputs and targets that a network can train on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from playerfl.data.columns import Cells, Column, cells_of, kind_of, text_among_numbers
from playerfl.data.examples import SiteData, tensor_pair
from playerfl.data.readers.site_tables import SiteTable
from playerfl.errors import DataError

MOST_CLASSES = 1000
_FEW_NUMBERS = 20
_TIMES_EACH = 5
TargetKind = Literal["auto", "classes", "number"]
MissingPolicy = Literal["refuse", "drop", "mean"]
Rows = NDArray[np.bool_]


@dataclass(frozen=True)
class Target:
    """The column to predict: one of `classes`, or a number if there are none."""

    name: str
    cells: Mapping[str, Cells]
    classes: tuple[str, ...] = ()

    def filtered(self, rows: Mapping[str, Rows]) -> Target:
        return Target(self.name, {site: cells.filtered(rows[site]) for site, cells in self.cells.items()}, self.classes)

    def values(self, site: str) -> Tensor:
        """Class numbers, or the numbers themselves."""
        cells = self.cells[site]
        if not self.classes:
            return torch.from_numpy(cells.numbers)
        position = {name: i for i, name in enumerate(self.classes)}
        return torch.tensor([position[text] for text in cells.spelled() if text is not None])


def target_of(tables: Mapping[str, SiteTable], name: str, kind: TargetKind) -> Target:
    """The target column at all sites, as classes or as a number."""
    cells = {site: cells_of(table, name) for site, table in tables.items()}
    if kind == "number":
        for site in cells.values():
            if site.is_text.any():
                raise text_among_numbers(site, 'or set data.kind="classes"')
    is_class = kind == "classes" or (kind == "auto" and (kind_of(cells) != "number" or _few_numbers(cells)))
    target = Target(name, cells, _classes(name, cells) if is_class else ())
    values = {value for site in cells.values() for value in site.numbers[~site.is_missing].tolist()}
    if len(target.classes or values) < 2:
        raise DataError(f"the target {name!r} has the same value in every row, so there is nothing to learn")
    return target


def _few_numbers(cells: Mapping[str, Cells]) -> bool:
    numbers = np.concatenate([site.numbers[~site.is_missing] for site in cells.values()])
    distinct = len(np.unique(numbers))
    return distinct <= _FEW_NUMBERS and distinct * _TIMES_EACH <= len(numbers)


def _classes(name: str, cells: Mapping[str, Cells]) -> tuple[str, ...]:
    by_number = {
        text: number
        for site in cells.values()
        for text, number in zip(site.spelled(), site.numbers.tolist(), strict=True)
        if text is not None
    }
    if len(by_number) > MOST_CLASSES:
        raise DataError(
            f"the target {name!r} has {len(by_number):,} different values; at most {MOST_CLASSES:,} classes are "
            'supported, so set data.kind="number" if it is a number, or name another column in data.target'
        )
    all_numbers = all(number == number for number in by_number.values())
    return tuple(sorted(by_number, key=by_number.__getitem__) if all_numbers else sorted(by_number))


def usable_rows(columns: Sequence[Column], target: Target, policy: MissingPolicy) -> dict[str, Rows]:
    """Which rows of each site are used under a policy for missing values."""
    usable = {}
    for site, targets in target.cells.items():
        every = [*(column.cells[site] for column in columns), targets]
        if policy == "refuse":
            for cells in every:
                _refuse_missing(cells)
        rows = np.ones(len(targets.numbers), dtype=bool)
        for cells in every if policy == "drop" else [targets]:
            rows &= ~cells.is_missing
        if not rows.any():
            raise DataError(
                f"{targets.file} has no row without missing values; fill them in, leave columns out with "
                'data.drop_columns, or set data.missing="mean"'
            )
        usable[site] = rows
    return usable


def _refuse_missing(cells: Cells) -> None:
    if cells.is_missing.any():
        first = int(cells.is_missing.argmax())
        raise DataError(
            f"{cells.at(first)}: the value is missing, as in {int(cells.is_missing.sum())} of {len(cells.numbers)} "
            'rows; fill it in, or set data.missing="drop" (rows) or "mean"'
        )


def standardised(site: SiteData, is_number: Rows) -> SiteData:
    """Scales numbers to mean 0 and variance 1 on the site's training rows; a column that is constant there becomes 0.

    Other inputs (0 or 1) are left alone. A missing value becomes the mean of its input over the training rows.
    """
    train = tensor_pair(site.train)[0].numpy()
    seen = ~np.isnan(train)
    filled = np.where(seen, train, 0.0)
    count = seen.sum(0).clip(1)
    mean = filled.sum(0) / count
    spread = np.sqrt((np.where(seen, train - mean, 0.0) ** 2).sum(0) / count)
    lowest, highest = np.where(seen, train, np.inf).min(0), np.where(seen, train, -np.inf).max(0)
    # Compared, not computed: the spread of equal numbers may differ from 0 in its last digits.
    varies = (lowest < highest) & (spread > 0)
    scale = np.where(varies & is_number, spread, 1.0)

    def scaled(inputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        raw = inputs.numpy()
        raw = np.where(np.isnan(raw), mean, raw)
        numbers = np.where(varies, (raw - mean) / scale, 0.0)
        return torch.from_numpy(np.where(is_number, numbers, raw).astype(np.float32)), targets

    return site.mapped(scaled)


def with_scaled_targets(sites: Mapping[str, SiteData]) -> tuple[dict[str, SiteData], float, float]:
    """Scales targets to mean 0 and variance 1 over all sites' training rows; returns that mean and spread too.

    One scale for all sites makes their losses comparable; a scale near 1 suits the usual learning rates.
    """
    train = torch.cat([tensor_pair(site.train)[1] for site in sites.values()])
    mean, spread = float(train.mean()), float(train.std(correction=0)) or 1.0

    def scaled(inputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        return inputs, ((targets - mean) / spread).float()

    return {name: site.mapped(scaled) for name, site in sites.items()}, mean, spread
