"""The check of one table per site, column by column, so that only one column is unpacked at a time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from playerfl.data.check.labels import check_classes, check_labels
from playerfl.data.check.numbers import check_information, check_numbers, profile
from playerfl.data.check.predictors import check_leak, check_names_a_subject, decides, follows
from playerfl.data.check.result import ColumnProfile, DataCheck, listing
from playerfl.data.check.rows import (
    Hashes,
    cell_hashes,
    check_duplicates,
    check_near_duplicates,
    combined,
    nearly_repeated,
)
from playerfl.data.encoding.cells import Cells, Numbers, cells_of
from playerfl.data.encoding.columns import Column, column_of
from playerfl.data.encoding.target import Target
from playerfl.data.partition import Indices
from playerfl.data.readers.site_tables import SiteTable
from playerfl.errors import DataError
from playerfl.seeding import seed_for

MOST_SAMPLED = 10_000
"""Rows per site that are looked at for columns that decide the target."""
_MOST_NEAR_COLUMNS = 12


@dataclass
class TableCheck:
    """Goes through the columns of all sites' tables and adds what it finds to a check."""

    check: DataCheck
    tables: Mapping[str, SiteTable]
    target: Target | None
    category_columns: Sequence[str] = ()
    missing_codes: Sequence[str] = ()
    accepts_missing: bool = False
    _hashes: dict[str, Hashes] = field(default_factory=dict)
    _near: dict[str, list[Numbers]] = field(default_factory=dict)
    _gaps: dict[str, dict[str, int]] = field(default_factory=dict)
    _room: float = 1.0
    _sample: dict[str, Indices] = field(default_factory=dict)

    def run(self, inputs: Sequence[str], group: str | None) -> None:
        for site, table in self.tables.items():
            rows = len(table.frame)
            rng = np.random.default_rng(seed_for("sampled rows", site))
            self._sample[site] = np.arange(rows) if rows <= MOST_SAMPLED else rng.permutation(rows)[:MOST_SAMPLED]
        if self.target is not None:
            self._check_target(self.target)
        for name in inputs:
            try:
                self._check_column(name)
            except Exception as problem:
                # Whatever is odd about a column, it must not keep anyone from the rest of the check, or from training.
                said = " ".join(f"{type(problem).__name__}: {problem}".split())
                self.check.add("note", "column", f"{name!r} could not be checked ({said[:200]})", column=name)
        self._check_missing()
        check_duplicates(self.check, self._hashes, self._room)
        if group is None:
            check_near_duplicates(self.check, {site: nearly_repeated(near) for site, near in self._near.items()})

    def _check_target(self, target: Target) -> None:
        if target.classes:
            counts = _counts(target.cells)
            self.check.classes = counts = {name: counts[name] for name in target.classes}
            check_labels(self.check, counts, f"target {target.name!r}", target.name)
            check_classes(self.check, counts)
        numbers = None if target.classes else {site: cells.present for site, cells in target.cells.items()}
        column = self._profile(target.name, "class" if target.classes else "number", target.cells, numbers)
        if numbers is not None:
            check_numbers(self.check, column, numbers)
        self._add_hashes(target.cells)
        self._note_gaps(target.name, target.cells)

    def _check_column(self, name: str) -> None:
        as_text = name in self.category_columns
        try:
            column = column_of(self.tables, name, as_text=as_text, codes=self.missing_codes)
            # Whatever training would refuse in a cell, such as a percentage written in words.
            numbers = self._numbers(column)
        except DataError as problem:
            self.check.add("stop", "column", str(problem), f"data.drop_columns={name}", name)
            self._profile_refused(name)
            return
        kind = column.kind.kind
        found = self._profile(name, kind, column.cells, numbers)
        check_information(self.check, found)
        whole = kind == "number" and numbers is not None and not any((v % 1).any() for v in numbers.values())
        names_subject = check_names_a_subject(self.check, found, are_whole=whole or kind == "category")
        if not names_subject:
            self._add_hashes(column.cells)
            self._room *= max(1, max(of_site.distinct for of_site in found.sites.values()))
            if numbers is not None:
                check_numbers(self.check, found, numbers)
            elif kind == "category":
                check_labels(self.check, _counts(column.cells), f"column {name!r}", name)
            self._check_leak(column)
            self._remember_near(column)
        self._note_gaps(name, column.cells)

    def _numbers(self, column: Column) -> dict[str, Numbers] | None:
        """The numbers that are there, of the first of two inputs for a ratio; None for other kinds of columns."""
        if column.kind.kind == "number":
            return {site: cells.present for site, cells in column.cells.items()}
        if not column.kind.is_measured:
            return None
        parsed = {site: column.kind.inputs(cells)[:, 0] for site, cells in column.cells.items()}
        return {site: values[~np.isnan(values)] for site, values in parsed.items()}

    def _profile(
        self, name: str, kind: str, cells: Mapping[str, Cells], numbers: Mapping[str, Numbers] | None
    ) -> ColumnProfile:
        sites = {site: profile(of_site, None if numbers is None else numbers[site]) for site, of_site in cells.items()}
        found = ColumnProfile(name, kind, sites)
        self.check.columns.append(found)
        return found

    def _profile_refused(self, name: str) -> None:
        """What can still be said of a column that training refuses."""
        cells: dict[str, Cells] = {}
        for site, table in self.tables.items():
            try:
                cells[site] = cells_of(table, name, codes=self.missing_codes)
            except DataError:
                continue
        self._profile(name, "refused", cells, None)

    def _add_hashes(self, cells: Mapping[str, Cells]) -> None:
        for site, of_site in cells.items():
            self._hashes[site] = combined(self._hashes.get(site), cell_hashes(of_site))

    def _check_leak(self, column: Column) -> None:
        if self.target is None:
            return
        shares = {}
        for site, cells in column.cells.items():
            rows = self._sample[site]
            target = self.target.cells[site]
            if self.target.classes:
                is_number = column.kind.kind == "number"
                values = cells.numbers[rows] if is_number else cells.spellings[1][rows]
                labels = target.spellings[1][rows]
                there = (labels >= 0) & ~cells.is_missing[rows]
                shares[site] = decides(values[there], labels[there], ordered=is_number)
            elif column.kind.kind == "number":
                x, y = cells.numbers[rows], target.numbers[rows]
                there = ~np.isnan(x) & ~np.isnan(y)
                shares[site] = follows(x[there], y[there])
        check_leak(self.check, column.name, shares, self.target.name)

    def _remember_near(self, column: Column) -> None:
        """Measurements are kept for the search for near-duplicates, of a few columns and rows."""
        if column.kind.kind != "number":
            return
        for site, cells in column.cells.items():
            near = self._near.setdefault(site, [])
            if len(near) < _MOST_NEAR_COLUMNS:
                near.append(cells.numbers[:MOST_SAMPLED])

    def _note_gaps(self, name: str, cells: Mapping[str, Cells]) -> None:
        if gaps := {site: count for site, of_site in cells.items() if (count := int(of_site.is_missing.sum()))}:
            self._gaps[name] = gaps

    def _check_missing(self) -> None:
        if not self._gaps or self.accepts_missing:
            return
        shown = [
            f"{name!r} ({', '.join(f'{site} {count:,}' for site, count in gaps.items())})"
            for name, gaps in self._gaps.items()
        ]
        self.check.add(
            "stop",
            "missing",
            f"missing values in {listing(shown)}: they are refused unless you say what to do about them",
            "data.missing=mean (or drop)",
            sites=sorted({site for gaps in self._gaps.values() for site in gaps}),
        )


def _counts(cells: Mapping[str, Cells]) -> dict[str, dict[str, int]]:
    counts: dict[str, dict[str, int]] = {}
    for site, of_site in cells.items():
        names, codes = of_site.spellings
        for name, count in zip(names, np.bincount(codes[codes >= 0], minlength=len(names)).tolist(), strict=True):
            counts.setdefault(name, {})[site] = count
    return counts
