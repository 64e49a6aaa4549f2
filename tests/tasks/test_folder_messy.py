"""Files as people export them: nothing is wrong in silence, and nothing ends in a traceback."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from messy_folders import ROWS, Frames, checked, frames, problems
from own_data import csv, load, sentence_of


def written(folder: Path, sites: Frames, **form: object) -> Path:
    for site, frame in sites.items():
        frame.to_csv(folder / f"{site}.csv", index=False, **form)  # type: ignore[call-overload]
    return folder


def with_totals(folder: Path) -> None:
    for site, frame in frames().items():
        frame.loc[ROWS] = [frame["age"].sum(), frame["pressure"].sum(), frame["glucose"].sum(), "gut", "no"]
        frame.to_csv(folder / f"{site}.csv", index=False)


def with_postcodes(folder: Path) -> None:
    codes = np.random.default_rng(0).choice(["01067", "01099", "04109", "12345"], ROWS)
    csv(folder, **{site: frame.assign(area=codes)[["area", *frame.columns]] for site, frame in frames().items()})


def with_words(folder: Path) -> None:
    words = {"north": ("False", "True"), "south": ("F", "T"), "west": ("falsch", "wahr")}
    smokes = np.random.default_rng(0).random(ROWS) < 0.4
    for site, frame in frames().items():
        frame.insert(0, "smoker", np.where(smokes, words[site][1], words[site][0]))
        frame.to_csv(folder / f"{site}.csv", index=False)


def two_names(folder: Path) -> None:
    sites = frames()
    csv(folder, north=sites["north"], **{"North ": sites["south"]})


def repeated(folder: Path) -> None:
    csv(folder, **{site: pd.concat([frame[:24]] * 5) for site, frame in frames().items()})


WARNED: dict[str, tuple[Callable[[Path], object], list[tuple[str, str | None]]]] = {
    "a row of totals": (with_totals, [("north.csv, row 122 is the sum of the rows above it in 'age'", None)]),
    "leading zeros": (
        with_postcodes,
        [("'area' has leading zeros, such as 0", "data.category_columns=area")],
    ),
    "true and false in words": (
        with_words,
        [
            ("'T' (south", 'data.recode="smoker: T=True"'),
            ("'F' (south", 'data.recode="smoker: F=False"'),
            ("west has falsch and wahr", 'data.recode="west/smoker: falsch=False, wahr=True"'),
        ],
    ),
    "two sites of one name": (two_names, [("'North ' and 'north' are two sites", None)]),
    "a few rows again and again": (
        repeated,
        [("rows that repeat an earlier one (north 96 of 120", "data.group=COLUMN")],
    ),
}


@pytest.mark.parametrize("kind", WARNED)
def test_odd_files_are_named(tmp_path: Path, kind: str) -> None:
    make, expected = WARNED[kind]
    make(tmp_path)
    found = checked(tmp_path)
    assert found.having("stop") == []
    for text, setting in expected:
        matching = [f for f in found.having("warning") if text in f.text]
        assert matching, [f.text for f in found.having("warning")]
        assert matching[0].setting == setting


def test_words_for_true_and_false_are_made_alike(tmp_path: Path) -> None:
    with_words(tmp_path)
    rules = ["smoker: T=True, F=False", "west/smoker: falsch=False, wahr=True"]
    assert problems(checked(tmp_path, recode=rules)) == []
    assert load(tmp_path, recode=rules).encodings["west"].inputs.input_names[0] == "smoker"


def with_costs(folder: Path) -> None:
    for site, frame in frames().items():
        frame.insert(0, "cost", [f"{n:,}" for n in np.random.default_rng(1).integers(1000, 2_000_000, ROWS)])
        frame.to_csv(folder / f"{site}.csv", index=False)


def for_excel(folder: Path) -> None:
    csv(folder, **frames())
    file = folder / "south.csv"
    file.write_text("sep=,\n" + file.read_text())


def without_outcome(folder: Path) -> None:
    sites = frames()
    sites["south"]["outcome"] = np.nan
    csv(folder, **sites)


def other_headings(folder: Path) -> None:
    sites = frames()
    sites["south"] = sites["south"].rename(columns={"age": "Age", "ward": "WARD"})
    csv(folder, **sites)


REFUSED: dict[str, tuple[Callable[[Path], object], str]] = {
    "thousands": (with_costs, "is a number with a comma; write thousands without a comma ("),
    "decimal commas": (
        lambda folder: written(folder, frames(), sep=";", decimal=","),
        "write decimals with a point (1.5)",
    ),
    "a line for Excel": (for_excel, "south.csv starts with the line 'sep=,', which is for Excel; remove it"),
    "a site without outcomes": (without_outcome, "south.csv has no value in the target column 'outcome'"),
    "headings": (other_headings, "south.csv has a column 'Age' where north.csv has 'age'; write the name alike"),
    "UTF-16": (lambda folder: written(folder, frames(), encoding="utf-16"), "is not UTF-8 text"),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_the_check_and_the_run_refuse_in_the_same_words(tmp_path: Path, kind: str) -> None:
    make, sentence = REFUSED[kind]
    make(tmp_path)
    assert sentence in sentence_of(tmp_path, missing="mean")
    stops = checked(tmp_path, missing="mean").having("stop")
    assert any(sentence in stop.text for stop in stops)
    # None of these is a reason to give a column up.
    assert not any("drop_columns" in (stop.setting or "") for stop in stops)


@pytest.mark.parametrize("separator", [";", "\t", "|"])
def test_other_separators_are_read(tmp_path: Path, separator: str) -> None:
    assert problems(checked(written(tmp_path, frames(), sep=separator))) == []
