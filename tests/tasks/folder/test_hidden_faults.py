"""Faults that look like data: reversed classes, two units in a column, 99 for unknown, visits without a name."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from PIL import Image

from messy_folders import ROWS, Frames, at, change, checked, frames, patients, problems, with_column
from own_data import csv, load, sentence_of
from playerfl.data.encoding.cells import Cells
from playerfl.data.encoding.columns import dates_in


def drawn(make: Callable[[np.random.Generator], object]) -> Callable[[pd.DataFrame], object]:
    """A column that is random, but differs by site."""
    return lambda frame: make(np.random.default_rng(int(frame["age"].sum())))


def reversed_at(*sites: str) -> Frames:
    made = frames()
    for site, frame in made.items():
        frame["outcome"] = (frame["outcome"] == "yes").astype(int)
        if site in sites:
            frame["outcome"] = 1 - frame["outcome"]
    return made


def in_other_units(column: str, convert: Callable[[pd.Series], pd.Series]) -> Frames:
    made = frames()
    rows = np.random.default_rng(0).random(ROWS) < 0.3
    made["south"].loc[rows, column] = convert(made["south"][column][rows])
    return made


def visits() -> Frames:
    rng = np.random.default_rng(0)
    made = frames()
    for site, frame in made.items():
        several = frame.loc[np.repeat(np.arange(40), 3)].reset_index(drop=True)
        several["pressure"] += rng.normal(0, 8, ROWS).round()
        several["glucose"] = (several["glucose"] + rng.normal(0, 0.7, ROWS)).round(1)
        made[site] = several
    return made


def numbers_of_days(text: str) -> Callable[[np.random.Generator], object]:
    def draw(rng: np.random.Generator) -> object:
        days = pd.Timestamp("2021-01-01") + pd.to_timedelta(rng.integers(0, 900, ROWS), "D")
        return days.strftime(text).astype(int)

    return draw


WARNED: dict[str, tuple[Frames, str, str, str | None]] = {
    "classes reversed at a site": (
        reversed_at("south"),
        "labels",
        "target 'outcome' may be coded the other way round at south, compared with north and west",
        'data.recode="south/outcome: 0=1, 1=0"',
    ),
    "another unit in some rows": (
        in_other_units("glucose", lambda values: values * 18),
        "units",
        "'glucose' at south: 32 values around 100.8 and 88 around 5.65, 17.8 times apart, with none between",
        None,
    ),
    "99 among ages": (
        change(lambda sites: [frame.update(frame["age"].where(frame.index % 15 > 0, 99)) for frame in sites.values()]),
        "codes",
        "'age': 99 (north 8, south 8, west 8) may be a code for a missing value",
        'data.missing_codes="age=99" data.missing=mean',
    ),
    "88 and 99 among scores": (
        change(
            with_column("pain", drawn(lambda rng: rng.choice([1, 2, 3, 4, 5, 88, 99], ROWS, p=[0.18] * 5 + [0.05] * 2)))
        ),
        "codes",
        "'pain': 88 (",
        'data.missing_codes="pain=88" data.missing=mean',
    ),
    "day, month and year": (
        change(with_column("seen", drawn(numbers_of_days("%d%m%Y")))),
        "dates",
        "looks like a date written as one number (its year last)",
        "data.drop_columns=seen",
    ),
    "two digits of the year": (
        change(with_column("visit_date", drawn(numbers_of_days("%y%m%d")))),
        "dates",
        "looks like a date written as one number (two digits of the year",
        "data.drop_columns=visit_date",
    ),
    "visits without an identifier": (visits(), "groups", "many rows have the same 'age' as the row above (", None),
    "numbers of doctors": (
        change(with_column("doctor_id", drawn(lambda rng: rng.integers(100, 125, ROWS)))),
        "codes",
        "'doctor_id' is read as a measurement, although its name says that its numbers are codes",
        "data.category_columns=doctor_id",
    ),
    "numbers with a unit": (
        change(lambda sites: [f.isetitem(2, f["glucose"].astype(str) + " mmol/l") for f in sites.values()]),
        "kind",
        "categories, but holds numbers with the unit 'mmol/l'; write them without",
        None,
    ),
    "mostly limits": (
        change(lambda sites: [f.isetitem(2, f["glucose"].where(f["glucose"] > 5.7, "<5.7")) for f in sites.values()]),
        "kind",
        "categories, but holds numbers, because most cells are texts such as '<5.7'",
        'data.recode="glucose: <5.7=5.7"',
    ),
}


@pytest.mark.parametrize("fault", WARNED)
def test_every_fault_gets_one_warning(tmp_path: Path, fault: str) -> None:
    sites, topic, text, setting = WARNED[fault]
    found = checked(csv(tmp_path, **sites))
    assert found.having("stop") == []
    assert {finding.topic for finding in found.having("warning")} == {topic}, found.having("warning")
    first = found.having("warning")[0]
    assert text in first.text
    assert setting is None or first.setting == setting


def test_two_sites_contradict_each_other_and_a_site_without_effect_none(tmp_path: Path) -> None:
    sites = reversed_at("south")
    sites["west"]["outcome"] = np.random.default_rng(0).permutation(sites["west"]["outcome"])
    (warning,) = checked(csv(tmp_path, **sites)).having("warning")
    assert "at south, compared with north" in warning.text
    assert problems(checked(tmp_path, recode="south/outcome: 0=1, 1=0")) == []


def test_a_number_may_be_reversed_too(tmp_path: Path) -> None:
    sites = {site: frame.assign(score=frame["pressure"] / 2 + 3) for site, frame in frames().items()}
    for frame in sites.values():
        frame["score"] += np.random.default_rng(0).normal(0, 3, ROWS)
    sites["north"]["score"] = 130 - sites["north"]["score"]
    (warning,) = checked(csv(tmp_path, **sites), target="score").having("warning")
    assert "may be coded the other way round at north, compared with south and west" in warning.text
    assert warning.setting is None


COUNTED = {
    "length_of_stay": lambda rng: rng.poisson(12, ROWS),
    "family_income": lambda rng: 1000 * rng.integers(10, 90, ROWS),
    "patient_age": lambda rng: rng.integers(20, 97, ROWS),
    "case_mix": lambda rng: rng.integers(10, 60, ROWS),
    "saturation": lambda rng: np.minimum(99, rng.normal(97, 2, ROWS).round()),
    "platelets": lambda rng: rng.integers(10_000, 90_000, ROWS),
    "sorted": lambda rng: np.sort(rng.integers(20, 60, ROWS)),
    "days to relapse": lambda rng: np.where(
        rng.random(ROWS) < 0.4, rng.integers(90, 150, ROWS), rng.integers(9, 15, ROWS)
    ),
}


@pytest.mark.parametrize("name", COUNTED)
def test_measurements_get_no_warning(tmp_path: Path, name: str) -> None:
    """Words of identifiers in their names, a limit of 99, sorted rows, two groups of values at all sites."""
    sites = change(with_column(name, drawn(COUNTED[name])))
    assert problems(checked(csv(tmp_path, **sites))) == []


def test_sums_by_chance_are_no_totals(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    sites = {
        site: pd.DataFrame(rng.normal(size=(ROWS, 2)).round(1), columns=["a", "b"]).assign(y=rng.integers(0, 2, ROWS))
        for site in ("north", "south")
    }
    sites["north"].loc[ROWS - 1, "a"] = 0.3
    sites["north"].loc[0, "a"] -= sites["north"]["a"][: ROWS - 1].sum() - 0.3
    assert problems(checked(csv(tmp_path, **sites))) == []


@pytest.mark.parametrize(
    ("text", "plain"), [("1.234,5", "1234.5"), ("12 345", "12345"), ("9'000", "9000"), ("$1,002.29", "1002.29")]
)
def test_numbers_written_for_people_are_refused_with_the_number(tmp_path: Path, text: str, plain: str) -> None:
    sites = change(with_column("cost", drawn(lambda rng: rng.choice([text, text.replace("2", "3")], ROWS))))
    sites["north"].loc[0, "cost"] = text
    said = sentence_of(csv(tmp_path, **sites))
    assert said.startswith(f"north.csv, column 'cost', row 2: {text!r} is a number formatted for people; write {plain}")
    assert problems(checked(tmp_path))[0] == ("stop", "column")
    load(tmp_path, category_columns="cost")
    assert "write" in sentence_of(tmp_path, target="cost")


def test_a_few_stray_texts_are_no_reason_to_drop_a_column(tmp_path: Path) -> None:
    (stop,) = checked(csv(tmp_path, **change(at("south", "age", 4, "old")))).having("stop")
    assert stop.setting == 'data.missing_codes="age=old" data.missing=mean (if it means unknown)'


def test_the_scaling_that_was_chosen_is_described(tmp_path: Path) -> None:
    csv(tmp_path, **change(at("north", "glucose", 4, 1e12)))
    assert "scaled with its median" in checked(tmp_path).having("warning")[0].text
    chosen = checked(tmp_path, scaling="standard").having("warning")[0]
    assert chosen.setting is None
    assert "scaled" not in chosen.text


def test_a_file_that_is_no_site_is_named_once(tmp_path: Path) -> None:
    csv(tmp_path, **frames())
    (tmp_path / "codebook_2024.csv").write_text("name,meaning\nage,years\n")
    (stop,) = checked(tmp_path).having("stop")
    assert "codebook_2024.csv has none of the columns of north.csv" in stop.text
    assert "data.skip_sites=codebook_2024" in stop.text


@pytest.mark.parametrize("text", ["01DEC2023", "2023-W07"])
def test_more_dates_are_known(text: str) -> None:
    cells = Cells("a.csv", "day", [2], np.array([np.nan]), np.array([text], dtype=object))
    assert dates_in(cells).all()


def pictures(folder: Path, name: Callable[[int], str], *, clear: bool = False) -> Path:
    rng = np.random.default_rng(0)
    for site in ("north", "south"):
        for kind in ("mole", "scar"):
            (folder / site / kind).mkdir(parents=True)
            for i in range(30):
                pixels = rng.integers(0, 255, (8, 8, 4), dtype=np.uint8)
                pixels[..., 3] = np.where(clear and site == "south", pixels[..., 3], 255)
                Image.fromarray(pixels).save(folder / site / kind / f"{name(i)}.png")
    return folder


def test_transparent_pixels_are_named(tmp_path: Path) -> None:
    (warning,) = checked(pictures(tmp_path, lambda i: chr(65 + i), clear=True)).having("warning")
    assert "south has 60 images with transparent pixels" in warning.text


NAMES: dict[str, tuple[Callable[[int], str], bool]] = {
    "left and right": (lambda i: f"pat{i // 2:03}_{'left' if i % 2 else 'right'}", True),
    "a letter": (lambda i: f"P{i // 3:03}{'abc'[i % 3]}", True),
    "a date and a view": (lambda i: f"{i // 3:04}_2023010{i % 3 + 1}_{('CC', 'MLO', 'ML')[i % 3]}", True),
    "unique numbers": (lambda i: f"ISIC_{i * 37:07}", False),
    "times": (lambda i: f"IMG_2023010{i % 9 + 1}_1201{i:02}", False),
}


@pytest.mark.parametrize("kind", NAMES)
def test_names_of_images_say_whose_they_are(tmp_path: Path, kind: str) -> None:
    name, is_named = NAMES[kind]
    found = checked(pictures(tmp_path, name)).having("warning")
    assert [finding.topic for finding in found] == ["groups"] * is_named
    if is_named:
        setting = (found[0].setting or "").removeprefix("data.group_pattern=").strip("'")
        assert checked(tmp_path, group_pattern=setting).having("warning") == []


SHAPES = {
    "one column": ((60, 4), (60, 1), "save y.ravel()"),
    "one column per class": ((60, 4), (60, 2), "save y.argmax(1)"),
    "cubes": ((60, 2, 2), (60,), "save x.reshape(len(x), -1)"),
    "columns first": ((4, 60), (60,), "save x.T, if its columns are rows"),
}


@pytest.mark.parametrize("kind", SHAPES)
def test_arrays_of_another_shape_are_refused_with_the_repair(tmp_path: Path, kind: str) -> None:
    inputs, targets, repair = SHAPES[kind]
    np.savez(tmp_path / "north.npz", x=np.zeros(inputs), y=np.zeros(targets, dtype=np.int64))
    assert repair in sentence_of(tmp_path)


def test_images_in_other_places_or_formats_are_explained(tmp_path: Path) -> None:
    pictures(tmp_path, lambda i: chr(65 + i))
    Image.new("RGB", (8, 8)).save(tmp_path / "overview.tif")
    assert "has the image overview.tif next to the sites" in sentence_of(tmp_path)
    (tmp_path / "overview.tif").rename(tmp_path / "north" / "mole" / "a.tif")
    assert "north/mole/a.tif is not a .png or .jpg image; convert TIFF images to .png" in sentence_of(tmp_path)
    (tmp_path / "north" / "mole" / "a.tif").unlink()
    (tmp_path / "north" / "mole" / "more").mkdir()
    assert "north/mole/more is a folder; put images directly into" in sentence_of(tmp_path)


def test_clean_data_stay_without_a_warning(tmp_path: Path) -> None:
    """With few rows and with many, and with a target that the inputs hardly explain."""
    for number, rows in enumerate((60, 400)):
        folder = tmp_path / str(number)
        folder.mkdir()
        sites = {site: patients(10 * number + i, rows) for i, site in enumerate(("north", "south", "west"))}
        sites["west"]["outcome"] = np.random.default_rng(number).choice(["yes", "no"], rows)
        assert problems(checked(csv(folder, **sites))) == []
