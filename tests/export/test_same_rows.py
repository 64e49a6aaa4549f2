"""`playerfl predict`, the loader that needs torch only, and the ONNX file agree on every row, or all refuse it."""

from __future__ import annotations

import contextlib
import csv
import importlib.util
import json
import math
import warnings
from functools import lru_cache
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import playerfl as package
from command_line import playerfl
from playerfl.errors import PlayerflError
from playerfl.export import predict as predicting
from playerfl.export.folder import read_folder

pytestmark = pytest.mark.slow  # they share two runs and two exports, which take seconds

USUAL = {
    "age": "61.5",
    "smoker": "true",
    "ward": "heart",
    "code": "007",
    "grade": "2",
    "hba1c": "6.5 %",
    "pressure": "120/80",
    "admitted": "07:30",
}
TEXTS = (
    *(
        "",
        " ",
        "nan",
        "NaN",
        " nan ",
        "NA",
        " NA",
        "N/A",
        "n/a",
        "null",
        "NULL",
        "None",
        "none",
        "<NA>",
        "#N/A",
        "-",
        "?",
    ),
    *(
        "0",
        "1",
        "2",
        "5",
        "7",
        "007",
        "07",
        "7.0",
        "2.0",
        "02",
        "-999",
        "-999.0",
        "-999.00",
        "99",
        "99.0",
        "9999",
        "0.4",
    ),
    *(
        "1_000",
        "1_0 %",
        "1,5",
        "1,000",
        "1e3",
        "1E3",
        "1e39",
        "1e400",
        "-1e400",
        "1e-400",
        "0x10",
        ".5",
        "5.",
        "+5",
        "--5",
    ),
    *("inf", "-inf", "Infinity", "+infinity", "1" * 400, "61.5 ", " 61.5", "61 .5", "٦١"),
    *("true", "TRUE", "True", " false", "yes", "no", "t", "heart", "Heart", " heart ", "lung", "roof", "heart;lung"),
    *("12 %", "12%", "12", "12.5 %", "-3 %", "12 %%", "%", "1e1 %", "9" * 400 + " %", "12 % ", "0.12"),
    *("120/80", "120 / 80", "120/", "/80", "120/80/60", "120-80", "9" * 400 + "/80", "-120/80"),
    *("07:30", "7:30", "7:30 pm", "13:00 pm", "24:00", "23:59:59", "23:59:60", "07:30:15.5", "0730", "07.30"),
)
ALPHABET = "0123456789.,%/:eE+-_ nNaAtTrRuUfFlLsS"


def clinic(seed: int, *, gaps: bool) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    rows = 80
    frame = pd.DataFrame(
        {
            "age": rng.normal(60, 12, rows).round(1),
            "smoker": rng.random(rows) < 0.5,
            "ward": rng.choice(["heart", "lung", "7"], rows),
            "code": rng.choice(["007", "7", "12"], rows),
            "grade": rng.choice(["1", "2", "low", "true"], rows, p=(0.2, 0.2, 0.4, 0.2)),
            "hba1c": [f"{value:.1f} %" for value in rng.uniform(4, 12, rows)],
            "pressure": [f"{value}/{value - 40}" for value in rng.integers(90, 180, rows)],
            "admitted": [f"{minute // 60:02}:{minute % 60:02}" for minute in rng.integers(0, 1440, rows)],
            "outcome": rng.choice(["home", "readmitted"], rows),
        }
    )
    if gaps:
        frame = frame.astype(object)
        frame.loc[:3, "age"] = -999
        frame.loc[4:6, "ward"] = None
    return frame


@pytest.fixture(scope="module", params=["refuses gaps", "fills gaps"])
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of rows with columns of every kind."""
    place = tmp_path_factory.mktemp("rows")
    gaps = request.param == "fills gaps"
    (place / "clinics").mkdir()
    for seed, site in enumerate(("north", "south")):
        clinic(seed, gaps=gaps).to_csv(place / "clinics" / f"{site}.csv", index=False)
    sets = ["data.category_columns=code", "data.target=outcome"]
    sets += ["data.missing=mean", 'data.missing_codes=["-999", "hba1c = 99", "ward=roof"]'] if gaps else []
    options = [part for setting in sets for part in ("--set", setting)]
    said = playerfl("run", "clinics", "-a", "fedavg", "--rounds", 1, "-q", *options, "--out", "run", cwd=place)
    assert said.returncode == 0, said.stderr
    with contextlib.chdir(place):
        package.export_model("run", "north", "model")
    return place / "model"


@pytest.fixture(autouse=True)
def read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(predicting, "read_folder", lru_cache(read_folder))


@lru_cache
def loader_of(model: Path) -> Any:
    spec = importlib.util.spec_from_file_location("load_model", model / "load_model.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert isinstance(module, ModuleType)
    return module.load(model)


def by_command(model: Path, row: dict[str, str]) -> dict[str, float] | None:
    """What `playerfl predict` says about a row of a CSV file; None if it refuses it."""
    file = model.parent / "new.csv"
    with file.open("w", newline="", encoding="utf-8") as opened:
        writer = csv.DictWriter(opened, row)
        writer.writeheader()
        writer.writerow(row)
    try:
        found = package.predict(model, file)
    except PlayerflError:
        return None
    (answer,) = found.rows
    return {
        t.removeprefix("probability of "): v for t, v in zip(found.columns, answer, strict=True) if t[:5] == "proba"
    }


def by_loader(model: Path, row: dict[str, Any]) -> dict[str, float] | None:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            (answer,) = loader_of(model).predict([row])
    except ValueError as problem:
        assert "row 1" in str(problem)
        return None
    return dict(answer)


def assert_same(model: Path, row: dict[str, str]) -> None:
    command, loader = by_command(model, row), by_loader(model, row)
    assert (command is None) == (loader is None), (row, command, loader)
    assert command is None or command == pytest.approx(loader, abs=1e-6)


@pytest.mark.parametrize("column", USUAL)
def test_one_odd_cell(model: Path, column: str) -> None:
    assert by_command(model, USUAL) is not None
    for text in TEXTS:
        assert_same(model, {**USUAL, column: text})


@given(column=st.sampled_from(list(USUAL)), text=st.text(ALPHABET, max_size=8))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
def test_any_cell(model: Path, column: str, text: str) -> None:
    assert_same(model, {**USUAL, column: text})


def test_columns(model: Path) -> None:
    for row in (
        {name: text for name, text in USUAL.items() if name != "age"},
        {**USUAL, "height": "180"},
        {**USUAL, "outcome": "home"},
        {**dict(reversed(USUAL.items())), "outcome": ""},
        dict.fromkeys(USUAL, ""),
    ):
        loader = by_loader(model, row)
        try:
            command = by_command(model, row)
        except ValueError:
            command = None  # a blank line is no row, so there is nothing to compare
        assert (command is None) == (loader is None), row


def test_values_that_are_not_text(model: Path) -> None:
    """The same rows from Python objects and from a Parquet file, which has types."""
    pytest.importorskip("pyarrow")
    typed: dict[str, tuple[Any, ...]] = {
        "age": (61, 61.5, -999, 9999, True, math.inf, math.nan, None, 10**30),
        "smoker": (True, False, 1, 0, 1.0, 5, 0.5, None, math.nan),
        "grade": (1, 2, 2.0, 1.5, True, False, "low", None),
        "hba1c": (6.5, 99, 99.0, True, None, "6.5 %"),
        "pressure": (120, "120/80", None),
        "admitted": (7, 7.5, "07:30", None),
    }
    usual = {**USUAL, "age": 61.5, "smoker": True}
    for column, values in typed.items():
        for value in values:
            row = {**usual, column: value}
            frame = pd.DataFrame({name: [held] for name, held in row.items()})
            if isinstance(value, int) and value > 2**63:
                frame[column] = float(value)
            frame.to_parquet(model.parent / "new.parquet")
            try:
                found = package.predict(model, model.parent / "new.parquet")
                command: float | None = found.rows[0][found.columns.index("probability of home")]
            except PlayerflError:
                command = None
            loader = by_loader(model, row)
            assert (command is None) == (loader is None), (column, value, command, loader)
            assert loader is None or command == pytest.approx(loader["home"], abs=1e-6)


@pytest.mark.parametrize(("column", "value"), [("age", "old"), ("hba1c", "high"), ("pressure", "120")])
def test_a_prediction_names_only_what_helps_a_prediction(model: Path, column: str, value: str) -> None:
    fills = loader_of(model).about["encoding"]["table"]["fills_missing"]
    pd.DataFrame([{**USUAL, column: value}]).to_csv(model.parent / "odd.csv", index=False)
    with pytest.raises(PlayerflError, match="or clear the cell$" if fills else "or leave out the row$"):
        package.predict(model, model.parent / "odd.csv")


def test_true_is_no_age(model: Path) -> None:
    with pytest.raises(ValueError, match="column 'age': True is not a number; the model was trained with numbers"):
        loader_of(model).predict([{**USUAL, "age": "true"}])
    pd.DataFrame([{**USUAL, "age": "true"}]).to_csv(model.parent / "flag.csv", index=False)
    with pytest.raises(PlayerflError, match="column 'age', row 2: True is not a number"):
        package.predict(model, model.parent / "flag.csv")


@pytest.mark.parametrize("rows", [{"age": 1}, [], ["age"], [[1]], 5, None])
def test_the_loader_says_what_it_takes(model: Path, rows: Any) -> None:
    with pytest.raises(ValueError, match="give a list of rows"):
        loader_of(model).predict(rows)


def test_objects_of_any_kind_are_refused_in_a_sentence(model: Path) -> None:
    for value in ([1], {}, object(), b"61", 1j, np.zeros(3), pd.Timestamp("2020-01-01")):
        for column in USUAL:
            with pytest.raises(ValueError, match=f"row 1, column '{column}'"):
                loader_of(model).predict([{**USUAL, column: value}])
    for value in (pd.NA, pd.NaT):
        assert by_loader(model, {**USUAL, "age": value}) == by_loader(model, {**USUAL, "age": None})
    assert by_loader(model, {**USUAL, "smoker": np.True_, "age": np.float32(61.5)}) == by_loader(model, USUAL)


def test_onnx_makes_up_no_number(model: Path) -> None:
    """From the same inputs the ONNX file gives the same probabilities, and nan where the command refuses."""
    onnxruntime = pytest.importorskip("onnxruntime")
    session = onnxruntime.InferenceSession(model / "model.onnx", providers=["CPUExecutionProvider"])
    usual = loader_of(model).inputs([USUAL])
    fills = json.loads((model / "model.json").read_text())["encoding"]["table"]["fills_missing"]
    for position in range(usual.shape[1]):
        for value in (0.0, 1.0, -999.0, 9999.0, 1e30, -1e30, math.nan, math.inf, -math.inf):
            raw = usual.clone()
            raw[0, position] = value
            (found,) = session.run(None, {"inputs": raw.numpy()})
            with torch.inference_mode():
                expected = loader_of(model).program(raw).softmax(1)
            torch.testing.assert_close(torch.from_numpy(found), expected, rtol=1e-5, atol=1e-5, equal_nan=True)
            made_up = math.isfinite(value) or (math.isnan(value) and fills)
            assert bool(torch.isfinite(expected).all()) == made_up, (position, value)
