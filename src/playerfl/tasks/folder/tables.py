"""The sites of a folder of tables: what each column is, how the sites are split, and how rows become inputs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path

import numpy as np
import torch

from playerfl.data.encoding.cells import Flags, cells_of
from playerfl.data.encoding.columns import Column, column_of
from playerfl.data.encoding.encoding import ColumnEncoding, Encoding, TableEncoding, TargetEncoding, raw_inputs
from playerfl.data.encoding.scaling import fit_scales
from playerfl.data.encoding.target import MissingPolicy, Target, target_of, usable_rows
from playerfl.data.examples import SiteData, TensorExamples
from playerfl.data.readers.file_limits import check_array
from playerfl.data.readers.site_tables import NPZ_TARGET, SiteTable, read_site_table
from playerfl.data.sites import Sites
from playerfl.errors import ConfigError, DataError, one_of
from playerfl.models.mlp import MLP
from playerfl.tasks.folder.groups import group_notes, names_in, split_sites
from playerfl.tasks.folder.options import FolderData, FolderOptions, listed_classes
from playerfl.tasks.task import Parts

TARGET_NAMES = ("target", "label", "class", "outcome", "y")


def read_table_sites(files: Mapping[str, Path], options: FolderOptions) -> FolderData:
    """Reads one table per site; every column must have the same kind at all sites."""
    tables = {site: read_table(path, options) for site, path in files.items()}
    names = common_columns(tables, options)
    chosen, why = target_name(names, options.target, tables)
    if options.group == chosen:
        raise ConfigError(f"data.group and the target are the same column, {chosen!r}; name another one")
    inputs = [name for name in names if name not in (chosen, options.group)]
    if not inputs:
        raise DataError(f"{next(iter(tables.values())).file} has no column besides the target {chosen!r}")
    codes = options.missing_codes
    target = target_of(tables, chosen, options.kind, codes)
    columns = [column_of(tables, name, as_text=name in options.category_columns, codes=codes) for name in inputs]
    rows = usable_rows(columns, target, options.missing)
    target = target.filtered(rows)
    columns = [column.filtered(rows) for column in columns]
    groups = group_names(tables, rows, options.group)
    split, part_groups = split_sites({site: target.values(site) for site in tables}, groups, options)
    sites, encodings = _encoded(tables, columns, target, split, options)
    notes = [
        f"target: column {chosen!r} ({why})",
        *_target_notes(next(iter(encodings.values())).target, options),
        *_input_notes(columns),
        *_row_notes(rows, options.missing),
        *_filled_notes(columns, tables),
        *_far_notes(encodings),
        *group_notes(groups, f"column {options.group!r}"),
    ]
    widths = (sum(column.kind.width for column in columns), 64, 32, len(target.classes) or 1)
    return FolderData(Sites(sites, notes, encodings, part_groups), partial(MLP, widths))


def read_table(path: Path, options: FolderOptions) -> SiteTable:
    return read_site_table(path, options.drop_columns, options.category_columns, options.group)


def group_names(
    tables: Mapping[str, SiteTable], rows: Mapping[str, Flags], column: str | None
) -> dict[str, list[str | None]] | None:
    """The group of every row that is used, if a column says so."""
    if column is None:
        return None
    cells = {site: cells_of(table, column, as_text=True) for site, table in tables.items()}
    return {site: names_in(of_site.filtered(rows[site])) for site, of_site in cells.items()}


def _encoded(
    tables: Mapping[str, SiteTable],
    columns: Sequence[Column],
    target: Target,
    split: Mapping[str, Parts],
    options: FolderOptions,
) -> tuple[dict[str, SiteData], dict[str, Encoding]]:
    """Every site's rows in three parts, encoded with scales from its training part."""
    kinds = [column.kind for column in columns]
    is_measured = np.concatenate([np.full(kind.width, kind.is_measured) for kind in kinds])
    dropped = sorted(set().union(*(table.dropped for table in tables.values())))
    sites, encodings, targets = {}, {}, {}
    for site, table in tables.items():
        values = target.values(site)
        check_array(len(values), len(is_measured), 8, table.file, "leave out columns or split the site")
        raw = raw_inputs(kinds, [column.cells[site] for column in columns])
        parts = split[site]
        scales = iter(fit_scales(raw[parts[0]], is_measured, options.scaling, options.clip))
        encodings[site] = TableEncoding(
            tuple(ColumnEncoding(kind, tuple(next(scales) for _ in range(kind.width))) for kind in kinds),
            (target.name, *([] if options.group is None else [options.group]), *dropped),
            options.missing_codes,
            options.missing == "mean",
        )
        inputs = encodings[site].scaled(raw)
        targets[site] = [values[torch.from_numpy(part)] for part in parts]
        sites[site] = [inputs[torch.from_numpy(part)] for part in parts]
    meaning = _target_encoding(target, [site_targets[0] for site_targets in targets.values()])
    scaled = (lambda values: values) if target.classes else meaning.scaled
    return (
        {
            site: SiteData(*(TensorExamples(x, scaled(y)) for x, y in zip(sites[site], targets[site], strict=True)))
            for site in sites
        },
        {site: Encoding(encoding, meaning) for site, encoding in encodings.items()},
    )


def _target_encoding(target: Target, train: Sequence[torch.Tensor]) -> TargetEncoding:
    """Numbers get mean 0 and variance 1 over all sites' training rows.

    One scale for all sites makes their losses comparable; a scale near 1 suits the usual learning rates.
    """
    if target.classes:
        return TargetEncoding(target.name, target.classes)
    values = torch.cat(list(train))
    return TargetEncoding(target.name, (), float(values.mean()), float(values.std(correction=0)) or 1.0)


def _target_notes(target: TargetEncoding, options: FolderOptions) -> list[str]:
    if target.classes:
        return [f"kind: {listed_classes(target.classes)}"]
    # A study shows one note for all of its runs.
    scale = "" if options.split == "per_run" else f"to (value - {target.mean:.6g}) / {target.spread:.6g} "
    return [
        f"kind: a number, scaled {scale}with the mean and spread of all training rows; always predicting the mean "
        "gives a loss of 1"
    ]


def _far_notes(encodings: Mapping[str, Encoding]) -> list[str]:
    """Which columns are scaled robustly, and where."""
    sites: dict[str, list[str]] = {}
    for site, encoding in encodings.items():
        assert isinstance(encoding.inputs, TableEncoding)
        for column in encoding.inputs.columns:
            if any(scale.robust for scale in column.scales):
                sites.setdefault(column.kind.name, []).append(site)
    return [
        f"column {name!r} is scaled with its median and robust spread at {', '.join(where)}, and clipped"
        for name, where in sites.items()
    ]


def common_columns(tables: Mapping[str, SiteTable], options: FolderOptions) -> list[str]:
    """The columns in the order of the first site; every site must have the same ones."""
    for difference in column_differences(tables):
        raise DataError(difference)
    names = [str(name) for name in next(iter(tables.values())).frame.columns]
    check_named_columns(tables, names, options)
    return names


def column_differences(tables: Mapping[str, SiteTable]) -> Iterator[str]:
    """Columns that the other sites' tables lack, or have in addition, compared with the first."""
    first = next(iter(tables.values()))
    for table in tables.values():
        for missing in first.frame.columns.difference(table.frame.columns, sort=False):
            yield (
                f"{table.file} has no column {missing!r}, which {first.file} has; add it, or leave it out everywhere "
                "with data.drop_columns"
            )
        for extra in table.frame.columns.difference(first.frame.columns, sort=False):
            yield (
                f"{table.file} has a column {extra!r}, which {first.file} does not have; add it there, or leave it "
                "out everywhere with data.drop_columns"
            )


def check_named_columns(tables: Mapping[str, SiteTable], names: Sequence[str], options: FolderOptions) -> None:
    """Columns that the options name must exist."""
    dropped = set().union(*(table.dropped for table in tables.values()))
    for name in options.drop_columns:
        if name not in dropped:
            raise unknown_column(name, names, "data.drop_columns")
    for name in options.category_columns:
        if name not in names and name not in dropped:
            raise unknown_column(name, names, "data.category_columns")
    if options.group is not None and options.group not in names:
        raise unknown_column(options.group, names, "data.group")
    if options.group_pattern is not None:
        raise ConfigError("data.group_pattern is only for images; for tables, name the column in data.group")


def unknown_column(name: str, names: Sequence[str], where: str) -> ConfigError:
    sentence = one_of(name, names, "column")
    return ConfigError(f"{where}: {sentence if len(sentence) < 1000 else sentence.partition(' allowed:')[0]}")


def target_name(names: Sequence[str], given: str | None, tables: Mapping[str, SiteTable]) -> tuple[str, str]:
    """The target column, and how it was chosen."""
    if given is not None:
        if given not in names:
            raise unknown_column(given, names, "data.target")
        return given, "as given"
    is_npz = next(iter(tables.values())).file.lower().endswith(".npz")
    if is_npz and NPZ_TARGET in names:
        return NPZ_TARGET, "the array y"
    for wanted in TARGET_NAMES:
        for name in names:
            if name.lower() == wanted:
                return name, "inferred from its name; set data.target to change it"
    return names[-1], "inferred as the last column; set data.target to change it"


def _input_notes(columns: Sequence[Column]) -> list[str]:
    parts = []
    for kind, text in (
        ("number", "numeric, standardised with each site's own training rows"),
        ("boolean", "true/false as 1 and 0"),
        ("category", "categories, one input each"),
        ("percent", "percentages, standardised too"),
        ("ratio", "ratios such as 120/80, two inputs each, standardised too"),
        ("time", "times of day, two inputs each on a clock face"),
    ):
        if width := sum(column.kind.width for column in columns if column.kind.kind == kind):
            parts.append(f"{width} {text}")
    return [
        f"inputs: {sum(column.kind.width for column in columns)} ({'; '.join(parts)})",
        *(
            f"column {column.name!r} has a different integer in every row; if it is an identifier, such as a patient "
            "number, leave it out with data.drop_columns"
            for column in columns
            if column.looks_like_identifier
        ),
    ]


def _row_notes(rows: Mapping[str, Flags], missing: MissingPolicy) -> list[str]:
    why = "with missing values" if missing == "drop" else "without a target"
    return [
        f"{site}: {int((~used).sum())} of {len(used)} rows left out, {why}"
        for site, used in rows.items()
        if not used.all()
    ]


def _filled_notes(columns: Sequence[Column], sites: Iterable[str]) -> list[str]:
    gaps = {site: sum(int(column.cells[site].is_missing.sum()) for column in columns) for site in sites}
    return [
        f"{site}: {count} missing values replaced by the means of its training rows"
        for site, count in gaps.items()
        if count
    ]
