"""The check of one table per site, column by column, so that only one column is unpacked at a time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from playerfl.data.check.dates import check_dates
from playerfl.data.check.direction import MOST_COLUMNS, MOST_ROWS, MOST_SITES, check_direction
from playerfl.data.check.numbers import check_information, check_numbers, ends_with_total, profile
from playerfl.data.check.predictors import (
    check_leak,
    check_missing_leak,
    check_names_a_subject,
    check_names_something,
    decides,
    follows,
    missing_decides,
    missing_separates,
    sorted_by,
)
from playerfl.data.check.refused import check_numbers_as_categories, remedy_for
from playerfl.data.check.result import ColumnProfile, DataCheck, listing, set_to
from playerfl.data.check.rows import (
    Hashes,
    cell_hashes,
    check_duplicates,
    check_near_duplicates,
    check_repeats_above,
    coincidence,
    combined,
    nearly_repeated,
    repeats_above,
)
from playerfl.data.check.texts.codings import counts_of
from playerfl.data.check.texts.labels import (
    FEW_NUMBERS,
    check_classes,
    check_codes,
    check_labels,
    check_number_of_classes,
)
from playerfl.data.check.texts.spelling import is_number
from playerfl.data.check.texts.words import check_words
from playerfl.data.encoding.cells import NO_RULES, Cells, Flags, Numbers, cells_of
from playerfl.data.encoding.columns import MOST_CATEGORIES, ColumnAtSites, column_of
from playerfl.data.encoding.rules import CellRules
from playerfl.data.encoding.scaling import Scaling
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
    scaling: Scaling = "auto"
    rules: CellRules = NO_RULES
    accepts_missing: bool = False
    groups: Mapping[str, Indices] | None = None
    """The group of every row, if there are any."""
    incomplete: dict[str, Flags] = field(default_factory=dict)
    """Which rows of each site lack an input; complete when `run` has ended."""
    _hashes: dict[str, Hashes] = field(default_factory=dict)
    _near: dict[str, dict[str, Numbers]] = field(default_factory=dict)
    _some_inputs: dict[str, list[Numbers]] = field(default_factory=dict)
    """Of a few rows, by site: inputs one by one."""
    _gaps: dict[str, dict[str, int]] = field(default_factory=dict)
    _totals: dict[str, list[str]] = field(default_factory=dict)
    """Columns by site whose last value is the sum of the others."""
    _chance: float = 1.0
    _sample: dict[str, Indices] = field(default_factory=dict)

    def run(self, inputs: Sequence[str]) -> None:
        for site, table in self.tables.items():
            rows = len(table.frame)
            self.incomplete[site] = np.zeros(rows, dtype=bool)
            rng = np.random.default_rng(seed_for("sampled rows", site))
            self._sample[site] = np.arange(rows) if rows <= MOST_SAMPLED else rng.permutation(rows)[:MOST_SAMPLED]
        if self.target is not None:
            self._check_target(self.target)
        for name in inputs:
            try:
                self._check_column(name)
            except Exception as problem:
                # Whatever is odd about a column, it must not keep anyone from the rest of the check, or from training.
                message = " ".join(f"{type(problem).__name__}: {problem}".split())
                self.check.add("note", "column", f"{name!r} could not be checked ({message[:200]})", column=name)
        self._check_missing()
        for site, columns in self._totals.items():
            row = f"{self.tables[site].file}, row {self.tables[site].frame.index[-1]}"
            text = f"{row} is the sum of the rows above it in {listing(list(map(repr, columns)))}; remove it"
            self.check.add("warning", "files", text, sites=(site,))
        check_words(self.check, self.tables, self.target, inputs, self.rules)
        groups = self.groups or {}
        if self._hashes:
            check_duplicates(self.check, self._hashes, self._chance, groups=self.groups)
        near = {site: nearly_repeated([*of.values()], groups.get(site)) for site, of in self._near.items()}
        check_near_duplicates(self.check, near, grouped=self.groups is not None)
        settings = [finding.setting or "" for finding in self.check.findings if finding.topic != "duplicates"]
        is_asked = any("data.group=" in setting for setting in settings)
        if self.groups is None and not is_asked:
            names = next(iter(self._near.values()), {})
            check_repeats_above(
                self.check, {name: {s: repeats_above(of[name]) for s, of in self._near.items()} for name in names}
            )
        if self.target is not None:
            self._check_direction(self.target)

    def _check_target(self, target: Target) -> None:
        if target.classes:
            counts = counts_of(target.cells)
            self.check.classes = counts = {name: counts[name] for name in target.classes}
            check_labels(self.check, counts, f"target {target.name!r}", target.name, self._chosen(target.name))
            check_number_of_classes(self.check, counts, target.name)
            check_classes(self.check, counts)
        numbers = None if target.classes else {site: cells.present for site, cells in target.cells.items()}
        column = self._profile(target.name, "class" if target.classes else "number", target.cells, numbers)
        if numbers is not None:
            check_numbers(self.check, column, numbers, is_target=True, scaling=self.scaling)
        self._add_hashes(target.cells)
        self._note_gaps(target.name, target.cells, is_input=False)

    def _check_column(self, name: str) -> None:
        as_text = name in self.category_columns
        try:
            column = column_of(self.tables, name, as_text=as_text, rules=self.rules)
            # Whatever training would refuse in a cell, such as a percentage written in words.
            numbers = self._numbers(column)
        except DataError as problem:
            cells = self._refused_cells(name)
            self.check.add(
                "stop", "column", str(problem), remedy_for(name, cells, are_all=len(cells) == len(self.tables)), name
            )
            self._profile(name, "refused", cells, None)
            return
        kind = column.kind.kind
        summary = self._profile(name, kind, column.cells, numbers)
        check_information(self.check, summary)
        whole = kind == "number" and numbers is not None and not any((v % 1).any() for v in numbers.values())
        is_date = whole and numbers is not None and check_dates(self.check, name, numbers)
        if not is_date:
            self._check_zeros(name, max(of_site.distinct for of_site in summary.sites.values()))
        names_subject = not is_date and check_names_a_subject(
            self.check, summary, are_whole=whole or kind == "category"
        )
        for site, of_site in column.cells.items() if kind == "number" else ():
            if ends_with_total(of_site.numbers):
                self._totals.setdefault(site, []).append(name)
        if not names_subject:
            self._add_hashes(column.cells)
            if numbers is not None:
                check_numbers(self.check, summary, numbers, scaling=self.scaling)
                if whole:
                    check_names_something(self.check, summary)
            if kind == "number" and whole and all(0 < c.distinct <= FEW_NUMBERS for c in summary.sites.values()):
                digits = {site: replace(cells, booleans=None) for site, cells in column.cells.items()}
                check_codes(
                    self.check, counts_of(digits), f"column {name!r}", name, self._chosen(name), are_measured=True
                )
            elif kind == "category" and not as_text:
                check_numbers_as_categories(self.check, name, column.cells)
            if kind == "category":
                check_labels(self.check, counts_of(column.cells), f"column {name!r}", name, self._chosen(name))
            self._check_leak(column)
            self._remember_near(column)
            self._remember_inputs(column)
        elif kind == "number" and all(c.distinct == c.rows - c.missing for c in summary.sites.values()):
            self._check_leak(column, is_identifier=True)
        self._note_gaps(name, column.cells)

    def _check_zeros(self, name: str, distinct: int) -> None:
        """Codes such as postcodes that lost their leading zeros, because they were read as numbers."""
        written = {
            site: table.leading_zeros[name] for site, table in self.tables.items() if name in table.leading_zeros
        }
        if written:
            keep = set_to("category_columns", name) if distinct <= MOST_CATEGORIES else set_to("drop_columns", name)
            example = next(iter(written.values()))
            text = f"{name!r} has leading zeros, such as {example}, as codes do, but is read as a measurement"
            self.check.add("warning", "codes", text, keep, name, written)

    def _chosen(self, name: str) -> set[str]:
        """Values of a column that a rule names as what others are to be read as."""
        return {new for site in self.tables for new in self.rules.at(site).new_values(name).values()}

    def _numbers(self, column: ColumnAtSites) -> dict[str, Numbers] | None:
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
        column = ColumnProfile(name, kind, sites)
        self.check.columns.append(column)
        return column

    def _refused_cells(self, name: str) -> dict[str, Cells]:
        """What can still be read of a column that training refuses."""
        cells: dict[str, Cells] = {}
        for site, table in self.tables.items():
            try:
                cells[site] = cells_of(table, name, rules=self.rules.at(site))
            except DataError:
                continue
        return cells

    def _add_hashes(self, cells: Mapping[str, Cells]) -> None:
        chances = []
        for site, of_site in cells.items():
            hashes = cell_hashes(of_site)
            chances.append(coincidence(hashes[self._sample[site]]))
            self._hashes[site] = combined(self._hashes.get(site), hashes)
        self._chance *= max(chances)

    def _check_leak(self, column: ColumnAtSites, *, is_identifier: bool = False) -> None:
        if self.target is None:
            return
        shares, by_missing = {}, []
        for site, cells in column.cells.items():
            rows = self._sample[site]
            target = self.target.cells[site]
            if self._missing_leaks(cells.is_missing[rows], target, rows):
                by_missing.append(site)
            if self.target.classes:
                is_number = column.kind.kind == "number"
                values = cells.numbers[rows] if is_number else cells.spellings[1][rows]
                labels = target.spellings[1][rows]
                there = (labels >= 0) & ~cells.is_missing[rows]
                shares[site] = decides(values[there], labels[there], ordered=is_number)
                if is_identifier and sorted_by(values[there], labels[there], are_classes=True):
                    shares[site] = 1.0
            elif column.kind.kind == "number":
                x, y = cells.numbers[rows], target.numbers[rows]
                there = ~np.isnan(x) & ~np.isnan(y)
                shares[site] = follows(x[there], y[there])
                if is_identifier and sorted_by(x[there], y[there], are_classes=False):
                    shares[site] = 1.0
        check_leak(self.check, column.name, shares, self.target.name, is_identifier=is_identifier)
        check_missing_leak(self.check, column.name, by_missing, self.target.name)

    def _missing_leaks(self, is_missing: Flags, target: Cells, rows: Indices) -> bool:
        if not is_missing.any():
            return False
        known = ~target.is_missing[rows]
        if self.target is not None and self.target.classes:
            return missing_decides(is_missing[known], target.spellings[1][rows][known])
        return missing_separates(is_missing[known], target.numbers[rows][known])

    def _remember_near(self, column: ColumnAtSites) -> None:
        """Measurements are kept for the search for near-duplicates, of a few columns and rows."""
        if column.kind.kind != "number":
            return
        for site, cells in column.cells.items():
            near = self._near.setdefault(site, {})
            if len(near) < _MOST_NEAR_COLUMNS:
                near[column.name] = cells.numbers[:MOST_SAMPLED]

    def _remember_inputs(self, column: ColumnAtSites) -> None:
        """Inputs of some rows, to compare how they go with the target at the sites."""
        if self.target is None or column.kind.width > _MOST_NEAR_COLUMNS or not 1 < len(self.tables) <= MOST_SITES:
            return
        for site, cells in column.cells.items():
            known = self._some_inputs.setdefault(site, [])
            if len(known) + column.kind.width <= MOST_COLUMNS:
                known.extend(column.kind.inputs(cells.filtered(self._few(site, len(cells)))).T)

    def _few(self, site: str, rows: int) -> Flags:
        few = np.zeros(rows, dtype=bool)
        few[self._sample[site][:MOST_ROWS]] = True
        return few

    def _check_direction(self, target: Target) -> None:
        """Only of two classes, of numbers as classes, and of a number: other classes have no order."""
        if len(target.classes) > 2 and not all(map(is_number, target.classes)):
            return
        few = target.filtered({site: self._few(site, len(cells)) for site, cells in target.cells.items()})
        values = {site: few.values(site).double().numpy() for site in self._some_inputs}
        if target.classes:
            values = {site: np.where(codes < 0, np.nan, codes) for site, codes in values.items()}
        check_direction(self.check, self._some_inputs, values, target.name, target.classes)

    def _note_gaps(self, name: str, cells: Mapping[str, Cells], *, is_input: bool = True) -> None:
        if is_input:
            for site, of_site in cells.items():
                self.incomplete[site] |= of_site.is_missing
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
