"""Folders of pictures: what is read, and what is refused before it is decoded."""

from __future__ import annotations

import struct
import sys
import zlib
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import playerfl
from own_data import load, sentence_of, whole
from playerfl.data.readers import file_limits
from playerfl.data.readers.image_folders import read_picture_files


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    """Dark cats and light dogs at two sites, in several sizes and modes."""
    rng = np.random.default_rng(0)
    for site in ("north", "south"):
        for kind, low in (("cat", 0), ("dog", 128)):
            place = tmp_path / site / kind
            place.mkdir(parents=True)
            for i in range(30):
                pixels = rng.integers(low, low + 120, (9 + i, 12, 3), dtype=np.uint8)
                Image.fromarray(pixels).save(place / f"{i}.{'png' if i % 2 else 'jpg'}")
    return tmp_path


def test_pictures_become_squares_of_colours(pictures: Path) -> None:
    (pictures / "north" / "cat" / ".hidden").write_text("x")
    (pictures / "north" / "cat" / "Thumbs.db").write_text("x")
    sites = load(pictures, image_size=16)
    inputs = whole(sites["north"])
    assert inputs.shape == (60, 3, 16, 16)
    assert -1 <= inputs.min() < 0 < inputs.max() <= 1
    dark = inputs.mean((1, 2, 3)) < 0
    assert torch.equal(dark, whole(sites["north"], "targets") == 0)
    assert sites.notes == (
        "target: the name of an image's folder",
        "kind: 2 classes (0 = cat, 1 = dog)",
        "inputs: 3 x 16 x 16 (colours from -1 to 1, scaled to 16 pixels per side)",
    )


def test_pictures_train(pictures: Path) -> None:
    result = playerfl.run(str(pictures), "fedavg", rounds=2, settings={"data.image_size": 8})
    assert result.sites == ["north", "south"]


@pytest.mark.parametrize("mode", ["L", "RGBA", "P", "1", "I;16", "LA"])
def test_pictures_of_other_modes_are_read(tmp_path: Path, mode: str) -> None:
    file = tmp_path / "1.png"
    if mode == "I;16":
        Image.fromarray(np.full((9, 9), 65535 // 2, dtype=np.uint16)).save(file)
    else:
        grey = Image.fromarray(np.full((9, 9, 3), 128, dtype=np.uint8)).convert(mode)
        if mode == "P":
            grey.info["transparency"] = b"\0\1"
        grey.save(file)
    pictures = read_picture_files([file], 8)
    assert pictures.is_deep.tolist() == [mode == "I;16"]
    assert mode == "1" or abs(int(pictures.pixels.mean()) - (65535 // 2 if mode == "I;16" else 128)) <= 2


def png_claiming(width: int, height: int) -> bytes:
    """A PNG of a few bytes whose header claims this size."""

    def chunk(kind: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(b"")) + chunk(b"IEND", b"")


@pytest.mark.parametrize(
    ("name", "content", "sentence"),
    [
        ("a.png", png_claiming(60_000, 60_000), "north/cat/a.png claims far more than the limit of 50,000,000 pixels"),
        ("a.png", png_claiming(8_000, 8_000), "north/cat/a.png claims 8000 x 8000 pixels; the limit is 50,000,000"),
        ("a.png", png_claiming(12_000, 12_000), "north/cat/a.png claims 12000 x 12000 pixels"),
        ("a.png", png_claiming(20, 20), "north/cat/a.png is not a readable PNG or JPEG image: image file"),
        ("a.png", b"text", "north/cat/a.png is not a readable PNG or JPEG image: cannot identify"),
        ("a.jpg", b"", "north/cat/a.jpg is empty"),
        ("a.jpg", b"GIF89a\x01\0\x01\0\0\0\0;", "north/cat/a.jpg is not a readable PNG or JPEG image"),
        ("a.txt", b"text", "north/cat/a.txt is not a .png or .jpg image; move it out of the folder"),
    ],
)
def test_bombs_and_files_that_are_not_pictures_are_refused_by_name(
    pictures: Path, name: str, content: bytes, sentence: str
) -> None:
    (pictures / "north" / "cat" / name).write_bytes(content)
    assert sentence in sentence_of(pictures)


def test_picture_folders_with_another_layout_are_refused(pictures: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (pictures / "east").mkdir()
    assert "east has no images; put them into one folder per class, such as east/CLASS" in sentence_of(pictures)
    (pictures / "east" / "cat.png").write_bytes(b"x")
    assert "east/cat.png is not in a class folder" in sentence_of(pictures)
    (pictures / "east" / "cat.png").unlink()
    (pictures / "east").rmdir()
    assert "data.target is only for tables, but" in sentence_of(pictures, target="cat")
    with monkeypatch.context() as patched:
        patched.setattr(file_limits, "LARGEST_ARRAY", 1000)
        assert "north would become 60 rows of 3,072 inputs" in sentence_of(pictures)
    with monkeypatch.context() as patched:
        patched.setitem(sys.modules, "PIL", None)
        assert "needs Pillow; pip install 'playerfl[image]'" in sentence_of(pictures)
    for site in ("north", "south"):
        for file in (pictures / site / "dog").iterdir():
            file.unlink()
    assert "has only images of 'cat'; at least two classes are needed" in sentence_of(pictures)
