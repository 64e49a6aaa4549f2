"""The sites of a folder of tables: what each column is, how the sites are split, and how rows become inputs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path

import numpy as np
import torch

from playerfl.data.check.texts.spelling import normal_form
from playerfl.data.encoding.cells import Flags, cells_of
from playerfl.data.encoding.columns import ColumnAtSites, column_of
from playerfl.data.encoding.encoding import ColumnEncoding, Encoding, TableEncoding, TargetEncoding, raw_inputs
from playerfl.data.encoding.rules import pairs_in, split_code
from playerfl.data.encoding.scaling import Scaling, fit_scales, robust_spread, share_far
from playerfl.data.encoding.target import MissingPolicy, Target, target_of, usable_rows
from playerfl.data.examples import SiteData, TensorExamples
from playerfl.data.readers.file_limits import check_array
from playerfl.data.readers.site_tables import NPZ_TARGET, SiteTable, read_site_table
from playerfl.data.readers.stray_rows import refuse_stray_rows
from playerfl.data.sites import Sites
from playerfl.errors import ConfigError, DataError, one_of
from playerfl.models.mlp import MLP
from playerfl.tasks.folder.groups import group_notes, names_in, split_sites
from playerfl.tasks.folder.options import FolderData, FolderOptions, listed_classes
from playerfl.tasks.task import Parts

_MOST_FAR = 0.1
TARGET_NAMES = ("target", "label", "class", "outcome", "y")


def read_table_sites(files: Mapping[str, Path], options: FolderOptions) -> FolderData:
    """Reads one table per site; every column must have the same kind at all sites."""
    tables = {site: read_table(path, options) for site, path in files.items()}
    names = common_columns(tables, options)
    chosen, why = target_name(names, options.target, tables)
    inputs = input_names(names, chosen, options, tables)
    rules = options.rules
    target = target_of(tables, chosen, options.kind, rules)
    columns = [column_of(tables, name, as_text=name in options.category_columns, rules=rules) for name in inputs]
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


def input_names(
    names: Sequence[str], target: str, options: FolderOptions, tables: Mapping[str, SiteTable]
) -> list[str]:
    """The columns that are neither the target nor the group; there must be one."""
    if options.group == target:
        raise ConfigError(f"data.group and the target are the same column, {target!r}; name another one")
    inputs = [name for name in names if name not in (target, options.group)]
    if not inputs:
        file = next(iter(tables.values())).file
        raise DataError(
            f"{file} has no column besides the target {target!r} (separators: comma, semicolon, tab, vertical bar)"
        )
    return inputs


def read_table(path: Path, options: FolderOptions) -> SiteTable:
    table = read_site_table(path, options.drop_columns, options.category_columns, options.group)
    explained = {split_code(code)[1] for code in options.missing_codes}
    explained |= {old for rule in options.recode for old, _ in pairs_in(rule.partition(":")[2])}
    refuse_stray_rows(table.file, table.frame, explained, (*options.category_columns, options.group or ""))
    return table


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
    columns: Sequence[ColumnAtSites],
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
            options.rules.at(site).recode,
        )
        inputs = encodings[site].scaled(raw)
        targets[site] = [values[torch.from_numpy(part)] for part in parts]
        sites[site] = [inputs[torch.from_numpy(part)] for part in parts]
    meaning = _target_encoding(target, [site_targets[0] for site_targets in targets.values()], options.scaling)
    return (
        {
            site: SiteData(*map(TensorExamples, sites[site], _learnt(targets[site], meaning, options.clip)))
            for site in sites
        },
        {site: Encoding(encoding, meaning) for site, encoding in encodings.items()},
    )


def _learnt(parts: Sequence[torch.Tensor], meaning: TargetEncoding, clip: float) -> list[torch.Tensor]:
    """A site's targets as the model learns them.

    A single target of 1e12 would decide every step and which round is best, so training and validation clip a
    heavy-tailed one. Test does not: scores are of the targets as they are.
    """
    if meaning.classes:
        return list(parts)
    train, validation, test = map(meaning.scaled, parts)
    if not meaning.robust or clip == 0:
        return [train, validation, test]
    return [train.clamp(-clip, clip), validation.clamp(-clip, clip), test]


def _target_encoding(target: Target, train: Sequence[torch.Tensor], scaling: Scaling) -> TargetEncoding:
    """Numbers get mean 0 and variance 1 over all sites' training rows; heavy-tailed ones are scaled robustly.

    One scale for all sites makes their losses comparable; a scale near 1 suits the usual learning rates.
    """
    if target.classes:
        return TargetEncoding(target.name, target.classes)
    values = torch.cat(list(train))
    # If many are far away, as at a site with other units, clipping them would hide what is to be learnt.
    far = share_far(values.numpy())
    if scaling == "robust" or (scaling == "auto" and 0 < far <= _MOST_FAR):
        median, spread = robust_spread(values.numpy())
        return TargetEncoding(target.name, (), median, spread or 1.0, robust=True)
    return TargetEncoding(target.name, (), float(values.mean()), float(values.std(correction=0)) or 1.0)


def _target_notes(target: TargetEncoding, options: FolderOptions) -> list[str]:
    if target.classes:
        return [f"kind: {listed_classes(target.classes)}"]
    # A study shows one note for all of its runs.
    scale = "" if options.split == "per_run" else f"to (value - {target.mean:.6g}) / {target.spread:.6g} "
    if not target.robust:
        return [
            f"kind: a number, scaled {scale}with the mean and spread of all training rows; always predicting the mean "
            "gives a loss of 1"
        ]
    clipped = (
        "" if options.clip == 0 else f"; training and validation clip it at {options.clip:g} spreads, test does not"
    )
    return [f"kind: a number, scaled {scale}with the median and robust spread of all training rows{clipped}"]


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
    """Columns that a table lacks, or has in addition, compared with the first one of those that most agree with."""
    same = Counter(frozenset(table.frame.columns) for table in tables.values())
    first = max(tables.values(), key=lambda table: same[frozenset(table.frame.columns)])
    for site, table in tables.items():
        if len(tables) > 2 and not set(table.frame.columns) & set(first.frame.columns):
            yield (
                f"{table.file} has none of the columns of {first.file}; if it is not a site, move it elsewhere or set "
                f"data.skip_sites={site}"
            )
            continue
        lacking = [str(name) for name in first.frame.columns.difference(table.frame.columns, sort=False)]
        further = [str(name) for name in table.frame.columns.difference(first.frame.columns, sort=False)]
        for missing in lacking:
            alike = next((name for name in further if normal_form(name) == normal_form(missing)), None)
            if alike is not None:
                further.remove(alike)
                yield (
                    f"{table.file} has a column {alike!r} where {first.file} has {missing!r}; use the same case, "
                    "accents and spaces"
                )
                continue
            yield (
                f"{table.file} has no column {missing!r}, which {first.file} has; add it, or leave it out everywhere "
                "with data.drop_columns"
            )
        for extra in further:
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
    for code in options.missing_codes:
        column = split_code(code)[0]
        if column is not None and column not in names and column not in dropped:
            raise unknown_column(column, names, "data.missing_codes")
    for rule in options.recode:
        if not any(rule.startswith(f"{name}:") or f"/{name}:" in rule for name in (*names, *dropped)):
            raise unknown_column(rule.partition(":")[0].rpartition("/")[2], names, "data.recode")
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


def _input_notes(columns: Sequence[ColumnAtSites]) -> list[str]:
    parts = []
    numeric, flags = "numeric, standardised with each site's own training rows", "true/false as 1 and 0"
    for kind, singular, text in (
        ("number", numeric, numeric),
        ("boolean", flags, flags),
        ("category", "category, one input", "categories, one input each"),
        ("percent", "percentage, standardised too", "percentages, standardised too"),
        (
            "ratio",
            "ratio such as 120/80, two inputs, standardised too",
            "ratios such as 120/80, two inputs each, standardised too",
        ),
        ("time", "time of day, two inputs on a clock face", "times of day, two inputs each on a clock face"),
    ):
        chosen = [column.kind for column in columns if column.kind.kind == kind]
        if chosen:
            # Of a category, its inputs are counted: each is a category; of other kinds, the columns.
            count = sum(of_kind.width for of_kind in chosen) if kind == "category" else len(chosen)
            parts.append(f"{count} {singular if count == 1 else text}")
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


def _filled_notes(columns: Sequence[ColumnAtSites], sites: Iterable[str]) -> list[str]:
    gaps = {site: sum(int(column.cells[site].is_missing.sum()) for column in columns) for site in sites}
    return [
        f"{site}: {count} missing values replaced by the means of its training rows"
        for site, count in gaps.items()
        if count
    ]
