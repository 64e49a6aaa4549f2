"""Tables of small hospitals for tests of folders: written, changed in one place, and read back."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from playerfl.data.examples import SiteData
from playerfl.errors import PlayerflError
from playerfl.tasks.folder import FolderOptions, folder_task

HEAD = "age,dose,ward,smoker,outcome\n"
ROWS = 60


def table(rows: int = ROWS, seed: int = 0) -> pd.DataFrame:
    """Two measurements, a category, a boolean, and an outcome that depends on the first column."""
    rng = np.random.default_rng(seed)
    age = rng.normal(60, 12, rows).round(1)
    return pd.DataFrame(
        {
            "age": age,
            "dose": rng.integers(1, 5, rows),
            "ward": rng.choice(["heart", "lung"], rows),
            "smoker": rng.random(rows) < 0.5,
            "outcome": np.where(age > 60, "ill", "well"),
        }
    )


def csv(folder: Path, **sites: pd.DataFrame) -> Path:
    for site, frame in sites.items():
        frame.to_csv(folder / f"{site}.csv", index=False)
    return folder


def hospitals(place: Path) -> Path:
    """A folder with two sites."""
    place.mkdir()
    return csv(place, north=table(seed=1), south=table(seed=2))


def load(folder: Path, **options: Any) -> Any:
    chosen = FolderOptions(**options)
    return folder_task(folder).for_options(chosen).load_sites(chosen)


def sentence_of(folder: Path, **options: Any) -> str:
    with pytest.raises(PlayerflError) as caught:
        load(folder, **options)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def whole(site: SiteData, what: str = "inputs") -> torch.Tensor:
    return torch.cat([getattr(part, what) for part in (site.train, site.validation, site.test)])


def replaced(folder: Path, before: str, after: str, site: str = "south") -> Path:
    """Changes a site's file in one place."""
    file = folder / f"{site}.csv"
    text = file.read_text()
    assert before in text
    file.write_text(text.replace(before, after, 1))
    return folder


def set_cell(folder: Path, column: str, value: str | float | None, row: int = 3, site: str = "south") -> Path:
    """Writes into a spreadsheet row, where row 1 has the headings."""
    frame = pd.read_csv(folder / f"{site}.csv", dtype=object)
    frame.loc[row - 2, column] = value
    frame.to_csv(folder / f"{site}.csv", index=False)
    return folder


def as_gzip(folder: Path) -> None:
    for file in list(folder.glob("*.csv")):
        file.with_name(f"{file.name}.gz").write_bytes(gzip.compress(file.read_bytes()))
        file.unlink()


def as_parquet(folder: Path) -> None:
    pytest.importorskip("pyarrow", reason="parquet files need pyarrow")
    for file in list(folder.glob("*.csv")):
        frame = pd.read_csv(file)
        frame["ward"] = frame["ward"].astype("category")
        frame.index = frame.index[::-1]
        frame.to_parquet(file.with_suffix(".parquet"))
        file.unlink()


def as_it_is(folder: Path) -> None:
    (folder / "README.md").write_text("Notes are not a site.")
    (folder / ".DS_Store").write_bytes(b"Not a site either.")
