"""One site's images: one folder per class, with the images in it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from playerfl.data.readers.pictures import read_picture_file, read_square_picture
from playerfl.errors import DataError

ENDINGS = (".png", ".jpg", ".jpeg")
_LARGEST_PICTURE = 2**28
# Hidden files, Excel's lock files, and what file managers leave behind.
_HIDDEN = (".", "~$")
_LITTER = {"thumbs.db", "desktop.ini", "__macosx", "ehthumbs.db", "icon\r"}


def listed(folder: Path) -> list[Path]:
    """The contents of a folder sorted by name, without hidden files and litter."""
    try:
        return sorted(
            (
                path
                for path in folder.iterdir()
                if not path.name.startswith(_HIDDEN) and path.name.lower() not in _LITTER
            ),
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
            if file.is_dir():
                raise DataError(f"{_name(file)} is a folder; put images directly into the folder of their class")
            if not file.name.lower().endswith(ENDINGS) or not file.is_file():
                raise DataError(f"{_name(file)} is not a .png or .jpg image; {_converted(file)}")
    if not any(pictures.values()):
        raise DataError(f"{site.name} has no images; put them into one folder per class, such as {site.name}/CLASS")
    return pictures


@dataclass(frozen=True)
class Pictures:
    """Squares of the same size."""

    pixels: NDArray[np.uint8] | NDArray[np.uint16]
    """(images, 3, side, side), as in the files."""
    is_deep: NDArray[np.bool_]
    """Which of them have 16 bits per pixel."""

    def rows(self, positions: NDArray[np.int64]) -> Pictures:
        return Pictures(self.pixels[positions], self.is_deep[positions])


def read_picture_files(files: Sequence[Path], side: int) -> Pictures:
    """Images scaled to squares."""
    pixels: NDArray[Any] = np.empty((len(files), 3, side, side), dtype=np.uint8)
    is_deep = np.zeros(len(files), dtype=bool)
    for position, file in enumerate(files):
        content = read_picture_file(file, _name(file), _LARGEST_PICTURE)
        square = read_square_picture(content, _name(file), side)
        is_deep[position] = square.dtype != np.uint8
        # Most folders hold no 16-bit image and need half the memory.
        if is_deep[position] and pixels.dtype == np.uint8:
            pixels = pixels.astype(np.uint16)
        pixels[position] = square
    return Pictures(pixels, is_deep)


def _converted(file: Path) -> str:
    if file.name.lower().endswith((".tif", ".tiff")):
        return "convert TIFF images to .png, which keeps 8 or 16 bits; save each page as a file of its own"
    return "move it out of the folder, or convert it"


def _name(file: Path) -> str:
    """Site, class and file: the part of the path that a user recognises."""
    return "/".join(file.parts[-3:])
