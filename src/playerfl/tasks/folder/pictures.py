"""The sites of a folder of images: one folder per class at every site."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path

import numpy as np
import torch

from playerfl.data.encoding.encoding import Encoding, PictureEncoding, TargetEncoding
from playerfl.data.examples import SiteData, TensorExamples
from playerfl.data.readers.file_limits import check_array
from playerfl.data.readers.image_folders import pictures_by_class, read_picture_files
from playerfl.data.sites import Sites
from playerfl.errors import ConfigError, DataError
from playerfl.models.cnn import ConvNet
from playerfl.tasks.folder.options import FolderData, FolderOptions, listed_classes
from playerfl.tasks.task import split_positions

_FOR_TABLES = ("target", "kind", "missing", "missing_codes", "drop_columns", "category_columns", "scaling", "clip")


def read_picture_sites(folder: Path, folders: Mapping[str, Path], options: FolderOptions) -> FolderData:
    """Reads one folder of images per site and class."""
    for name in _FOR_TABLES:
        if getattr(options, name) != FolderOptions.model_fields[name].default:
            raise ConfigError(f"data.{name} is only for tables, but {folder} has images; leave it out")
    files = {site: pictures_by_class(path) for site, path in folders.items()}
    classes = sorted({name for by_class in files.values() for name, pictures in by_class.items() if pictures})
    if len(classes) < 2:
        raise DataError(f"{folder} has only images of {classes[0]!r}; at least two classes are needed, one folder each")
    side = options.image_size
    target = TargetEncoding("class", tuple(classes))
    sites, encodings, deep = {}, {}, []
    for site, by_class in files.items():
        check_array(sum(map(len, by_class.values())), 3 * side * side, 4, site, "use a smaller data.image_size")
        labels = np.concatenate([np.full(len(by_class.get(name, ())), i) for i, name in enumerate(classes)])
        pictures = read_picture_files([file for name in classes for file in by_class.get(name, ())], side)
        targets = torch.from_numpy(labels.astype(np.int64))
        parts = split_positions(targets, options.split_seed, site, shares=options.shares)
        encoding = PictureEncoding.fitted(side, pictures.rows(parts[0]))
        examples = TensorExamples(encoding.scaled(pictures), targets)
        sites[site] = SiteData(*(examples.rows(torch.from_numpy(part)) for part in parts))
        encodings[site] = Encoding(encoding, target)
        if pictures.is_deep.any():
            deep.append(f"{site} {encoding.low:g} to {encoding.high:g}")
    notes = [
        "target: the name of an image's folder",
        f"kind: {listed_classes(classes)}",
        f"inputs: 3 x {side} x {side} (colours from -1 to 1, scaled to {side} pixels per side)",
    ]
    if deep:
        notes.append(f"16-bit images, scaled by the range of each site's training images: {', '.join(deep)}")
    model = partial(ConvNet, 3, (16, 32, 64), hidden=32, classes=len(classes), pool_after=(1, 2))
    return FolderData(Sites(sites, notes, encodings), model)
