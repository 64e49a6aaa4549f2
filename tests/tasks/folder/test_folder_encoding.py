"""The encoding of a folder's sites: what trains a model is what later reads new rows, and nothing else gets in."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image

from own_data import csv, load, sentence_of, set_cell, table, whole
from playerfl.data.encoding.encoding import Encoding, PictureEncoding, TableEncoding
from playerfl.errors import DataError
from playerfl.tasks.folder import FolderOptions, folder_task

ROWS = 60


def vitals(rows: int = ROWS, seed: int = 0) -> pd.DataFrame:
    """A table with a column of every kind."""
    rng = np.random.default_rng(seed)
    frame = table(rows, seed).drop(columns="outcome")
    frame["oxygen"] = [f"{value} %" for value in rng.integers(80, 100, rows)]
    frame["pressure"] = [f"{high}/{low}" for high, low in rng.integers((90, 50), (180, 90), (rows, 2))]
    frame["admitted"] = [f"{hour:02}:{minute:02}" for hour, minute in rng.integers(0, 24, (rows, 2))]
    return frame.assign(code=rng.choice(["007", "7"], rows), outcome=table(rows, seed)["outcome"])


@pytest.fixture
def sites(tmp_path: Path) -> Path:
    return csv(tmp_path, north=vitals(seed=1), south=vitals(seed=2))


def again(encoding: Encoding) -> Encoding:
    return Encoding.from_dict(json.loads(json.dumps(encoding.as_dict(), allow_nan=False)))


def sorted_rows(inputs: torch.Tensor) -> list[list[float]]:
    return sorted(inputs.tolist())


def refusal(encoding: Encoding, rows: pd.DataFrame) -> str:
    assert isinstance(encoding.inputs, TableEncoding)
    with pytest.raises(DataError) as caught:
        encoding.inputs.encode(rows)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_new_rows_become_what_the_model_was_trained_on(sites: Path) -> None:
    loaded = load(sites, category_columns="code", drop_columns=())
    for site in loaded:
        inputs = again(loaded.encodings[site]).inputs
        assert isinstance(inputs, TableEncoding)
        encoded = inputs.encode(inputs.read(sites / f"{site}.csv"))
        assert sorted_rows(encoded) == sorted_rows(whole(loaded[site]))
        assert encoded.shape[1] == len(inputs.input_names)
    assert loaded.encodings["north"].inputs != loaded.encodings["south"].inputs
    assert loaded.encodings["north"].target == loaded.encodings["south"].target


def test_percentages_ratios_and_times_are_numbers(sites: Path) -> None:
    loaded = load(sites, category_columns="code")
    inputs = loaded.encodings["north"].inputs
    assert {column.kind.name: column.kind.kind for column in inputs.columns} == {
        "age": "number",
        "dose": "number",
        "ward": "category",
        "smoker": "boolean",
        "oxygen": "percent",
        "pressure": "ratio",
        "admitted": "time",
        "code": "category",
    }
    assert inputs.input_names[5:10] == (
        "oxygen",
        "pressure (first)",
        "pressure (second)",
        "admitted (sine)",
        "admitted (cosine)",
    )
    train = loaded["north"].train.inputs[:, 5:8]
    torch.testing.assert_close(train.mean(0), torch.zeros(3), atol=1e-6, rtol=0)
    assert (whole(loaded["north"])[:, 8:10] ** 2).sum(1).allclose(torch.ones(ROWS))
    note = next(note for note in loaded.notes if note.startswith("inputs:"))
    assert "1 percentage," in note
    assert "1 ratio such as 120/80, two inputs" in note


@pytest.mark.parametrize(
    ("column", "value", "sentence"),
    [
        ("oxygen", "high", "south.csv, column 'oxygen', row 3: 'high' is not written like 12 %"),
        ("pressure", "120-80", "south.csv, column 'pressure', row 3: '120-80' is not written like 120/80"),
        ("admitted", "25:00", "south.csv, column 'admitted', row 3: '25:00' is not written like 07:30"),
        ("age", "12 %", "south.csv, column 'age', row 3: '12 %' is text in a column of numbers"),
    ],
)
def test_a_cell_of_another_form_is_named(sites: Path, column: str, value: str, sentence: str) -> None:
    assert sentence_of(set_cell(sites, column, value)).startswith(sentence)


def test_new_rows_that_do_not_fit_are_refused_in_a_sentence(sites: Path) -> None:
    loaded = load(sites, category_columns="code")
    encoding, rows = loaded.encodings["south"], vitals(5, seed=3)
    inputs = encoding.inputs
    assert inputs.encode(rows).shape == inputs.encode(rows.drop(columns="outcome")).shape == (5, 12)
    assert refusal(encoding, rows.drop(columns="age")) == "the table has no column 'age'; the model needs it"
    assert "has a column 'height', which the model does not know" in refusal(encoding, rows.assign(height=1))
    assert "column 'ward', row 0: 'eye' is an unknown category; known: heart, lung" in refusal(
        encoding, rows.assign(ward="eye")
    )
    assert "column 'age', row 0: 'old' is text in a column of numbers" in refusal(encoding, rows.assign(age="old"))
    assert "column 'smoker', row 0: 2 is not true or false" in refusal(encoding, rows.assign(smoker=2))
    assert "column 'pressure', row 0: '120' is not written like 120/80" in refusal(encoding, rows.assign(pressure=120))
    assert "column 'age', row 0: the value is missing, as in 5 of 5 rows" in refusal(encoding, rows.assign(age=np.nan))


def test_missing_values_of_new_rows_are_filled_as_in_training(sites: Path) -> None:
    inputs = load(sites, category_columns="code", missing="mean", missing_codes=-999).encodings["south"].inputs
    rows = vitals(5, seed=3)
    for gap in (np.nan, -999):
        assert inputs.encode(rows.assign(age=gap))[:, 0].tolist() == [0.0] * 5
    half = inputs.encode(rows.assign(smoker=None, admitted=None))
    assert half.isfinite().all()


def test_classes_and_units_of_the_target(sites: Path) -> None:
    assert load(sites).encodings["north"].target.classes == ("ill", "well")
    loaded = load(sites, target="age")
    target = loaded.encodings["north"].target
    assert target == loaded.encodings["south"].target
    ages = target.in_units(whole(loaded["north"], "targets"))
    assert sorted(round(age, 4) for age in ages.tolist()) == sorted(vitals(seed=1)["age"])


def test_a_stored_encoding_that_was_damaged_is_refused(sites: Path) -> None:
    stored: dict[str, Any] = load(sites).encodings["north"].as_dict()
    for damage, sentence in [
        ({"version": 2}, "the encoding has the version 2"),
        ({"table": None}, "the encoding cannot be read"),
        ({"target": {"name": 3}}, "the encoding cannot be read: name"),
        ({"table": {"columns": [{"kind": {"name": "a", "kind": "ratio"}, "scales": [{}]}]}}, "1 scales for 2 inputs"),
    ]:
        with pytest.raises(DataError, match=sentence):
            Encoding.from_dict({**stored, **damage})
    with pytest.raises(DataError, match="version None"):
        Encoding.from_dict([])  # type: ignore[arg-type]


def test_deep_pictures_are_scaled_by_the_range_of_the_training_pictures(tmp_path: Path) -> None:
    """12 of 16 bits, as scanners write them: by the whole range they were nearly black."""
    rng = np.random.default_rng(0)
    for site, top in (("north", 4095), ("south", 65535)):
        for kind, low in (("dark", 0.0), ("light", 0.5)):
            place = tmp_path / site / kind
            place.mkdir(parents=True)
            for i in range(20):
                pixels = (rng.uniform(low, low + 0.5, (16, 16)) * top).astype(np.uint16)
                Image.fromarray(pixels).save(place / f"{i}.png")
    options = FolderOptions(image_size=16)
    loaded = folder_task(tmp_path).for_options(options).load_sites(options)
    for site in loaded:
        inputs = whole(loaded[site])
        assert inputs.min() == -1
        assert inputs.max() == 1
        light = inputs.mean((1, 2, 3)) > 0
        assert torch.equal(light, whole(loaded[site], "targets") == 1)
        encoding = again(loaded.encodings[site])
        files = sorted((tmp_path / site).rglob("*.png"))
        assert sorted_rows(encoding.inputs.encode(files).flatten(1)) == sorted_rows(inputs.flatten(1))
    assert "16-bit images, scaled by the range of each site's training images: north " in loaded.notes[3]


def test_pictures_are_turned_as_the_camera_says(tmp_path: Path) -> None:
    from playerfl.data.readers.image_folders import read_picture_files

    upright = np.zeros((32, 32, 3), dtype=np.uint8)
    upright[:16] = 255
    plain, turned = tmp_path / "plain.png", tmp_path / "turned.png"
    Image.fromarray(upright).save(plain)
    exif = Image.Exif()
    exif[0x0112] = 3
    Image.fromarray(upright[::-1]).save(turned, exif=exif)
    first, second = read_picture_files([plain, turned], 8).pixels
    assert np.array_equal(first, second)


def test_a_16_bit_picture_is_refused_by_an_encoding_of_8_bit_pictures(tmp_path: Path) -> None:
    """By the range of 16 bits, most scans would be nearly black."""
    deep = tmp_path / "scan.png"
    Image.fromarray(np.full((16, 16), 4000, dtype=np.uint16)).save(deep)
    with pytest.raises(DataError, match=r"scan\.png has 16 bits per colour, but the model was trained with 8-bit"):
        PictureEncoding(16).encode([deep])
    assert PictureEncoding(16, 0.0, 4095.0).encode([deep]).shape == (1, 3, 16, 16)


def test_an_8_bit_picture_is_refused_by_an_encoding_of_16_bit_pictures(tmp_path: Path) -> None:
    flat = tmp_path / "scan.png"
    Image.fromarray(np.full((16, 16), 200, dtype=np.uint8)).save(flat)
    with pytest.raises(DataError, match=r"scan\.png has 8 bits per colour, but the model was trained with 16-bit"):
        PictureEncoding(16, 0.0, 4095.0).encode([flat])
    assert PictureEncoding(16, 0.0, 4095.0, mixes_depths=True).encode([flat]).shape == (1, 3, 16, 16)
