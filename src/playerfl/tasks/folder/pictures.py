"""The sites of a folder of images: one folder per class at every site."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path

import torch

from playerfl.data.encoding.encoding import Encoding, PictureEncoding, TargetEncoding
from playerfl.data.examples import SiteData, TensorExamples
from playerfl.data.readers.file_limits import check_array
from playerfl.data.readers.image_folders import pictures_by_class, read_picture_files
from playerfl.data.sites import Sites
from playerfl.errors import ConfigError, DataError
from playerfl.models.cnn import ConvNet
from playerfl.tasks.folder.groups import group_notes, groups_of_pictures, split_sites
from playerfl.tasks.folder.options import FolderData, FolderOptions, listed_classes

_FOR_TABLES = (
    "target",
    "kind",
    "missing",
    "missing_codes",
    "recode",
    "drop_columns",
    "category_columns",
    "scaling",
    "clip",
)


def read_picture_sites(folder: Path, folders: Mapping[str, Path], options: FolderOptions) -> FolderData:
    """Reads one folder of images per site and class."""
    check_picture_options(folder, options)
    files = {site: pictures_by_class(path) for site, path in folders.items()}
    classes = sorted({name for by_class in files.values() for name, pictures in by_class.items() if pictures})
    if len(classes) < 2:
        raise DataError(f"{folder} has only images of {classes[0]!r}; at least two classes are needed, one folder each")
    side = options.image_size
    target = TargetEncoding("class", tuple(classes))
    listed = {site: [file for name in classes for file in by_class.get(name, ())] for site, by_class in files.items()}
    targets = {
        site: torch.tensor([number for number, name in enumerate(classes) for _ in by_class.get(name, ())])
        for site, by_class in files.items()
    }
    groups = groups_of_pictures(folder, listed, options)
    split, part_groups = split_sites(targets, groups, options)
    sites, encodings, deep = {}, {}, []
    for site, paths in listed.items():
        check_array(len(paths), 3 * side * side, 4, site, "use a smaller data.image_size")
        pictures = read_picture_files(paths, side)
        encoding = PictureEncoding.fitted(side, pictures.rows(split[site][0]))
        examples = TensorExamples(encoding.scaled(pictures), targets[site])
        sites[site] = SiteData(*(examples.rows(torch.from_numpy(part)) for part in split[site]))
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
    notes += group_notes(groups, options.group or "from file names")
    model = partial(ConvNet, 3, (16, 32, 64), hidden=32, classes=len(classes), pool_after=(1, 2))
    return FolderData(Sites(sites, notes, encodings, part_groups), model)


def check_picture_options(folder: Path, options: FolderOptions) -> None:
    """Refuses settings that mean nothing for images."""
    for name in _FOR_TABLES:
        if getattr(options, name) != FolderOptions.model_fields[name].default:
            raise ConfigError(f"data.{name} is only for tables, but {folder} has images; leave it out")
