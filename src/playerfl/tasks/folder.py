"""A folder with one table or one folder of images per site: your own data without writing Python."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
from pydantic import BeforeValidator, Field
from torch import nn

from playerfl.data.columns import Column, column_of
from playerfl.data.encoding import (
    MissingPolicy,
    Rows,
    Target,
    TargetKind,
    standardised,
    target_of,
    usable_rows,
    with_scaled_targets,
)
from playerfl.data.examples import SiteData, TensorExamples
from playerfl.data.readers import site_tables
from playerfl.data.readers.file_limits import check_array
from playerfl.data.readers.image_folders import listed, pictures_by_class, read_pictures
from playerfl.data.readers.site_tables import NPZ_TARGET, SiteTable, read_site_table
from playerfl.data.schema import ColumnSchema, Schema, categories_fingerprint
from playerfl.data.sites import Sites
from playerfl.errors import ConfigError, DataError, one_of
from playerfl.learning.losses import cross_entropy, squared_error
from playerfl.models.cnn import ConvNet
from playerfl.models.mlp import MLP
from playerfl.tasks.task import METRICS, DataOptions, Task, split_site

TARGET_NAMES = ("target", "label", "class", "outcome", "y")
_DOCUMENTS = (".md", ".txt", ".pdf", ".html", ".docx", ".toml")
_SHOWN_CLASSES = 10

Names = Annotated[tuple[str, ...], BeforeValidator(lambda given: (given,) if isinstance(given, str) else given)]
"""Column names; one name need not be in a list."""


class FolderOptions(DataOptions):
    """How a folder's tables or images are read."""

    target: str | None = None
    """The column to predict. Default: the one called target, label, class, outcome or y, else the last."""
    kind: TargetKind = "auto"
    """Whether the target is a class or a number."""
    missing: MissingPolicy = "refuse"
    """What to do about missing values: refuse the file, drop the row, or use the mean of the site's training rows."""
    drop_columns: Names = ()
    category_columns: Names = ()
    """Columns whose numbers are codes, to be read as categories."""
    image_size: int = Field(32, ge=8, le=512)
    """Images are scaled to this many pixels per side."""


_SHARED: dict[str, Any] = {
    "name": "folder",
    "about": "your own data: one .csv, .parquet or .npz file per site, or one folder of images per site",
    "options": FolderOptions,
    "defaults": {"rounds": 20, "training": {"learning_rate": 1e-3, "batch_size": 32}},
}


def folder_task(path: Path | str) -> Task:
    """The task for a folder: `north.csv`, `south.csv` (or .csv.gz, .parquet, .npz), or `north/CLASS/*.png`."""
    folder = Path(path)
    return Task(
        **_SHARED,
        load_sites=lambda options: _read(folder, options).load_sites(options),
        build_model=lambda options: _read(folder, options).build_model(options),
        adapt=partial(_read, folder),
    )


def _read(folder: Path, options: FolderOptions) -> Task:
    """The task with everything that only the data can tell: sites, sizes, classes or a number."""
    files, folders = _sites_in(folder)
    return _table_task(files, options) if files else _picture_task(folder, folders, options)


def _sites_in(folder: Path) -> tuple[dict[str, Path], dict[str, Path]]:
    """Table files or image folders by site; one of the two is empty."""
    files: dict[str, Path] = {}
    folders: dict[str, Path] = {}
    kinds = set()
    for path in listed(folder):
        name = path.name.lower()
        ending = next((ending for ending in site_tables.ENDINGS if name.endswith(ending)), None)
        if path.is_dir():
            kinds.add("folders")
            folders[path.name] = path
        elif ending is not None:
            kinds.add(ending.removesuffix(".gz"))
            site = path.name[: -len(ending)]
            if site in files:
                raise DataError(
                    f"{folder} has two files for the site {site!r}, {files[site].name} and {path.name}; keep one"
                )
            files[site] = path
        elif not name.endswith(_DOCUMENTS):
            raise DataError(
                f"{folder} has {path.name}, which cannot be read as a site; save it as "
                f"{', '.join(site_tables.ENDINGS)}, or move it elsewhere"
            )
    if len(kinds) > 1:
        raise DataError(
            f"{folder} mixes {' and '.join(sorted(kinds))}; use one format for all sites and move other files away"
        )
    if not kinds:
        raise DataError(
            f"{folder} has no sites; put one file ({', '.join(site_tables.ENDINGS)}) or one folder of images per "
            "site there"
        )
    for site in (*files, *folders):
        if not site.strip() or not site.isprintable():
            raise DataError(f"{folder} has a site called {site!r}; give it a printable name")
    return files, folders


def _table_task(files: Mapping[str, Path], options: FolderOptions) -> Task:
    tables = {
        site: read_site_table(path, options.drop_columns, options.category_columns) for site, path in files.items()
    }
    names = _common_columns(tables, options)
    is_npz = next(iter(files.values())).name.lower().endswith(".npz")
    target_name, why = _target_name(names, options.target, is_npz=is_npz)
    inputs = [name for name in names if name != target_name]
    if not inputs:
        raise DataError(f"{next(iter(tables.values())).file} has no column besides the target {target_name!r}")
    target = target_of(tables, target_name, options.kind)
    columns = [column_of(tables, name, as_text=name in options.category_columns) for name in inputs]
    rows = usable_rows(columns, target, options.missing)
    target = target.filtered(rows)
    columns = [column.filtered(rows) for column in columns]
    split = {site: _split_table(table.file, site, columns, target, options) for site, table in tables.items()}
    is_number = np.concatenate([np.full(column.width, column.kind == "number") for column in columns])
    sites = {site: standardised(data, is_number) for site, data in split.items()}
    notes = [
        f"target: column {target_name!r} ({why})",
        *_input_notes(columns),
        *_row_notes(rows, options.missing),
        *_filled_notes(columns, tables),
    ]
    if target.classes:
        notes.insert(1, f"kind: {_listed_classes(target.classes)}")
    else:
        sites, mean, spread = with_scaled_targets(sites)
        # A study shows one note for all of its runs.
        scale = "" if options.split == "per_run" else f"to (value - {mean:.6g}) / {spread:.6g} "
        notes.insert(
            1,
            f"kind: a number, scaled {scale}with the mean and spread of all training rows; always predicting the mean "
            "gives a loss of 1",
        )
    widths = (len(is_number), 64, 32, len(target.classes) or 1)
    schema = Schema(tuple(_column_schema(column) for column in columns), target_name, target.classes)
    return _task(sites, notes, lambda: MLP(widths), schema, is_number=not target.classes)


def _column_schema(column: Column) -> ColumnSchema:
    categories = categories_fingerprint(column.categories) if column.kind == "category" else ""
    return ColumnSchema(column.name, column.kind, categories)


def _task(
    sites: Mapping[str, SiteData],
    notes: Sequence[str],
    model: Callable[[], nn.Module],
    schema: Schema,
    *,
    is_number: bool = False,
) -> Task:
    alone = ["there is only one site, so nothing is federated"] if len(sites) == 1 else []
    return Task(
        **_SHARED,
        load_sites=lambda _: Sites(sites, [*notes, *alone]),
        build_model=lambda _: model(),
        loss=squared_error if is_number else cross_entropy,
        metrics={} if is_number else METRICS,
        schema=schema,
    )


def _common_columns(tables: Mapping[str, SiteTable], options: FolderOptions) -> list[str]:
    """The columns in the order of the first site; every site must have the same ones."""
    first = next(iter(tables.values()))
    for table in tables.values():
        for missing in first.frame.columns.difference(table.frame.columns, sort=False):
            raise DataError(
                f"{table.file} has no column {missing!r}, which {first.file} has; add it, or leave it out everywhere "
                "with data.drop_columns"
            )
        for extra in table.frame.columns.difference(first.frame.columns, sort=False):
            raise DataError(
                f"{table.file} has a column {extra!r}, which {first.file} does not have; add it there, or leave it "
                "out everywhere with data.drop_columns"
            )
    names = [str(name) for name in first.frame.columns]
    dropped = set().union(*(table.dropped for table in tables.values()))
    for name in options.drop_columns:
        if name not in dropped:
            raise _unknown_column(name, names, "data.drop_columns")
    for name in options.category_columns:
        if name not in names and name not in dropped:
            raise _unknown_column(name, names, "data.category_columns")
    return names


def _unknown_column(name: str, names: Sequence[str], where: str) -> ConfigError:
    sentence = one_of(name, names, "column")
    return ConfigError(f"{where}: {sentence if len(sentence) < 1000 else sentence.partition(' allowed:')[0]}")


def _target_name(names: Sequence[str], given: str | None, *, is_npz: bool) -> tuple[str, str]:
    """The target column, and how it was chosen."""
    if given is not None:
        if given not in names:
            raise _unknown_column(given, names, "data.target")
        return given, "as given"
    if is_npz and NPZ_TARGET in names:
        return NPZ_TARGET, "the array y"
    for wanted in TARGET_NAMES:
        for name in names:
            if name.lower() == wanted:
                return name, "inferred from its name; set data.target to change it"
    return names[-1], "inferred as the last column; set data.target to change it"


def _split_table(file: str, site: str, columns: Sequence[Column], target: Target, options: FolderOptions) -> SiteData:
    rows = len(target.cells[site].numbers)
    check_array(rows, sum(column.width for column in columns), 8, file, "leave out columns or split the site")
    inputs = np.concatenate([column.inputs(site) for column in columns], axis=1)
    examples = TensorExamples(torch.from_numpy(inputs), target.values(site))
    return split_site(examples, options.split_seed, site, shares=options.shares)


def _listed_classes(classes: Sequence[str]) -> str:
    shown = ", ".join(f"{number} = {name}" for number, name in enumerate(classes[:_SHOWN_CLASSES]))
    return f"{len(classes)} classes ({shown}{', …' if len(classes) > _SHOWN_CLASSES else ''})"


def _input_notes(columns: Sequence[Column]) -> list[str]:
    parts = []
    for kind, text in (
        ("number", "numeric, standardised with each site's own training rows"),
        ("boolean", "true/false as 1 and 0"),
        ("category", "categories, one input each"),
    ):
        if width := sum(column.width for column in columns if column.kind == kind):
            parts.append(f"{width} {text}")
    return [
        f"inputs: {sum(column.width for column in columns)} ({'; '.join(parts)})",
        *(
            f"column {column.name!r} has a different integer in every row; if it is an identifier, such as a patient "
            "number, leave it out with data.drop_columns"
            for column in columns
            if column.looks_like_identifier
        ),
    ]


def _row_notes(rows: Mapping[str, Rows], missing: MissingPolicy) -> list[str]:
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


def _picture_task(folder: Path, folders: Mapping[str, Path], options: FolderOptions) -> Task:
    for name in ("target", "kind", "missing", "drop_columns", "category_columns"):
        if getattr(options, name) != FolderOptions.model_fields[name].default:
            raise ConfigError(f"data.{name} is only for tables, but {folder} has images; leave it out")
    files = {site: pictures_by_class(path) for site, path in folders.items()}
    classes = sorted({name for by_class in files.values() for name, pictures in by_class.items() if pictures})
    if len(classes) < 2:
        raise DataError(f"{folder} has only images of {classes[0]!r}; at least two classes are needed, one folder each")
    side = options.image_size
    sites = {}
    for site, by_class in files.items():
        check_array(sum(map(len, by_class.values())), 3 * side * side, 4, site, "use a smaller data.image_size")
        pixels, labels = read_pictures(by_class, classes, side)
        inputs = torch.from_numpy(pixels).float().div_(127.5).sub_(1)
        examples = TensorExamples(inputs, torch.from_numpy(labels))
        sites[site] = split_site(examples, options.split_seed, site, shares=options.shares)
    notes = [
        "target: the name of an image's folder",
        f"kind: {_listed_classes(classes)}",
        f"inputs: 3 x {side} x {side} (colours from -1 to 1, scaled to {side} pixels per side)",
    ]
    schema = Schema((ColumnSchema("image", f"{side} x {side} pixels"),), "folder", tuple(classes))
    return _task(
        sites, notes, lambda: ConvNet(3, (16, 32, 64), hidden=32, classes=len(classes), pool_after=(1, 2)), schema
    )
