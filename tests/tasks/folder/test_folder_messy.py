"""Files as people export them: nothing is wrong in silence, and nothing ends in a traceback."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from messy_folders import ROWS, Frames, checked, frames, patients, problems
from own_data import csv, load, sentence_of
from playerfl.cli.tables.data_check import in_shell
from playerfl.runs.settings_table import with_settings


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


def rewritten(folder: Path, change: Callable[[str], str]) -> None:
    for file in csv(folder, **frames()).glob("*.csv"):
        file.write_text(change(file.read_text()))


def in_folders(folder: Path) -> None:
    for site, frame in frames().items():
        (folder / site).mkdir()
        frame.to_csv(folder / site / "data.csv", index=False)


REFUSED: dict[str, tuple[Callable[[Path], object], str]] = {
    "thousands": (with_costs, "is a number with a comma; write thousands without a comma ("),
    "decimal commas": (
        lambda folder: written(folder, frames(), sep=";", decimal=","),
        "write decimals with a point (1.5)",
    ),
    "a line for Excel": (for_excel, "south.csv starts with the line 'sep=,', which is for Excel; remove it"),
    "a site without outcomes": (without_outcome, "south.csv has no value in the target column 'outcome'"),
    "headings": (other_headings, "south.csv has a column 'Age' where north.csv has 'age'; use the same case"),
    "UTF-16": (lambda folder: written(folder, frames(), encoding="utf-16"), "is not UTF-8 text"),
    "a title": (
        lambda folder: rewritten(folder, lambda text: f"Admissions of 2024\n\n{text}"),
        "north.csv seems to have its column names in row 3 ('age', 'pressure', 'glucose', …); remove the rows above it",
    ),
    "a title with commas, above semicolons": (
        lambda folder: rewritten(folder, lambda text: f"North, from 2024\n{text.replace(',', ';')}"),
        "its column names in row 2 ('age'",
    ),
    "a merged heading": (
        lambda folder: rewritten(folder, lambda text: f"Patient,,Values,,\n{text}"),
        "its column names in row 2 ('age'",
    ),
    "a row of units": (
        lambda folder: rewritten(folder, lambda text: text.replace("\n", "\nyears,mmHg,mmol/l,,\n", 1)),
        "north.csv, row 2: 'years', 'mmHg', 'mmol/l' where the rows below have numbers, as a row of units has",
    ),
    "two exports in one file": (
        lambda folder: rewritten(folder, lambda text: text + text),
        f"north.csv, row {ROWS + 2} repeats the column names; remove it",
    ),
    "a note at the end": (
        lambda folder: rewritten(folder, lambda text: f"{text}\nExported by Ward 3\n"),
        f"north.csv, row {ROWS + 3}: 'Exported by Ward 3' and little else, as a note or a total below the table has",
    ),
    "a total at the end": (
        lambda folder: rewritten(folder, lambda text: f"{text}Total,15600,,,\n"),
        f"north.csv, row {ROWS + 2}: 'Total' and little else",
    ),
    "columns without a name at the right": (
        lambda folder: rewritten(folder, lambda text: text.replace("\n", ",,\n")),
        "north.csv has no name for column 6; remove the empty columns at the right",
    ),
    "an Excel workbook": (
        lambda folder: (folder / "north.csv").write_bytes(b"PK\x03\x04\x14\0\x06\0"),
        "north.csv is an Excel workbook or a zip archive; save the table as CSV in UTF-8",
    ),
    "a web page": (
        lambda folder: (folder / "north.csv").write_text("<!DOCTYPE html>\n<html>a,b</html>\n"),
        "north.csv is a web page or XML; export CSV",
    ),
    "folders with a table each": (
        in_folders,
        "north/data.csv is a table in a folder of its own; put one table per site into ",
    ),
    "a text file": (
        lambda folder: patients(0).to_csv(folder / "n.txt", index=False),
        "has no sites (n.txt is not read); put one file",
    ),
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


def test_a_row_of_codes_for_unknown_is_no_row_of_units(tmp_path: Path) -> None:
    rewritten(tmp_path, lambda text: text.replace("\n", "\nnot done,not done,not done,gut,no\n", 1))
    assert "as a row of units has" in sentence_of(tmp_path)
    load(tmp_path, missing_codes="not done", missing="mean")


def test_a_heading_may_have_a_line_break(tmp_path: Path) -> None:
    sites = {site: frame.rename(columns={"pressure": "pressure\n(mmHg)"}) for site, frame in frames().items()}
    found = checked(written(tmp_path, sites))
    assert problems(found) == []
    assert "pressure (mmHg)" in [column.name for column in found.columns]


def test_what_the_commands_write_is_not_a_site(tmp_path: Path) -> None:
    """A folder is often checked and trained from within, where figures and runs are written."""
    csv(tmp_path, **frames())
    (tmp_path / "hospitals-check.png").write_bytes(b"")
    (tmp_path / "runs" / "first").mkdir(parents=True)
    (tmp_path / "runs" / "first" / "experiment.toml").write_text("")
    for name in ("README", "north.csv~", "__MACOSX", "notes.doc"):
        (tmp_path / name).touch()
    assert problems(checked(tmp_path)) == []


def test_suggestions_work_as_they_are_printed(tmp_path: Path) -> None:
    """Names with spaces and quotes, numbers as names, and two suggestions for one setting."""
    sites = frames()
    for frame in sites.values():
        frame.insert(0, "row number", range(ROWS))
        frame.insert(0, "2024", range(ROWS))
        frame.insert(0, 'cost ("$")', -999.0)
        frame.loc[5:, 'cost ("$")'] = frame["glucose"][5:]
    found = checked(csv(tmp_path, **sites))
    printed = [in_shell(f.setting) for f in found.having("warning") if f.setting is not None]
    given = with_settings({}, [word for text in printed for word in shlex.split(text)])["data"]
    assert given["drop_columns"] == ["2024", "row number"]
    assert problems(checked(tmp_path, **given)) == []
