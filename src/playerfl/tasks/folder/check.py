"""The check of a folder: everything that training would refuse, and what would silently mislead it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import torch

from playerfl.data.check.pictures import check_pictures
from playerfl.data.check.refused import texts_remedy
from playerfl.data.check.result import DataCheck, listing, set_to
from playerfl.data.check.tables import MOST_SAMPLED, TableCheck
from playerfl.data.check.texts.labels import check_classes, check_labels
from playerfl.data.check.texts.spelling import normal_form
from playerfl.data.encoding.cells import cells_of
from playerfl.data.encoding.rules import CellRules
from playerfl.data.encoding.target import Target, rows_left, target_of
from playerfl.data.readers.image_folders import pictures_by_class
from playerfl.data.readers.site_tables import SiteTable
from playerfl.errors import DataError, PlayerflError
from playerfl.tasks.folder.groups import groups_of_pictures, numbered
from playerfl.tasks.folder.listing import sites_in
from playerfl.tasks.folder.options import FolderOptions, listed_classes
from playerfl.tasks.folder.pictures import check_picture_options
from playerfl.tasks.folder.rehearsal import rehearse
from playerfl.tasks.folder.tables import (
    check_named_columns,
    column_differences,
    group_names,
    input_names,
    read_table,
    target_name,
)

_NOT_SITES = {"template", "example", "sample", "codebook", "dictionary", "readme", "metadata", "test", "train"}
_MOST_DIFFERENCES = 5
_FEW_CLASSES = 5


def check_folder(folder: Path, options: FolderOptions, batch_size: int) -> DataCheck:
    """Reads a folder as training would and says what it found; nothing in the folder makes it fail."""
    check = DataCheck(str(folder))
    try:
        files, folders = sites_in(folder, options)
    except PlayerflError as problem:
        check.add("stop", "files", str(problem))
        return check
    _check_names(check, folder, [*files, *folders])
    try:
        if files:
            _check_tables(check, files, options, batch_size)
        else:
            _check_picture_folders(check, folder, folders, options, batch_size)
    except PlayerflError as problem:
        check.add("stop", "settings", str(problem))
    return check


def _check_names(check: DataCheck, folder: Path, sites: list[str]) -> None:
    for site in sites:
        if site.lower() in _NOT_SITES:
            text = f"{site!r} is read as a site, although its name suggests otherwise"
            check.add("warning", "files", text, set_to("skip_sites", site), sites=(site,))
    known: dict[str, str] = {}
    for site in sites:
        other = known.setdefault(normal_form(site) or site, site)
        if other != site:
            check.add(
                "warning", "files", f"{other!r} and {site!r} are two sites, although their names are nearly the same"
            )
    left = sorted(path.name for path in folder.iterdir() if path.name.startswith("~$"))
    if left:
        check.add("note", "files", f"not read: {listing(left)}")
    if len(sites) == 1:
        check.add("note", "sites", "there is only one site, so nothing is federated")


def _check_tables(check: DataCheck, files: Mapping[str, Path], options: FolderOptions, batch_size: int) -> None:
    tables: dict[str, SiteTable] = {}
    for site, path in files.items():
        try:
            tables[site] = read_table(path, options)
        except DataError as problem:
            check.add("stop", "files", str(problem), sites=(site,))
    if not tables:
        return
    check.rows = {site: len(table.frame) for site, table in tables.items()}
    if max(check.rows.values()) > MOST_SAMPLED:
        check.add(
            "note", "sample", f"columns that decide the target were searched for in {MOST_SAMPLED:,} rows of each site"
        )
    differences = list(column_differences(tables))
    for difference in differences[:_MOST_DIFFERENCES]:
        check.add("stop", "columns", difference)
    if len(differences) > _MOST_DIFFERENCES:
        check.add("stop", "columns", f"the sites' columns differ in {len(differences) - _MOST_DIFFERENCES:,} more ways")
    first = next(iter(tables.values())).frame.columns
    names = [str(name) for name in first if all(name in table.frame.columns for table in tables.values())]
    check_named_columns(tables, names, options)
    if not names:
        return
    chosen, why = target_name(names, options.target, tables)
    target = _target(check, tables, chosen, options)
    check.target = chosen
    if options.target is None:
        check.add("note", "target", f"the target is {chosen!r} ({why.partition(';')[0]})", set_to("target", chosen))
    if target is not None:
        _note_kind(check, target, options)
    groups = group_names(tables, {s: np.ones(n, dtype=bool) for s, n in check.rows.items()}, options.group)
    table_check = TableCheck(
        check,
        tables,
        target,
        options.category_columns,
        options.scaling,
        options.rules,
        options.missing != "refuse",
        None if groups is None else numbered(groups),
    )
    table_check.run(input_names(names, chosen, options, tables))
    _note_kinds(check)
    _check_groups(check, groups, span_sites=options.groups_span_sites)
    _check_rules(check, tables, names, options)
    if target is not None and not check.having("stop"):
        _rehearse_tables(check, table_check, target, options, batch_size)


def _rehearse_tables(
    check: DataCheck, table_check: TableCheck, target: Target, options: FolderOptions, batch_size: int
) -> None:
    """What is left when rows with missing values are left out, and whether a run accepts it."""
    try:
        rows = rows_left(table_check.incomplete, target, options.missing)
    except DataError as problem:
        check.add("stop", "missing", str(problem))
        return
    left = target.filtered(rows)
    for site, used in rows.items():
        if not used.all():
            text = f"{site}: {int((~used).sum()):,} of {len(used):,} rows are left out because of missing values"
            check.add("note", "missing", text, sites=(site,))
    lost = [name for name in target.classes if not any(name in cells.spellings[0] for cells in left.cells.values())]
    if lost:
        check.add(
            "warning",
            "labels",
            f"no row of class {listing(lost)} is left when rows with missing values are left out; fill them in, or use "
            "their means",
            "data.missing=mean",
            target.name,
        )
    groups = group_names(table_check.tables, rows, options.group)
    rehearse(check, {site: left.values(site) for site in rows}, groups, target.classes, options, batch_size)


def _check_rules(
    check: DataCheck, tables: Mapping[str, SiteTable], names: Sequence[str], options: FolderOptions
) -> None:
    """Rules of `data.recode` that change nothing, because of a typing error in a site or a value."""

    def changes(rule: str, site: str, name: str) -> bool:
        old = CellRules(recode=(rule,)).at(site).new_values(name).keys()
        if not old:
            return False
        table = tables[site]
        cells = cells_of(table, name, as_text=name in options.category_columns)
        return not old.isdisjoint((*cells.spellings[0], *table.words.get(name, ())))

    for rule in options.recode:
        if not any(changes(rule, site, name) for site in tables for name in names):
            check.add("warning", "settings", f"data.recode: {rule!r} changes no value of any site")


def _target(check: DataCheck, tables: Mapping[str, SiteTable], name: str, options: FolderOptions) -> Target | None:
    try:
        target = target_of(tables, name, options.kind, options.rules)
    except DataError as problem:
        check.add("stop", "target", str(problem), _target_remedy(tables, name, options), name)
        return None
    if target.merges_booleans:
        check.add("note", "kind", f"{name!r}: true and false are read as 1 and 0, which it holds too")
    return target


def _target_remedy(tables: Mapping[str, SiteTable], name: str, options: FolderOptions) -> str:
    try:
        cells = {site: cells_of(table, name, rules=options.rules.at(site)) for site, table in tables.items()}
    except DataError:
        return "data.target=COLUMN"
    return texts_remedy(name, cells) or "data.target=COLUMN"


def _note_kind(check: DataCheck, target: Target, options: FolderOptions) -> None:
    """Whether the target was taken for classes or for a number."""
    if options.kind != "auto":
        return
    if not target.classes:
        text = f"{target.name!r} is predicted as a number (more than 20 different ones, or few rows of each)"
        check.add("note", "kind", text, "data.kind=classes")
        return
    numbers = [cells.present for cells in target.cells.values() if not cells.is_text.any()]
    whole = len(numbers) == len(target.cells) and not any((values % 1).any() for values in numbers)
    if whole and len(target.classes) > _FEW_CLASSES:
        text = (
            f"the {len(target.classes)} whole numbers of {target.name!r}, from {target.classes[0]} to "
            f"{target.classes[-1]}, are read as classes, which ignores their order; counts and scores are numbers"
        )
        check.add("warning", "kind", text, "data.kind=number (or classes, if they are)", target.name)
    else:
        check.add(
            "note",
            "kind",
            f"{target.name!r} has {listed_classes(target.classes)}",
            "data.kind=number" if whole and len(target.classes) > 2 else None,
        )


def _note_kinds(check: DataCheck) -> None:
    """Texts that are read as numbers."""
    for kind, meaning in (
        ("percent", "percentages"),
        ("ratio", "two numbers"),
        ("time", "times of day"),
    ):
        if names := [column.name for column in check.columns if column.kind == kind]:
            text = f"read as {meaning}: {listing(list(map(repr, names)))}"
            check.add("note", "kind", text, set_to("category_columns", names[0]))


def _check_groups(check: DataCheck, groups: Mapping[str, list[str | None]] | None, *, span_sites: bool) -> None:
    if groups is None:
        return
    if lacking := {site: of_site.count(None) for site, of_site in groups.items() if None in of_site}:
        check.add(
            "warning",
            "groups",
            f"rows without a group ({listing([f'{site} {count:,}' for site, count in lacking.items()])}): they may "
            "belong to patients who have other rows in another part; fill in the column, or leave these rows out",
            sites=lacking,
        )
    names = {site: set(of_site) - {None} for site, of_site in groups.items()}
    check.groups = {site: len(of_site) + groups[site].count(None) for site, of_site in names.items()}
    at_several = [
        name for name, count in Counter(name for of_site in names.values() for name in of_site).items() if count > 1
    ]
    if at_several and not span_sites:
        check.add(
            "note",
            "groups",
            f"{len(at_several):,} groups have the same name at several sites, such as {at_several[0]!r}; they count as "
            "different groups",
            "data.groups_span_sites=true (if they are the same)",
        )
    if few := [site for site, count in check.groups.items() if count < 3]:
        check.add("stop", "groups", f"{listing(few)}: fewer than 3 groups, one for each part", sites=few)


def _check_picture_folders(
    check: DataCheck, folder: Path, folders: Mapping[str, Path], options: FolderOptions, batch_size: int
) -> None:
    check_picture_options(folder, options)
    files: dict[str, dict[str, list[Path]]] = {}
    for site, path in folders.items():
        try:
            files[site] = pictures_by_class(path)
        except DataError as problem:
            check.add("stop", "files", str(problem), sites=(site,))
    check.target = "the name of an image's folder"
    check.rows = {site: sum(map(len, by_class.values())) for site, by_class in files.items()}
    counts: dict[str, dict[str, int]] = {}
    for site, by_class in files.items():
        for name, pictures in by_class.items():
            if pictures:
                counts.setdefault(name, {})[site] = len(pictures)
    check.classes = dict(sorted(counts.items()))
    check_labels(check, check.classes, "class folders", None)
    check_classes(check, check.classes)
    if len(counts) < 2 and not check.having("stop"):
        check.add("stop", "labels", "at least two classes are needed, one folder each")
    listed = {site: [file for of_class in by_class.values() for file in of_class] for site, by_class in files.items()}
    groups = groups_of_pictures(folder, listed, options)
    check_pictures(check, files, grouped=groups is not None)
    _check_groups(
        check,
        None if groups is None else {site: list(names) for site, names in groups.items()},
        span_sites=options.groups_span_sites,
    )
    if not check.having("stop"):
        classes = list(check.classes)
        targets = {
            site: torch.tensor([classes.index(name) for name, of_class in by_class.items() for _ in of_class])
            for site, by_class in files.items()
        }
        rehearse(check, targets, groups, classes, options, batch_size)
