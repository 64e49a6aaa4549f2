from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from playerfl.data.readers.idx import read_idx, read_labelled
from playerfl.errors import DataError


def idx(array: np.ndarray) -> bytes:  # type: ignore[type-arg]
    sizes = np.array(array.shape, dtype=">u4").tobytes()
    return bytes([0, 0, 8, array.ndim]) + sizes + array.astype(np.uint8).tobytes()


PICTURES = np.arange(2 * 3 * 4, dtype=np.uint8).reshape(2, 3, 4)


@pytest.mark.parametrize("name", ["pictures", "pictures.gz"])
def test_plain_and_gzipped_files_read_back(tmp_path: Path, name: str) -> None:
    content = idx(PICTURES)
    (tmp_path / name).write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
    assert np.array_equal(read_idx(tmp_path / name), PICTURES)


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b"", "is not an IDX file of bytes: it begins with nothing"),
        (b"\x89PNG....", "is not an IDX file of bytes: it begins with 89504e47"),
        (b"\0\0\x0d\x01\0\0\0\x01", "is not an IDX file of bytes"),
        (b"\0\0\x08\x03\0\0\0\x01", "is truncated in its header"),
        (idx(PICTURES)[:-5], "promises 24 bytes but holds 19"),
        (idx(PICTURES) + b"x", "promises 24 bytes but holds more than 24"),
        (b"\0\0\x08\x03" + b"\xff" * 12, "claims 79,228,162,458,924,105,385,300,197,375 bytes"),
    ],
)
def test_a_file_that_is_not_what_it_says_is_refused_by_name(tmp_path: Path, content: bytes, sentence: str) -> None:
    (tmp_path / "broken").write_bytes(content)
    with pytest.raises(DataError) as caught:
        read_idx(tmp_path / "broken")
    assert str(caught.value).startswith("broken ")
    assert sentence in str(caught.value)


def test_a_truncated_or_foreign_gzip_is_refused_by_name(tmp_path: Path) -> None:
    for content in (gzip.compress(idx(PICTURES))[:-9], b"not gzip at all"):
        (tmp_path / "broken.gz").write_bytes(content)
        with pytest.raises(DataError, match=r"broken\.gz (cannot be read|is not an IDX|is cut off|promises)"):
            read_idx(tmp_path / "broken.gz")


@given(st.binary(max_size=64))
def test_any_bytes_give_an_array_or_a_sentence(content: bytes) -> None:
    import tempfile

    with tempfile.NamedTemporaryFile() as file:
        Path(file.name).write_bytes(content)
        try:
            read_idx(Path(file.name))
        except DataError as problem:
            assert "\n" not in str(problem)


def test_pictures_and_labels_must_belong_together(tmp_path: Path) -> None:
    (tmp_path / "pictures").write_bytes(idx(PICTURES))
    (tmp_path / "labels").write_bytes(idx(np.zeros(3)))
    with pytest.raises(DataError, match="do not match"):
        read_labelled(tmp_path, "pictures", "labels")
    with pytest.raises(DataError, match=r"has no other, plain or with \.gz"):
        read_labelled(tmp_path, "pictures", "other")


def test_a_small_file_that_claims_a_large_array_takes_little_memory(tmp_path: Path) -> None:
    import resource

    (tmp_path / "a.gz").write_bytes(gzip.compress(bytes([0, 0, 8, 1]) + (2**31 - 1).to_bytes(4, "big") + b"x"))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(DataError, match="promises 2,147,483,647 bytes but holds 1"):
        read_idx(tmp_path / "a.gz")
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100_000
