"""Fed-ISIC 2019: dermoscopic images from several hospitals, 4 kinds of lesion."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field
from torch import nn

from playerfl.data.download.sources import folder_of
from playerfl.data.examples import SiteData, TensorExamples
from playerfl.data.partition import partition_by_id
from playerfl.data.readers.csv_tables import read_rows
from playerfl.data.readers.hub_tables import hub_rows, hub_table
from playerfl.data.readers.pictures import pictures_in_zip, read_picture, read_picture_file
from playerfl.data.readers.remembered import remembered
from playerfl.data.sites import PartGroups, Sites
from playerfl.errors import DataError
from playerfl.models.cnn import ConvNet
from playerfl.tasks.bundled.focal import FocalOptions, with_focal_loss
from playerfl.tasks.bundled.images import normalised
from playerfl.tasks.task import Task, split_positions

Pixels = NDArray[np.uint8]
CLASSES = ("bcc", "bkl", "mel", "nv")
_MEAN, _STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
# FLamby's numbers for the diagnoses.
_FLAMBY_TARGETS = {"0": "mel", "1": "nv", "2": "bcc", "4": "bkl"}


class IsicOptions(FocalOptions):
    """The four most frequent kinds of lesion, at most 5,000 images per hospital."""

    side: int = Field(64, ge=16, le=512)
    """Images are scaled to this many pixels per side (the paper crops 200)."""
    most_per_site: int = Field(5000, ge=3)
    """Maximum number of images used per hospital."""


@dataclass(frozen=True)
class Lesion:
    """One image: which lesion it shows, of what kind, and which hospital took it."""

    picture: str
    lesion: str
    kind: str
    hospital: str


def read_labels(path: Path) -> list[Lesion]:
    """Images of the four kinds, from the table of HAM10000 or of FLamby's Fed-ISIC 2019."""
    flamby = path.name.startswith("train_test_split")
    columns = ("image", "target", "center") if flamby else ("image_id", "lesion_id", "dx", "dataset")
    rows = (_flamby(row) if flamby else _ham(row) for row in read_rows(path, columns))
    return [row for row in rows if row.kind in CLASSES]


def _ham(row: Mapping[str, str]) -> Lesion:
    return Lesion(row["image_id"], row["lesion_id"], row["dx"], row["dataset"])


def _flamby(row: Mapping[str, str]) -> Lesion:
    kind = _FLAMBY_TARGETS.get(row["target"].removesuffix(".0"), "another")
    return Lesion(row["image"], row["image"], kind, f"centre-{row['center']}")


def _read(folder: Path, side: int) -> tuple[list[Lesion], dict[str, Pixels]]:
    table = hub_table(folder)
    if table and not any(folder.glob("*.csv")):
        lesions, pictures = _from_hub(table, side)
    else:
        lesions = read_labels(_labels_in(folder))
        pictures = _pictures(folder, {lesion.picture for lesion in lesions}, side)
    if not lesions:
        raise DataError(f"{folder.name} has no image of {', '.join(CLASSES)}")
    return lesions, pictures


_read_once = remembered(1)(_read)


def load_sites(options: IsicOptions) -> Sites:
    folder = folder_of("isic2019")
    # Unpacking the images takes a minute; with one split for all runs, remembering them would only take memory.
    lesions, pictures = (_read_once if options.split == "per_run" else _read)(folder, options.side)
    by_hospital = partition_by_id([lesion.hospital for lesion in lesions])
    hospitals = list(by_hospital)[:4]
    notes = [f"images scaled to {options.side} x {options.side}; the paper crops 200 of 224"]
    if "vidir_molemax" in hospitals:
        notes.append("HAM10000: 4 of the 6 centres of Fed-ISIC 2019")
    elif len(by_hospital) > len(hospitals):
        notes.append(f"the first {len(hospitals)} of {len(by_hospital)} centres, as in the authors' code")
    if all(lesion.lesion == lesion.picture for lesion in lesions):
        notes.append("the table does not say which images show the same lesion, so they may be in different parts")
    read = {name: _site(name, [lesions[i] for i in by_hospital[name]], pictures, options) for name in hospitals}
    return Sites(
        {name: site for name, (site, _) in read.items()}, notes, groups={name: g for name, (_, g) in read.items()}
    )


def _labels_in(folder: Path) -> Path:
    """FLamby's split file if there is one, else the first table."""
    tables = sorted(folder.glob("*.csv"))
    if not tables:
        raise DataError(f"{folder.name} has no table of labels (.csv)")
    return next((table for table in tables if table.name.startswith("train_test_split")), tables[0])


def _from_hub(table: Path, side: int) -> tuple[list[Lesion], dict[str, Pixels]]:
    """Fed-ISIC 2019 from the hub, which does not say which images show the same lesion."""
    lesions, pictures = [], {}
    for number, row in enumerate(hub_rows(table, ("image", "center", "label"))):
        kind = _FLAMBY_TARGETS.get(str(row["label"]), "another")
        if kind in CLASSES:
            name = f"row-{number}"
            lesions.append(Lesion(name, name, kind, f"centre-{row['center']}"))
            pictures[name] = read_picture((row["image"] or {}).get("bytes") or b"", f"{table.name}, {name}", side)
    return lesions, pictures


def _pictures(folder: Path, wanted: set[str], side: int) -> dict[str, Pixels]:
    archives = sorted(folder.glob("*.zip"))
    pictures = {}
    for archive in archives:
        for name, content in pictures_in_zip(archive):
            if name in wanted:
                pictures[name] = read_picture(content, name, side)
    if not archives:
        for file in sorted(folder.rglob("*.jp*g")):
            if file.stem in wanted:
                pictures[file.stem] = read_picture(read_picture_file(file, file.name), file.name, side)
    if missing := wanted - pictures.keys():
        raise DataError(f"{folder.name} lacks {len(missing)} of {len(wanted)} images, among them {min(missing)}")
    return pictures


def _site(
    hospital: str, lesions: list[Lesion], pictures: Mapping[str, Pixels], options: IsicOptions
) -> tuple[SiteData, PartGroups]:
    first = lesions[: options.most_per_site]
    targets = np.array([CLASSES.index(lesion.kind) for lesion in first], dtype=np.int64)
    images = normalised(torch.from_numpy(np.stack([pictures[lesion.picture] for lesion in first])), _MEAN, _STD)
    examples = TensorExamples(images, torch.from_numpy(targets))
    groups = np.unique([lesion.lesion for lesion in first], return_inverse=True)[1]
    parts = split_positions(examples.targets, options.split_seed, hospital, groups, shares=options.shares)
    site = SiteData(*(examples.rows(torch.from_numpy(part)) for part in parts))
    return site, PartGroups(*(groups[part] for part in parts))


def build_model(options: IsicOptions) -> nn.Module:
    widths = [options.width(width) for width in (32, 64, 128, 256, 512)]
    model = ConvNet(3, widths, options.width(256), 4, pool_after=(3, 4, 5), dropout={3: 0.2, 4: 0.2, 5: 0.2})
    return options.initialised(model)


TASK = with_focal_loss(
    Task(
        name="isic2019",
        about="dermoscopic images from 4 hospitals, 4 kinds of lesion, 5 convolutions + 2 linear layers",
        load_sites=load_sites,
        build_model=build_model,
        options=IsicOptions,
        defaults={"training": {"batch_size": 32}},
        paper="ISIC",
    )
)
