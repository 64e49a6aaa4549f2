from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from data.readers.test_pictures import png
from playerfl.data.readers.hub_tables import hub_pictures, hub_rows, hub_table
from playerfl.errors import DataError
from playerfl.tasks.bundled import fashion_mnist, sent140

pyarrow = pytest.importorskip("pyarrow", reason="parquet tables need pyarrow")


def write(path: Path, **columns: list[object]) -> Path:
    from pyarrow import parquet

    parquet.write_table(pyarrow.table(columns), path)
    return path


def pictures(count: int) -> list[object]:
    return [{"bytes": png(28, 28), "path": None} for _ in range(count)]


def test_pictures_and_labels_of_the_first_rows(tmp_path: Path) -> None:
    table = write(tmp_path / "train.parquet", image=pictures(5), label=[3, 1, 4, 1, 5])
    pixels, labels = hub_pictures(table, "image", "label", 10, 28, 3)
    assert pixels.shape == (3, 3, 28, 28)
    assert labels.tolist() == [3, 1, 4]
    assert np.unique(pixels).tolist() == [200]


def test_columns_labels_and_files_that_do_not_fit_are_named(tmp_path: Path) -> None:
    table = write(tmp_path / "train.parquet", image=pictures(1), label=[11])
    with pytest.raises(DataError, match="no image with a label below 10 in row 0"):
        hub_pictures(table, "image", "label", 10, 28, 3)
    with pytest.raises(DataError, match="lacks the columns img"):
        list(hub_rows(table, ("img", "label")))
    table.write_bytes(b"PAR1 not really")
    with pytest.raises(DataError, match=r"train\.parquet cannot be read as parquet"):
        list(hub_rows(table, ("image",)))


def test_tasks_read_the_hubs_copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert hub_table(tmp_path) is None
    write(tmp_path / "train.parquet", image=pictures(60), label=[i % 10 for i in range(60)])
    monkeypatch.setattr(fashion_mnist, "folder_of", lambda _: tmp_path)
    options = fashion_mnist.FashionMnistOptions(sites=2, rows_per_site=30, min_size=10)
    sites = fashion_mnist.load_sites(options)
    assert sum(len(part) for site in sites.values() for part in site.__dict__.values()) == 60

    write(tmp_path / "train.parquet", sentiment=[0, 4, 2, 4], user=["a", "a", "b", "c"], text=["x", "y", "z", "w"])
    assert [tuple(tweet) for tweet in sent140.read_tweets(tmp_path / "train.parquet")] == [
        ("a", "x", 0), ("a", "y", 1), ("c", "w", 1),
    ]  # fmt: skip
