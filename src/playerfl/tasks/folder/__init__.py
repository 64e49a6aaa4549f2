"""A folder with one table or one folder of images per site: your own data without writing Python."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

from playerfl.data.encoding.encoding import Encoding, PictureEncoding
from playerfl.data.schema import ColumnSchema, Schema, categories_fingerprint
from playerfl.learning.losses import cross_entropy, squared_error
from playerfl.learning.metrics.catalogue import FOR_NUMBERS
from playerfl.learning.metrics.numbers import TargetScale
from playerfl.learning.metrics.scoring import UNSCALED
from playerfl.tasks.folder.check import check_folder
from playerfl.tasks.folder.listing import sites_in
from playerfl.tasks.folder.options import FolderOptions
from playerfl.tasks.folder.pictures import read_picture_sites
from playerfl.tasks.folder.tables import read_table_sites
from playerfl.tasks.task import METRICS, Task

__all__ = ["FolderOptions", "folder_task"]

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
        check=partial(check_folder, folder),
    )


def _read(folder: Path, options: FolderOptions) -> Task:
    """The task with everything that depends on the data: sites, sizes, classes or a number."""
    files, folders = sites_in(folder, options)
    data = read_table_sites(files, options) if files else read_picture_sites(folder, folders, options)
    if len(data.sites) == 1:
        data.sites.notes += ("there is only one site, so nothing is federated",)
    encoding = next(iter(data.sites.encodings.values()))
    target = encoding.target
    return Task(
        **_SHARED,
        load_sites=lambda _: data.sites,
        build_model=lambda _: data.build_model(),
        loss=cross_entropy if target.classes else squared_error,
        metrics=METRICS if target.classes else FOR_NUMBERS,
        scale=UNSCALED if target.classes else TargetScale(target.mean, target.spread),
        classes=target.classes,
        schema=_schema(encoding),
    )


def _schema(encoding: Encoding) -> Schema:
    """What other sites must have too: the columns or the size of images, and the classes."""
    inputs, target = encoding.inputs, encoding.target
    if isinstance(inputs, PictureEncoding):
        return Schema((ColumnSchema("image", f"{inputs.side} x {inputs.side} pixels"),), "folder", target.classes)
    kinds = [column.kind for column in inputs.columns]
    columns = tuple(
        ColumnSchema(kind.name, kind.kind, categories_fingerprint(kind.categories) if kind.kind == "category" else "")
        for kind in kinds
    )
    return Schema(columns, target.name, target.classes)
