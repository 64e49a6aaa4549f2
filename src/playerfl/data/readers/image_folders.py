"""One site's images: one folder per class, with the images in it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from playerfl.data.readers.pictures import pillow, read_picture, read_picture_file
from playerfl.errors import DataError

ENDINGS = (".png", ".jpg", ".jpeg")
_LARGEST_PICTURE = 2**28
# What file managers leave behind; hidden files are ignored too.
_LITTER = {"thumbs.db", "desktop.ini"}


def listed(folder: Path) -> list[Path]:
    """The contents of a folder sorted by name, without hidden files and litter."""
    try:
        return sorted(
            (path for path in folder.iterdir() if not path.name.startswith(".") and path.name.lower() not in _LITTER),
            key=lambda path: path.name,
        )
    except OSError as problem:
        raise DataError(f"cannot read the folder {folder}: {problem.strerror or problem}") from problem


def pictures_by_class(site: Path) -> dict[str, list[Path]]:
    """The image files of every class; refuses files that are not named like images."""
    pictures = {}
    for folder in listed(site):
        if not folder.is_dir():
            raise DataError(
                f"{site.name}/{folder.name} is not in a class folder; put images into one folder per class, "
                f"such as {site.name}/CLASS/{folder.name}"
            )
        pictures[folder.name] = listed(folder)
        for file in pictures[folder.name]:
            if not file.name.lower().endswith(ENDINGS) or not file.is_file():
                raise DataError(f"{_name(file)} is not a .png or .jpg image; move it out of the folder, or convert it")
    if not any(pictures.values()):
        raise DataError(f"{site.name} has no images; put them into one folder per class, such as {site.name}/CLASS")
    return pictures


def read_pictures(
    files: Mapping[str, Sequence[Path]], classes: Sequence[str], side: int
) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """(images, 3, side, side) and class numbers."""
    image = pillow()
    labels = [(file, number) for number, name in enumerate(classes) for file in files.get(name, ())]
    pixels = np.empty((len(labels), 3, side, side), dtype=np.uint8)
    for position, (file, _) in enumerate(labels):
        content = read_picture_file(file, _name(file), _LARGEST_PICTURE)
        whole = read_picture(content, _name(file)).transpose(1, 2, 0)
        scaled = image.fromarray(np.ascontiguousarray(whole)).resize((side, side), image.Resampling.BILINEAR)
        pixels[position] = np.asarray(scaled).transpose(2, 0, 1)
    return pixels, np.array([number for _, number in labels], dtype=np.int64)


def _name(file: Path) -> str:
    """Site, class and file: the part of the path that a user recognises."""
    return "/".join(file.parts[-3:])
