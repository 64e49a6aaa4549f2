"""The same thing coded or spelled in several ways: it is named, and the setting that the check suggests repairs it."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image

from messy_folders import ROWS, Frames, checked, frames, patients, problems
from own_data import csv, load, sentence_of, set_cell, whole
from playerfl.data.check.result import DataCheck, Finding
from playerfl.data.encoding.encoding import Encoding
from playerfl.runs.settings_table import with_settings

Make = Callable[[str, pd.DataFrame], pd.DataFrame]


def each(make: Make) -> Frames:
    return {site: make(site, frame) for site, frame in frames().items()}


def outcome(no: object, yes: object, *sites: str) -> Frames:
    """The target with other words at some sites, and 0 and 1 elsewhere."""
    values = {"no": no, "yes": yes}
    return each(
        lambda site, frame: frame.assign(
            outcome=frame["outcome"].map(values if site in sites else {"no": 0, "yes": 1}).astype(object)
        )
    )


def feature(no: object, yes: object) -> Frames:
    def with_smoker(site: str, frame: pd.DataFrame) -> pd.DataFrame:
        smokes = np.random.default_rng(len(site)).random(ROWS) < 0.4
        values = np.where(smokes, yes, no) if site == "south" else smokes.astype(int)
        return frame.assign(smoker=values)[["smoker", *frame.columns]]

    return each(with_smoker)


def warning(found: DataCheck, text: str) -> Finding:
    matching = [f for f in found.findings if f.severity != "note" and text in f.text]
    assert len(matching) == 1, [f.text for f in found.findings]
    return matching[0]


def follow(folder: Path, setting: str | None, **more: object) -> DataCheck:
    """The check with the setting that was suggested."""
    assert setting is not None
    given = re.findall(r'data\.(?:\[.*?\]|".*?"|[^\s"\[])+', setting.partition(" (")[0])
    return checked(folder, **with_settings({}, given)["data"], **more)


CODINGS: dict[str, tuple[Frames, str]] = {
    "1/2 in the target": (outcome(1, 2, "south"), "south/outcome: 1=0, 2=1"),
    "-1/1 in the target": (outcome(-1, 1, "south"), "south/outcome: -1=0"),
    "no/yes in the target": (outcome("no", "yes", "south"), "south/outcome: no=0, yes=1"),
    "at two sites of three": (outcome("Nein", "Ja", "south", "west"), "north/outcome: 0=Nein, 1=Ja"),
    "1/2 in an input": (feature(1, 2), "south/smoker: 1=0, 2=1"),
    "-1/1 in an input": (feature(-1, 1), "south/smoker: -1=0"),
    "n/y in an input": (feature("N", "Y"), "south/smoker: N=0, Y=1"),
}


@pytest.mark.parametrize("coding", CODINGS)
def test_another_coding_is_named_and_the_setting_repairs_it(tmp_path: Path, coding: str) -> None:
    sites, rule = CODINGS[coding]
    found = checked(csv(tmp_path, **sites))
    suggested = [f.setting for f in found.findings if f.severity != "note"]
    assert suggested == [f'data.recode="{rule}"']
    repaired = follow(tmp_path, suggested[0])
    assert problems(repaired) == []
    assert len(repaired.classes) == 2


def test_true_and_false_are_1_and_0_where_the_target_has_both(tmp_path: Path) -> None:
    found = checked(csv(tmp_path, **outcome(False, True, "south")))
    assert list(found.classes) == ["0", "1"]
    assert problems(found) == []
    assert any("true and false are read as 1 and 0" in note.text for note in found.having("note"))
    south = whole(load(tmp_path)["south"], "targets")
    assert int(south.sum()) == int((frames()["south"]["outcome"] == "yes").sum())


def test_counts_and_one_sided_sites_are_not_called_another_coding(tmp_path: Path) -> None:
    def counted(site: str, frame: pd.DataFrame) -> pd.DataFrame:
        low, high = {"north": (0, 3), "south": (1, 4), "west": (0, 4)}[site]
        visits = np.random.default_rng(0).integers(low, high, ROWS)
        return frame.assign(visits=visits, smoker=int(site == "south"))[["visits", "smoker", *frame.columns]]

    assert [finding.topic for finding in checked(csv(tmp_path, **each(counted))).having("warning")] == []


def test_spellings_get_the_setting_that_merges_them(tmp_path: Path) -> None:
    sites = frames()
    sites["south"]["outcome"] = sites["south"]["outcome"].replace({"yes": "YES"})
    sites["west"].loc[3, "ward"] = "h\N{CYRILLIC SMALL LETTER IE}art"
    found = checked(csv(tmp_path, **sites))
    settings = [f.setting for f in found.having("warning")]
    assert settings == ['data.recode="outcome: YES=yes"', 'data.recode="ward: h\N{CYRILLIC SMALL LETTER IE}art=heart"']
    rules = ["outcome: YES=yes", "ward: h\N{CYRILLIC SMALL LETTER IE}art=heart"]
    assert problems(checked(tmp_path, recode=rules)) == []


@pytest.mark.parametrize("word", ["None", "NA", "null", "n/a"])
def test_a_class_that_reads_like_missing_is_named(tmp_path: Path, word: str) -> None:
    sites = each(lambda _, f: f.assign(outcome=f["outcome"].replace("no", word).where(f.index % 3 > 0, "mild")))
    said = warning(checked(csv(tmp_path, **sites), missing="drop"), f"'{word}' (north")
    assert said.severity == "warning"
    kept = follow(tmp_path, said.setting)
    assert sorted(kept.classes) == sorted([word, "mild", "yes"])
    assert problems(kept) == []
    as_missing = checked(tmp_path, missing_codes=f"outcome={word}", missing="drop")
    assert sorted(as_missing.classes) == ["mild", "yes"]
    assert problems(as_missing) == []


def test_none_is_a_class_beside_numbers_and_a_category_of_an_input(tmp_path: Path) -> None:
    def graded(site: str, frame: pd.DataFrame) -> pd.DataFrame:
        grade = np.random.default_rng(len(site)).choice(["None", "1", "2"], ROWS)
        return frame.assign(complication=np.roll(grade, 1), outcome=grade)[["complication", *frame.columns]]

    found = checked(csv(tmp_path, **each(graded)), missing="mean")
    assert warning(found, "target 'outcome': 'None'").setting is not None
    assert warning(found, "column 'complication': 'None'").setting is not None
    rules = ["outcome: None=None", "complication: None=None"]
    kept = checked(tmp_path, recode=rules, category_columns="complication")
    assert kept.having("stop") == []
    assert list(kept.classes) == ["1", "2", "None"]


STRAY = {
    "?": 'data.missing_codes="?" data.missing=mean',
    ".": 'data.missing_codes="." data.missing=mean',
    "-": 'data.missing_codes="-" data.missing=mean',
    "unknown": 'data.missing_codes="unknown" data.missing=mean',
    "N.A.": 'data.missing_codes="N.A." data.missing=mean',
    "#DIV/0!": 'data.missing_codes="#DIV/0!" data.missing=mean',
    "<5": 'data.recode="age: <5=5"',
}


@pytest.mark.parametrize("text", STRAY)
def test_a_text_for_unknown_among_numbers_gets_a_missing_code(tmp_path: Path, text: str) -> None:
    folder = csv(tmp_path, **frames())
    for row in (5, 9, 40):
        set_cell(folder, "age", text, row, "west")
    said = warning(checked(folder), f"{text!r} is text in a column of numbers")
    assert said.setting == STRAY[text]
    assert problems(follow(folder, said.setting)) == []


def test_a_text_that_names_patients_becomes_the_group(tmp_path: Path) -> None:
    sites = each(lambda site, f: f.assign(patient=[f"{site}{i // 2:03}" for i in range(ROWS)])[["patient", *f.columns]])
    said = warning(checked(csv(tmp_path, **sites)), "different text values")
    assert said.setting == "data.group=patient"
    assert problems(follow(tmp_path, said.setting)) == []


def test_a_label_with_a_comma_gets_no_setting_that_would_be_misread(tmp_path: Path) -> None:
    sites = each(lambda _, f: f.assign(ward=f["ward"].replace("lung", "lung, left")))
    sites["south"]["ward"] = sites["south"]["ward"].str.upper()
    said = warning(checked(csv(tmp_path, **sites)), "'LUNG, LEFT'")
    assert said.setting is None


def test_recode_reaches_training_and_new_rows(tmp_path: Path) -> None:
    sites = feature(1, 2)
    rules = ["south/smoker: 1=0, 2=1", "ward: gut=lung"]
    south = load(csv(tmp_path, **sites), recode=rules)
    encoding = south.encodings["south"]
    assert encoding.inputs.recode == ("smoker: 1=0, 2=1", "ward: gut=lung")
    read_back = Encoding.from_dict(encoding.as_dict())
    new = sites["south"].drop(columns="outcome")
    raw = read_back.inputs.raw(new)
    position = read_back.inputs.input_names.index("smoker")
    assert np.array_equal(raw[:, position] + 1, new["smoker"])
    assert "ward = gut" not in read_back.inputs.input_names
    assert torch.isfinite(read_back.inputs.encode(new)).all()


def test_rules_that_cannot_work_are_refused_or_named(tmp_path: Path) -> None:
    folder = csv(tmp_path, **frames())
    assert "unknown column 'height'" in sentence_of(folder, recode="height: 1=2")
    assert "unknown column 'agee'" in sentence_of(folder, missing_codes="agee=99")
    assert "is not of the form" in sentence_of(folder, recode="outcome yes=no")
    assert "changes no value" in checked(folder, recode="soth/outcome: yes=no").having("warning")[0].text
    assert "unknown column 'agee'" in checked(folder, missing_codes="agee=99").having("stop")[0].text


def picture(file: Path, rng: np.random.Generator, *, deep: bool) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    pixels = rng.integers(0, 4000, (8, 8)).astype(np.uint16) if deep else rng.integers(0, 255, (8, 8), dtype=np.uint8)
    Image.fromarray(pixels).save(file)


def test_depths_copies_and_codes_of_images_are_named_without_nonsense(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    for site in ("north", "south"):
        for kind in ("mole", "scar", "unknown"):
            for i in range(12):
                picture(tmp_path / site / kind / f"{'abcdefghijkl'[i]}.png", rng, deep=site == "south")
    copied = (tmp_path / "north" / "mole" / "a.png").read_bytes()
    for place in ("mole/z.png", "scar/z.png"):
        (tmp_path / "north" / place).write_bytes(copied)
    found = checked(tmp_path, accept_small_sites=True)
    assert warning(found, "16-bit images at south, but 8-bit ones at north").topic == "depth"
    said = warning(found, "the same image in two classes").text
    assert "north/mole/z.png and north/scar/z.png" in said
    assert all("None" not in (f.setting or "") for f in found.findings)
    assert warning(found, "'unknown' (north 12, south 12) may be a code").setting is None


def test_a_picture_that_is_twice_in_one_class_is_not_in_two(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    for kind in ("mole", "scar"):
        for i in range(40):
            picture(tmp_path / "north" / kind / f"{chr(97 + i)}.png", rng, deep=False)
    copied = (tmp_path / "north" / "mole" / "a.png").read_bytes()
    (tmp_path / "north" / "mole" / "b.png").write_bytes(copied)
    texts = [f.text for f in checked(tmp_path).having("warning")]
    assert [text for text in texts if "an earlier one of the same site" in text]
    assert not [text for text in texts if "classes" in text]


def test_the_check_of_clean_data_stays_silent_with_other_seeds(tmp_path: Path) -> None:
    for seed in (30, 60):
        sites = {site: patients(seed + i) for i, site in enumerate(("north", "south", "west"))}
        assert problems(checked(csv(tmp_path, **sites))) == []
