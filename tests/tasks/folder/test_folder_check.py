"""`playerfl data check`: faults that used to be wrong in silence are named, and clean data are left alone."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from PIL import Image

from command_line import playerfl
from messy_folders import ROWS, Frames, at, change, checked, frames, patients, problems, with_column
from own_data import csv


def test_clean_data_get_no_warning(tmp_path: Path) -> None:
    found = checked(csv(tmp_path, **frames()))
    assert problems(found) == []
    assert found.rows == {"north": ROWS, "south": ROWS, "west": ROWS}
    assert found.classes["yes"]["north"] + found.classes["no"]["north"] == ROWS
    assert [finding.setting for finding in found.having("note")][:1] == ["data.target=outcome"]


def as_codes(sites: Frames) -> None:
    for site, first in (("north", 0), ("south", 1), ("west", 0)):
        sites[site]["outcome"] = sites[site]["outcome"].map({"no": first, "yes": first + 1})


def as_unknown(sites: Frames) -> None:
    for frame in sites.values():
        frame["outcome"] = frame["outcome"].map({"no": 0, "yes": 1})
        frame.loc[::13, "outcome"] = 99


FAULTS: dict[str, tuple[Callable[[Frames], object], str, str, str | None]] = {
    "labels from 1 at one site": (
        as_codes,
        "labels",
        "0 and 1 at north and west, but 1 and 2 at south",
        'data.recode="south/outcome: 1=0, 2=1"',
    ),
    "labels in capitals": (
        lambda sites: sites["south"].update(sites["south"]["outcome"].str.upper()),
        "labels",
        "'YES' (south 47) and 'yes' (north 61, west 61) look like the same value",
        None,
    ),
    "a typing error": (at("west", "outcome", 3, "yess"), "labels", "'yess' (west 1) may be a typing error for", None),
    "a label for unknown": (
        as_unknown,
        "codes",
        "'99' (north 10, south 10, west 10) may be a code for unknown",
        'data.missing_codes="outcome=99" data.missing=drop',
    ),
    "other words at one site": (
        lambda sites: sites["south"].update(sites["south"]["outcome"].map({"yes": "ja", "no": "nein"})),
        "labels",
        "south has ja and nein, and no other site has any of these",
        None,
    ),
    "categories in capitals": (
        lambda sites: sites["south"].update(sites["south"]["ward"].str.title()),
        "labels",
        "(south 47) look like the same value",
        None,
    ),
    "-999": (
        at("south", "age", slice(None, None, 9), -999),
        "codes",
        "'age': -999 (south 14) may be a code for a missing value",
        'data.missing_codes="age=-999" data.missing=mean',
    ),
    "9999": (at("west", "pressure", [3], 9999), "codes", "'pressure': 9999 (west 1)", None),
    "one 1e12": (at("north", "glucose", 4, 1e12), "outliers", "1e+12 at north (median 5.45)", "data.scaling=standard"),
    "other units": (
        lambda sites: sites["south"].update(sites["south"]["glucose"] * 18),
        "units",
        "'glucose': the median is 100.8 at south, but 5.4 elsewhere, 18.7 times more",
        None,
    ),
    "copied rows": (
        lambda sites: sites.update(south=pd.concat([sites["south"], sites["south"][:20]])),
        "duplicates",
        "rows that repeat an earlier one (south 20 of 140)",
        None,
    ),
    "a copied site": (
        lambda sites: sites.update(west=sites["north"]),
        "duplicates",
        "north and west have 120 rows in common (of 120), so one may be a copy of the other",
        "data.skip_sites=west",
    ),
    "a leaking column": (
        with_column("discharge", lambda frame: frame["outcome"].map({"yes": 17, "no": 3})),
        "leak",
        "'discharge' alone decides 'outcome' at north, south and west",
        "data.drop_columns=discharge",
    ),
    "a leaking measurement": (
        with_column("score", lambda frame: np.arange(ROWS) / 7 + 100 * (frame["outcome"] == "yes")),
        "leak",
        "'score' alone decides 'outcome'",
        "data.drop_columns=score",
    ),
    "an identifier": (
        with_column("number", lambda frame: np.arange(ROWS)),
        "identifier",
        "'number' has a different value in every row",
        "data.drop_columns=number",
    ),
    "visits": (
        with_column("patient_id", lambda frame: np.arange(ROWS) // 3),
        "groups",
        "'patient_id' repeats (north 40 in 120 rows",
        "data.group=patient_id",
    ),
    "a template": (
        lambda sites: sites.update(template=patients(9)),
        "files",
        "'template' is read as",
        "data.skip_sites=template",
    ),
    "constant at one site": (at("west", "pressure", slice(None), 120), "constant", "only one value at west", None),
    "counts": (
        with_column("target", lambda frame: np.random.default_rng(0).poisson(3, ROWS).clip(0, 8)),
        "kind",
        "the 9 whole numbers of 'target', from 0 to 8, are read as classes",
        "data.kind=number (or classes, if they are)",
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_every_fault_is_named_with_its_remedy(tmp_path: Path, fault: str) -> None:
    make, topic, text, setting = FAULTS[fault]
    found = checked(csv(tmp_path, **change(make)))
    matching = [f for f in found.having("warning") if f.topic == topic and text in f.text]
    assert matching, [finding.text for finding in found.findings]
    assert setting is None or matching[0].setting == setting
    assert found.having("stop") == []
    assert len(found.having("warning")) <= 4


def test_visits_without_a_name_are_noticed_by_their_likeness(tmp_path: Path) -> None:
    def visits(seed: int) -> pd.DataFrame:
        rng = np.random.default_rng(seed)
        measured = np.repeat(rng.normal(size=(50, 6)), 3, axis=0) + rng.normal(0, 0.02, (150, 6))
        return pd.DataFrame(measured, columns=list("abcdef")).assign(y=np.repeat(np.arange(50) % 2, 3))

    folder = csv(tmp_path, north=visits(1), south=visits(2))
    assert problems(checked(folder)) == [("warning", "groups")]
    assert "most rows have a near-duplicate (north 100%, south 100%)" in checked(folder).having("warning")[0].text


def test_settings_answer_the_warnings(tmp_path: Path) -> None:
    folder = csv(tmp_path, **change(with_column("patient_id", lambda frame: np.arange(ROWS) // 3)))
    found = checked(folder, group="patient_id")
    assert problems(found) == []
    assert found.groups == {"north": 40, "south": 40, "west": 40}
    assert any("same name at several sites" in finding.text for finding in found.having("note"))
    csv(tmp_path, **change(at("south", "age", slice(None, None, 9), -999)))
    assert problems(checked(folder, missing_codes="age=-999")) == [("stop", "missing")]
    assert problems(checked(folder, missing_codes="age=-999", missing="mean")) == []


def broken(folder: Path) -> None:
    sites = change(at("south", "age", 4, "old"))
    sites["west"] = sites["west"].drop(columns="pressure").assign(height=1.7)
    csv(folder, **{site: frame.assign(admitted="2024-01-03") for site, frame in sites.items()})


WEIRD: dict[str, tuple[Callable[[Path], object], list[str]]] = {
    "nothing": (lambda folder: None, ["has no sites"]),
    "everything at once": (
        broken,
        ["no column 'pressure'", "a column 'height'", "'old' is text in a column of numbers", "is a date"],
    ),
    "bytes": (lambda folder: (folder / "a.csv").write_bytes(b"\0\xff\xfe\1"), ["a.csv is not UTF-8"]),
    "headings only": (lambda folder: (folder / "a.csv").write_text("a,b\n"), ["a.csv has no rows"]),
    "one column": (lambda folder: (folder / "a.csv").write_text("a\n1\n2\n"), []),
    "one row": (lambda folder: (folder / "a.csv").write_text("a,b\n1,2\n"), ["the same value in every row"]),
    "no number": (lambda folder: (folder / "a.csv").write_text("a,b\n,\n,x\n"), ["the same value in every row"]),
    "mixed types": (
        lambda folder: (folder / "a.csv").write_text("a,b,y\n" + "1,x,0\nTrue,2,1\n?,-,0\n1e400,%,1\n" * 40),
        ["is too large"],
    ),
    "a pipe": (lambda folder: __import__("os").mkfifo(folder / "a.csv"), ["a.csv is not a regular file"]),
    "small sites": (
        lambda folder: csv(folder, a=patients(1, 8), b=patients(2).assign(outcome="yes")),
        ["a has 5 training examples, fewer than training.batch_size 32", "b has only class yes in its training part"],
    ),
}


@pytest.mark.parametrize("kind", WEIRD)
def test_nothing_in_a_folder_makes_the_check_fail(tmp_path: Path, kind: str) -> None:
    make, sentences = WEIRD[kind]
    make(tmp_path)
    stops = [finding.text for finding in checked(tmp_path).having("stop")]
    assert all(any(sentence in text for text in stops) for sentence in sentences), stops


def test_pictures_are_checked(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    for site in ("north", "south"):
        for kind in ("mole", "scar"):
            (tmp_path / site / kind).mkdir(parents=True)
            for i in range(30):
                pixels = rng.integers(0, 255 if site == "north" else 20, (8, 8, 3), dtype=np.uint8)
                Image.fromarray(pixels).save(tmp_path / site / kind / f"p{i // 3:03}_{i % 3}.png")
    copied = (tmp_path / "north" / "mole" / "p000_0.png").read_bytes()
    (tmp_path / "north" / "scar" / "p000_0.png").write_bytes(copied)
    Image.new("RGB", (8, 8)).save(tmp_path / "south" / "mole" / "p000_0.png")
    texts = " ".join(finding.text for finding in checked(tmp_path).having("warning"))
    assert "the same image in two classes: north/mole/p000_0.png and north/scar/p000_0.png" in texts
    assert "south's images are much darker" in texts
    assert "south has 1 image of a single colour" in texts
    assert "file names suggest several images of one subject" in texts
    grouped = checked(tmp_path, group_pattern=r"(.+)[ _-]+\d+\.")
    assert grouped.groups == {"north": 10, "south": 10}
    assert not [finding for finding in grouped.having("warning") if finding.topic == "groups"]


OWN = """
import torch
from torch import nn
import playerfl

x = torch.randn(90, 4, generator=torch.Generator().manual_seed(0))
y = torch.arange(90) % 3
copied = {"train": (x, y), "validation": (x[:20], y[:20]), "test": (x[20:40], y[20:40])}
task = playerfl.own_task(lambda: nn.Linear(4, 3), {"north": (x[:60] + 1, y[:60]), "south": copied})
"""


def test_a_task_of_ones_own_is_checked(tmp_path: Path) -> None:
    (tmp_path / "mytask.py").write_text(OWN)
    said = playerfl("data", "check", "mytask.py:task", "--json", cwd=tmp_path)
    assert said.returncode == 0, said.stderr
    found = json.loads(said.stdout)
    assert found["rows"] == {"north": 60, "south": 130}
    (warning,) = [finding for finding in found["findings"] if finding["severity"] == "warning"]
    assert warning["text"] == "20 of 20 test examples of south are in its training part too"


@pytest.mark.slow
def test_the_command_prints_draws_and_refuses(tmp_path: Path) -> None:
    folder = csv(tmp_path, **change(as_codes)).rename(tmp_path.with_name("hospitals"))
    tmp_path.mkdir(exist_ok=True)
    said = playerfl("data", "check", str(folder), cwd=tmp_path)
    assert said.returncode == 0, said.stderr
    assert "warning target 'outcome': 0 and 1 at north and west" in said.stdout
    assert "nothing to stop training, 1 warning" in said.stdout
    assert (tmp_path / "hospitals-check.png").stat().st_size > 10_000
    assert playerfl("data", "check", str(folder), "--strict", "--json", cwd=tmp_path).returncode == 1
    refused = playerfl("data", "check", str(folder), "--set", "data.target=height", "--json", cwd=tmp_path)
    assert refused.returncode == 1
    assert "data.target: unknown column 'height'" in refused.stdout


def test_a_run_says_what_was_found_before_it_trains(tmp_path: Path) -> None:
    folder = csv(tmp_path, **change(as_codes))
    said = playerfl("run", str(folder), "-a", "local", "--rounds", 1, "--out", "o", cwd=tmp_path.parent)
    assert said.returncode == 0, said.stderr
    lines = said.stderr.splitlines()
    assert lines[0] == "data check: north 120, south 120, west 120 rows; nothing to stop training, 1 warning"
    assert lines[1].startswith("warning target 'outcome': 0 and 1 at north and west, but 1 and 2 at south")
    assert next(i for i, line in enumerate(lines) if "the target is 'outcome'" in line) < next(
        i for i, line in enumerate(lines) if "round 1/1" in line
    )


def test_groups_too_large_for_the_shares_of_the_parts_are_named(tmp_path: Path) -> None:
    def grouped(largest: int) -> Frames:
        patient = np.r_[np.zeros(largest, dtype=np.int64), 1 + np.arange(ROWS - largest)]
        return {site: frame.assign(patient=patient)[["patient", *frame.columns]] for site, frame in frames().items()}

    assert problems(checked(csv(tmp_path, **grouped(70)), group="patient")) == []
    found = checked(csv(tmp_path, **grouped(112)), group="patient")
    assert problems(found) == [("warning", "groups")] * 3
    assert "the largest of 9 has 112 of 120 rows" in found.having("warning")[0].text


@pytest.mark.parametrize(("wrong", "right"), [("malignent", "malignant"), ("recurence", "recurrence")])
def test_a_class_misspelt_in_many_rows_is_named(tmp_path: Path, wrong: str, right: str) -> None:
    sites = frames()
    for frame in sites.values():
        frame["outcome"] = frame["outcome"].map({"no": "benign", "yes": right})
    sites["south"]["outcome"] = sites["south"]["outcome"].replace(right, wrong)
    found = checked(csv(tmp_path, **sites)).having("warning")
    assert found[0].setting == f'data.recode="outcome: {wrong}={right}"'


@pytest.mark.parametrize(
    "words",
    [
        "grade1 grade2",
        "type A/type B",
        "stage II/stage III",
        "typical atypical",
        "macrocytic microcytic",
        "right light",
    ],
)
def test_classes_that_are_written_alike_but_differ_are_left_alone(tmp_path: Path, words: str) -> None:
    first, second = words.split("/" if "/" in words else " ")
    sites = frames()
    for frame in sites.values():
        frame["outcome"] = frame["outcome"].map({"no": first, "yes": second})
    assert problems(checked(csv(tmp_path, **sites))) == []


@pytest.mark.parametrize("target", ["outcome", "ward", "glucose"])
def test_row_numbers_of_a_table_sorted_by_its_target_are_a_leak(tmp_path: Path, target: str) -> None:
    sites = {site: frame.sort_values(target, ignore_index=True) for site, frame in frames().items()}
    with_column("number", lambda frame: np.arange(len(frame)))(sites)
    found = checked(csv(tmp_path, **sites), target=target)
    assert problems(found) == [("warning", "identifier"), ("warning", "leak")]
    assert "sorted by the target when they were numbered" in found.having("warning")[1].text


def test_tiny_values_are_no_totals(tmp_path: Path) -> None:
    sites = frames()
    with_column("density", lambda frame: frame["glucose"] * 1e-12)(sites)
    assert problems(checked(csv(tmp_path, **sites))) == []


@pytest.mark.parametrize("site", ["north", "all"])
def test_true_among_numbers_is_not_1(tmp_path: Path, site: str) -> None:
    sites = frames()
    for name in sites if site == "all" else [site]:
        at(name, "age", [3, 7], True)(sites)
    found = checked(csv(tmp_path, **sites)).having("stop")
    assert len(found) == 1
    assert "north.csv, column 'age', row 5: True is not a number, but the column holds numbers" in found[0].text
    assert found[0].setting == 'data.missing_codes="age=True" data.missing=mean'
    assert problems(checked(tmp_path, missing_codes=["age=True"], missing="mean")) == []


def test_true_and_1_are_the_same(tmp_path: Path) -> None:
    sites = frames()
    with_column("smoker", lambda frame: frame["age"] > 60)(sites)
    sites["north"]["smoker"] = sites["north"]["smoker"].astype(int)
    assert problems(checked(csv(tmp_path, **sites))) == []


@pytest.mark.parametrize("pattern", ["{} days", "about {} kg"])
def test_numbers_with_a_unit_are_hardly_classes(tmp_path: Path, pattern: str) -> None:
    sites = frames()
    for frame in sites.values():
        frame["outcome"] = [pattern.format(number) for number in frame["pressure"].astype(int)]
    found = [finding for finding in checked(csv(tmp_path, **sites)).having("warning") if finding.topic == "kind"]
    assert len(found) == 1
    assert "if they are numbers, write them without" in found[0].text


def test_nearly_as_many_classes_as_rows_are_named(tmp_path: Path) -> None:
    sites = frames()
    for site, frame in sites.items():
        frame["outcome"] = [f"{chr(97 + i % 26)}{chr(97 + i // 26)}-{site}" for i in range(ROWS)]
    found = [finding for finding in checked(csv(tmp_path, **sites)).having("warning") if finding.topic == "kind"]
    assert "target 'outcome' has 360 classes in 360 rows" in found[0].text


@pytest.mark.parametrize(("text", "number"), [("89+", "89"), ("130*", "130"), ("118 H", "118"), ("<1", "1")])
def test_a_number_with_a_remark_can_be_recoded(tmp_path: Path, text: str, number: str) -> None:
    found = checked(csv(tmp_path, **change(at("north", "age", 5, text)))).having("stop")
    assert [finding.setting for finding in found] == [f'data.recode="age: {text}={number}"']
    assert checked(tmp_path, recode=[f"age: {text}={number}"]).having("stop") == []


def test_three_ways_to_write_yes_are_recoded_to_one(tmp_path: Path) -> None:
    """Each suggestion used to have its own spelling as its aim, so that following one brought the next."""
    rng = np.random.default_rng(0)
    sites = frames()
    for (site, frame), (no, yes) in zip(sites.items(), (("no", "yes"), ("N", "Y"), (0, 1)), strict=True):
        more_yes = rng.random(len(frame)) < (0.7 if site == "south" else 0.4)
        sites[site] = frame.assign(diabetes=[yes if is_yes else no for is_yes in more_yes])
    folder = csv(tmp_path, **sites)
    asked: dict[str, object] = {"target": "outcome"}
    first = checked(folder, **asked).having("stop")
    assert [finding.setting for finding in first] == ['data.recode="west/diabetes: 0=no, 1=yes"']
    as_codes = checked(folder, **asked, category_columns=["diabetes"])
    rules = [str(finding.setting)[len('data.recode="') : -1] for finding in as_codes.having("warning")]
    assert rules == ["diabetes: Y=yes", "diabetes: N=no", "west/diabetes: 0=no, 1=yes"]
    assert problems(checked(folder, **asked, recode=rules)) == []


def test_a_target_of_numbers_at_one_site_is_recoded_there(tmp_path: Path) -> None:
    sites = frames()
    for site, frame in sites.items():
        frame["outcome"] = frame["outcome"].map(
            {"no": 0, "yes": 1} if site == "west" else {"no": "home", "yes": "ward"}
        )
    found = checked(csv(tmp_path, **sites)).having("stop")
    assert [finding.setting for finding in found] == ['data.recode="west/outcome: 0=NEW, 1=NEW"']
    assert "category_columns" not in found[0].text
    assert problems(checked(tmp_path, recode=["west/outcome: 0=home, 1=ward"])) == []
