"""Folders of three small hospitals with one fault each, and what the data check says about them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from playerfl.data.check.result import DataCheck
from playerfl.tasks.check import check_task
from playerfl.tasks.folder import FolderOptions, folder_task

ROWS = 120
Frames = dict[str, pd.DataFrame]


def patients(seed: int, rows: int = ROWS) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    age, pressure = rng.normal(60, 12, rows).round(), rng.normal(130, 15, rows).round()
    risk = (age - 60) / 12 + (pressure - 130) / 15 + rng.normal(0, 1, rows)
    return pd.DataFrame(
        {
            "age": age,
            "pressure": pressure,
            "glucose": rng.normal(5.5, 1, rows).round(1),
            "ward": rng.choice(["heart", "lung", "gut"], rows),
            "outcome": np.where(risk > 0, "yes", "no"),
        }
    )


def frames() -> Frames:
    return {site: patients(seed) for seed, site in enumerate(("north", "south", "west"))}


def checked(folder: Path, **options: Any) -> DataCheck:
    found = check_task(folder_task(folder), FolderOptions(**options))
    json.dumps(found.as_dict(), allow_nan=False)
    assert not [finding for finding in found.findings if "could not be checked" in finding.text]
    return found


def problems(found: DataCheck) -> list[tuple[str, str]]:
    return [(finding.severity, finding.topic) for finding in found.sorted_findings if finding.severity != "note"]


def change(make: Callable[[Frames], object]) -> Frames:
    sites = frames()
    make(sites)
    return sites


def with_column(name: str, make: Callable[[pd.DataFrame], Any]) -> Callable[[Frames], None]:
    def change_all(sites: Frames) -> None:
        for site, frame in sites.items():
            sites[site] = frame.assign(**{name: make(frame)})[[name, *frame.columns]]

    return change_all


def at(site: str, column: str, rows: Any, value: Any) -> Callable[[Frames], None]:
    def change_one(sites: Frames) -> None:
        sites[site][column] = sites[site][column].astype(object)
        sites[site].loc[rows, column] = value

    return change_one
