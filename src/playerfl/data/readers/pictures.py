"""Images from files and archives that may not be what they claim to be."""

from __future__ import annotations

import io
import warnings
import zipfile
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from playerfl.data.readers.file_limits import ARCHIVE_ERRORS, check_file
from playerfl.errors import DataError

_LARGEST_FILE = 2**25
_MOST_PIXELS = 50_000_000
_OPAQUE = 255
_LATEST_CHUNK = 2_000
"""Bytes in which the chunk that names a transparent colour comes, after the palette."""
# The EXIF tag that says how to rotate an image.
_ORIENTATION = 0x0112


def pillow() -> ModuleType:
    try:
        from PIL import Image
    except ImportError as problem:
        raise DataError("reading images needs Pillow; pip install 'playerfl[image]'") from problem
    return Image


def read_picture(content: bytes, name: str, side: int | None = None) -> NDArray[np.uint8]:
    """An RGB image as (3, height, width), its centre square scaled to `side` if one is given."""
    image = pillow()
    colours = _decoded(content, name, image)
    if _is_deep(colours):
        colours = image.fromarray((_deep_pixels(colours) // 257).astype(np.uint8)).convert("RGB")
    if side is not None and colours.size != (side, side):
        edge = min(colours.size)
        left, top = (colours.width - edge) // 2, (colours.height - edge) // 2
        colours = colours.crop((left, top, left + edge, top + edge)).resize((side, side), image.Resampling.BILINEAR)
    return np.asarray(colours, dtype=np.uint8).transpose(2, 0, 1)


def read_square_picture(content: bytes, name: str, side: int) -> NDArray[np.uint8] | NDArray[np.uint16]:
    """The whole image scaled to (3, side, side); of 16-bit images, the 16 bits."""
    image = pillow()
    picture = _decoded(content, name, image)
    if _is_deep(picture):
        grey = image.fromarray(_deep_pixels(picture).astype(np.float32)).resize((side, side), image.Resampling.BILINEAR)
        return np.repeat(np.asarray(grey).round().clip(0, 65535).astype(np.uint16)[None], 3, axis=0)
    scaled = picture.resize((side, side), image.Resampling.BILINEAR)
    return np.asarray(scaled, dtype=np.uint8).transpose(2, 0, 1)


def _decoded(content: bytes, name: str, image: Any) -> Any:
    """An image in colours, or as it is if it has 16 bits per pixel; upright.

    The size is read from the header and checked before a pixel is decoded.
    """
    try:
        with warnings.catch_warnings():
            # Pillow only warns up to twice its own limit; ours is checked below.
            warnings.simplefilter("ignore", image.DecompressionBombWarning)
            # Pillow's decoders for other formats are less well tested.
            opened = image.open(io.BytesIO(content), formats=("JPEG", "PNG"))
        with opened as picture:
            if picture.width * picture.height > _MOST_PIXELS:
                raise DataError(
                    f"{name} claims {picture.width} x {picture.height} pixels; the limit is {_MOST_PIXELS:,}"
                )
            return _in_colours(_upright(picture))
    except DataError:
        raise
    except image.DecompressionBombError as problem:
        raise DataError(f"{name} claims far more than the limit of {_MOST_PIXELS:,} pixels") from problem
    except Exception as problem:
        # What a decoder raises on a crafted file is undocumented.
        reason = str(problem).partition("<")[0].strip()
        raise DataError(f"{name} is not a readable PNG or JPEG image: {reason or 'damaged'}") from problem


def _upright(picture: Any) -> Any:
    """Cameras store the pixels as the sensor saw them, and separately how to rotate them."""
    from PIL import ImageOps

    return picture if picture.getexif().get(_ORIENTATION, 1) == 1 else ImageOps.exif_transpose(picture)


def _in_colours(picture: Any) -> Any:
    if _is_deep(picture):
        picture.load()
        return picture
    if "transparency" in picture.info:
        picture = picture.convert("RGBA")
    return picture.convert("RGB")


def is_transparent(content: bytes) -> bool:
    """Whether a readable PNG image has pixels that are transparent; the colours behind them are read all the same."""
    # Only the colour types 4 and 6 have an alpha channel; others may name a transparent colour.
    if content[:4] != b"\x89PNG" or not (content[25] in (4, 6) or b"tRNS" in content[:_LATEST_CHUNK]):
        return False
    with pillow().open(io.BytesIO(content), formats=("PNG",)) as picture:
        return bool(picture.convert("RGBA").getextrema()[3][0] < _OPAQUE)


def _is_deep(picture: Any) -> bool:
    """Whether it has 16 bits per pixel: a plain conversion would clip all but the darkest pixels to white."""
    return bool(picture.mode.startswith("I"))


def _deep_pixels(picture: Any) -> NDArray[Any]:
    return np.asarray(picture).clip(0, 65535)


def pictures_in_zip(path: Path) -> Iterator[tuple[str, bytes]]:
    """The name (without folder and suffix) and content of every image in an archive."""
    try:
        with zipfile.ZipFile(path) as archive:
            for entry in archive.infolist():
                if entry.is_dir() or not entry.filename.lower().endswith((".jpg", ".jpeg", ".png")):
                    continue
                if entry.file_size > _LARGEST_FILE:
                    raise DataError(
                        f"{entry.filename} in {path.name} has {entry.file_size:,} bytes, too many for an image"
                    )
                with archive.open(entry) as file:
                    # The archive's directory may lie about the size, so the read is limited too.
                    content = file.read(_LARGEST_FILE + 1)
                if len(content) > _LARGEST_FILE:
                    raise DataError(
                        f"{entry.filename} in {path.name} is larger than the archive says; download it again"
                    )
                yield Path(entry.filename).stem, content
    except ARCHIVE_ERRORS as problem:
        raise DataError(f"{path.name} cannot be read as a zip archive: {problem}; download it again") from problem


def read_picture_file(path: Path, name: str, largest: int = _LARGEST_FILE) -> bytes:
    """The bytes of an image file, after checking its size."""
    check_file(path, name, largest)
    try:
        return path.read_bytes()
    except OSError as problem:
        raise DataError(f"cannot read {name}: {problem.strerror or problem}") from problem
