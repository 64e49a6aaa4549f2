"""The data check on values: missing ones that tell the target, units, dates, rare classes, copies."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from messy_folders import ROWS, Frames, at, change, checked, frames, problems, with_column
from own_data import csv, load, whole
from playerfl.learning.metrics.numbers import TargetScale
from playerfl.tasks.folder import FolderOptions, folder_task


def only_for(outcome: str, share: float) -> Callable[[pd.DataFrame], Any]:
    """A measurement that only some rows of one outcome have."""

    def values(frame: pd.DataFrame) -> Any:
        rng = np.random.default_rng(3)
        return np.where(
            (frame["outcome"] == outcome) & (rng.random(ROWS) < share), rng.normal(size=ROWS).round(1), np.nan
        )

    return values


@pytest.mark.parametrize("share", [1.0, 0.6])
def test_a_value_that_is_there_only_for_one_outcome_is_a_leak(tmp_path: Path, share: float) -> None:
    found = checked(csv(tmp_path, **change(with_column("biopsy", only_for("yes", share)))), missing="mean")
    assert problems(found) == [("warning", "leak")]
    said = found.having("warning")[0]
    assert "whether 'biopsy' is missing reveals 'outcome' at north, south and west" in said.text
    assert said.setting == "data.drop_columns=biopsy"


def test_missing_values_tell_a_number_too_and_others_tell_nothing(tmp_path: Path) -> None:
    sites = change(with_column("late", lambda f: np.where(f["pressure"] > 135, 1.5, np.nan)))
    for frame in sites.values():
        frame.loc[::4, "glucose"] = np.nan
    found = checked(csv(tmp_path, **sites), missing="mean", target="pressure", drop_columns="outcome")
    leaks = [f.column for f in found.having("warning") if f.topic == "leak"]
    assert leaks == ["late"]


def measured(**by_site: tuple[float, float]) -> Frames:
    """A column with this mean and spread at each site."""
    rng = np.random.default_rng(0)
    whole = {"north": frames()["north"], "south": frames()["south"], "west": frames()["west"], "east": frames()["west"]}
    return {
        site: whole[site].assign(
            lab=rng.normal(*law, ROWS).round(1), age=whole[site]["age"] + rng.integers(0, 9, ROWS)
        )[["lab", *whole[site].columns]]
        for site, law in by_site.items()
    }


UNITS: dict[str, tuple[Frames, tuple[str, ...]]] = {
    "mmol/l, g/dl": (measured(north=(8.5, 1.0), south=(13.9, 1.6), west=(8.6, 1.0)), ("south",)),
    "kg, lb": (measured(north=(75, 14), south=(77, 14), west=(168, 31)), ("west",)),
    "C, F": (measured(north=(98.6, 0.9), south=(37, 0.5), west=(98.4, 0.9)), ("south",)),
    "two and two": (measured(north=(75, 14), south=(165, 31), west=(74, 14), east=(168, 31)), ("north", "west")),
    "two sites": (measured(north=(8.5, 1.0), south=(13.9, 1.6)), ("south",)),
    "older patients": (measured(north=(55, 12), south=(72, 12), west=(60, 12)), ()),
    "many more": (measured(north=(5, 2), south=(9, 3), west=(6, 2)), ()),
}


@pytest.mark.parametrize("unit", UNITS)
def test_other_units_are_told_by_values_that_hardly_overlap(tmp_path: Path, unit: str) -> None:
    sites, odd = UNITS[unit]
    found = [f for f in checked(csv(tmp_path, **sites)).having("warning") if f.topic == "units"]
    assert tuple(sorted(site for f in found for site in f.sites)) == odd
    assert len(found) == (1 if odd else 0)


DATES: dict[str, tuple[str, Callable[[pd.Series[Any]], Any], str]] = {
    "digits": ("admitted", lambda day: day.dt.strftime("%Y%m%d").astype(int), "warning"),
    "ISO": ("admitted", lambda day: day.dt.strftime("%Y-%m-%d"), "stop"),
    "year and month": ("admitted", lambda day: day.dt.strftime("%Y-%m"), "stop"),
    "ISO without dashes": ("admitted", lambda day: day.dt.strftime("%Y%m%dT%H%M%S"), "stop"),
    "month in letters": ("admitted", lambda day: day.dt.strftime("%d-%b-%Y"), "stop"),
    "seconds": ("visit_time", lambda day: day.map(pd.Timestamp.timestamp).astype(int), "warning"),
    "a spreadsheet's days": ("visit_date", lambda day: (day - pd.Timestamp("1899-12-30")).dt.days, "warning"),
}


@pytest.mark.parametrize("form", DATES)
def test_dates_are_noticed_in_every_form(tmp_path: Path, form: str) -> None:
    name, written, severity = DATES[form]
    days = pd.Series(pd.Timestamp("2023-05-01") + pd.to_timedelta(np.arange(ROWS) * 37 % 400, "D"))
    found = checked(csv(tmp_path, **change(with_column(name, lambda _: np.asarray(written(days))))))
    said = [f for f in found.findings if (f.column == name and "date" in f.text) or "time stamp" in f.text]
    assert [(f.severity, f.setting) for f in said] == [(severity, f"data.drop_columns={name}")]


def test_a_class_with_two_rows_at_each_site_is_rare(tmp_path: Path) -> None:
    def few(sites: Frames) -> None:
        for frame in sites.values():
            frame.loc[[3, 50], "outcome"] = "dead"

    found = checked(csv(tmp_path, **change(few)))
    assert problems(found) == [("warning", "labels")]
    assert (
        "'dead' (north 2, south 2, west 2): fewer than 3 rows of a class at a site" in found.having("warning")[0].text
    )


def test_copies_within_a_group_are_fine_and_others_are_not(tmp_path: Path) -> None:
    sites = frames()
    sites["south"] = pd.concat([sites["south"], sites["south"][:20]], ignore_index=True)
    patient = [*range(ROWS), *range(20)]
    sites = {site: frame.assign(patient=patient[: len(frame)]) for site, frame in sites.items()}
    assert problems(checked(csv(tmp_path, **sites), group="patient", target="outcome")) == []
    sites["south"]["patient"] = range(len(sites["south"]))
    found = checked(csv(tmp_path, **sites), group="patient", target="outcome")
    assert problems(found) == [("warning", "duplicates")]
    assert "repeat one of another group (south 20 of 140)" in found.having("warning")[0].text
    assert found.having("warning")[0].setting is None


def test_near_duplicates_in_other_groups_are_named(tmp_path: Path) -> None:
    def visits(seed: int) -> pd.DataFrame:
        rng = np.random.default_rng(seed)
        values = np.repeat(rng.normal(size=(50, 6)), 3, axis=0) + rng.normal(0, 0.02, (150, 6))
        subject = np.repeat(np.arange(50), 3)
        return pd.DataFrame(values, columns=list("abcdef")).assign(visit=range(150), subject=subject, y=subject % 2)

    folder = csv(tmp_path, north=visits(1), south=visits(2))
    wrong = checked(folder, group="visit", drop_columns="subject")
    assert "near-duplicate in another group (north 100%, south 100%)" in wrong.having("warning")[0].text
    assert problems(checked(folder, group="subject", drop_columns="visit")) == []


def test_rows_of_a_few_coarse_columns_are_not_called_copies(tmp_path: Path) -> None:
    found = checked(csv(tmp_path, **frames()), drop_columns=["age"])
    assert [f for f in found.findings if f.topic == "duplicates"] == []


def costs(seed: int) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    age = rng.normal(60, 12, ROWS).round(1)
    return pd.DataFrame({"age": age, "cost": (age * 10 + rng.normal(0, 5, ROWS)).round(2)})


def test_a_heavy_tailed_number_is_learnt_robustly_and_scored_as_it_is(tmp_path: Path) -> None:
    sites = {"north": costs(1), "south": costs(2)}
    sites["north"].loc[::7, "cost"] = 1e12
    options = FolderOptions(target="cost")
    task = folder_task(csv(tmp_path, **sites)).for_options(options)
    data = task.load_sites(options)
    north = data["north"]
    assert isinstance(task.scale, TargetScale)
    assert 500 < task.scale.mean < 700
    assert task.scale.spread < 300
    assert float(north.train.targets.abs().max()) == float(north.validation.targets.abs().max()) == 30
    assert float(task.scale.restored(north.test.targets).max()) == pytest.approx(1e12, rel=1e-6)
    assert any("robust spread of all training rows; training and validation clip it at 30" in n for n in data.notes)
    assert data.encodings["south"].target.robust
    unclipped = load(tmp_path, target="cost", clip=0)["north"]
    assert float(unclipped.train.targets.max()) > 1e9
    standard = load(tmp_path, target="cost", scaling="standard")["north"]
    assert float(whole(standard, "targets").abs().max()) < 10


def test_a_site_in_other_units_is_not_clipped(tmp_path: Path) -> None:
    sites = load(csv(tmp_path, north=costs(1), south=costs(2), west=costs(3).assign(cost=costs(3)["cost"] * 100)))
    assert not sites.encodings["west"].target.robust


def test_an_ordinary_number_is_scaled_as_before(tmp_path: Path) -> None:
    sites = load(csv(tmp_path, north=costs(1), south=costs(2)), target="cost")
    targets = torch.cat([site.train.targets for site in sites.values()])
    assert float(targets.mean()) == pytest.approx(0, abs=1e-6)
    assert float(targets.std(correction=0)) == pytest.approx(1, abs=1e-6)


def test_codes_among_few_numbers_are_codes(tmp_path: Path) -> None:
    sites = change(with_column("sex", lambda frame: np.arange(ROWS) % 7 % 2))
    at("west", "sex", [3, 8, 60], 9)(sites)
    found = checked(csv(tmp_path, **sites))
    assert [f.setting for f in found.having("warning")] == ['data.missing_codes="sex=9" data.missing=mean']
    sites = change(with_column("grade", lambda frame: np.arange(ROWS) % 4))
    at("west", "grade", [3, 8, 60], 99)(sites)
    found = checked(csv(tmp_path, **sites))
    assert [f.setting for f in found.having("warning")] == ['data.missing_codes="grade=99" data.missing=mean']
