from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pytest

from playerfl.data.readers.cifar import read_cifar10
from playerfl.errors import DataError


def record(label: int, value: int) -> bytes:
    return bytes([label]) + bytes([value]) * 3072


def test_records_of_several_files_in_order(tmp_path: Path) -> None:
    (tmp_path / "a.bin").write_bytes(record(3, 10) + record(9, 20))
    (tmp_path / "b.bin.gz").write_bytes(gzip.compress(record(0, 30)))
    pixels, labels = read_cifar10([tmp_path / "a.bin", tmp_path / "b.bin.gz"])
    assert labels.tolist() == [3, 9, 0]
    assert pixels.shape == (3, 3, 32, 32)
    assert np.unique(pixels[1]).tolist() == [20]


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b"", "holds 0 bytes, not a whole number of CIFAR-10 records"),
        (record(0, 0)[:-1], "holds 3,072 bytes"),
        (record(10, 0), "has the label 10; CIFAR-10 has 0 to 9"),
        (b"\x80\x04\x95pickle", "not a whole number of CIFAR-10 records"),
    ],
)
def test_other_content_is_refused_by_name(tmp_path: Path, content: bytes, sentence: str) -> None:
    (tmp_path / "a.bin").write_bytes(content)
    with pytest.raises(DataError) as caught:
        read_cifar10([tmp_path / "a.bin"])
    assert str(caught.value).startswith("a.bin ")
    assert sentence in str(caught.value)
