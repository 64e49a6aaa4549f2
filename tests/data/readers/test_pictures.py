from __future__ import annotations

import io
import zipfile
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from playerfl.data.readers.pictures import pictures_in_zip, read_picture
from playerfl.errors import DataError


def png(width: int, height: int) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(np.full((height, width, 3), 200, dtype=np.uint8)).save(buffer, "PNG")
    return buffer.getvalue()


def test_a_picture_is_cropped_to_its_centre_and_scaled() -> None:
    pixels = read_picture(png(40, 30), "a", side=16)
    assert pixels.shape == (3, 16, 16)
    assert np.unique(pixels).tolist() == [200]
    assert read_picture(png(40, 30), "a").shape == (3, 30, 40)


@pytest.mark.parametrize("content", [b"", b"text", png(8, 8)[:40]])
def test_files_that_are_not_pictures_are_named(content: bytes) -> None:
    with pytest.raises(DataError, match=r"odd\.jpg is not a readable PNG or JPEG image"):
        read_picture(content, "odd.jpg")


def test_only_pictures_are_taken_from_an_archive_and_by_name_alone(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        archive.writestr("../../etc/one.jpg", b"1")
        archive.writestr("folder/two.PNG", b"2")
        archive.writestr("notes.txt", b"3")
    assert dict(pictures_in_zip(tmp_path / "a.zip")) == {"one": b"1", "two": b"2"}
    assert [path.name for path in tmp_path.rglob("*")] == ["a.zip"]


def test_an_archive_that_unpacks_to_too_much_is_refused(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "a.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("one.jpg", b"\0" * (2**25 + 1))
    with pytest.raises(DataError, match=r"one\.jpg in a\.zip has 33,554,433 bytes"):
        list(pictures_in_zip(tmp_path / "a.zip"))


def test_a_damaged_archive_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.zip").write_bytes(b"PK\x03\x04 nothing else")
    with pytest.raises(DataError, match=r"a\.zip cannot be read as a zip archive"):
        list(pictures_in_zip(tmp_path / "a.zip"))


@pytest.mark.slow
def test_an_archive_whose_directory_lies_is_refused(tmp_path: Path) -> None:
    """Every byte is changed in turn, because the errors that zipfile raises are undocumented."""
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a.png", b"x" * 50)
    content = packed.getvalue()
    for place in range(len(content)):
        for value in (0, 9, 255):
            (tmp_path / "a.zip").write_bytes(content[:place] + bytes([value]) + content[place + 1 :])
            try:
                list(pictures_in_zip(tmp_path / "a.zip"))
            except DataError as problem:
                assert "a.zip" in str(problem)
