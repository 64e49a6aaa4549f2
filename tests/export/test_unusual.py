"""Values far from the training rows are marked, counted and, on request, refused; ranges give away no patient."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

import playerfl as package
from command_line import playerfl, refused
from playerfl.errors import DataError
from playerfl.export.load_model import load
from playerfl.export.ranges import ROWS_BEYOND, tensor_ranges, value_range

HEAD = "age,dose,ward,smoker"
MARK = "outside training range"


def marks(found: Any) -> list[str]:
    return [row[found.columns.index(MARK)] for row in found.rows]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("row", "odd"),
    [
        ("61,2,heart,true", ""),
        ("9999,2,heart,true", "age"),
        ("-999,2,heart,true", "age"),
        ("-1,2,heart,true", "age"),
        ("0.61,2,heart,true", "age"),
        ("6100,-2,heart,true", "age; dose"),
        ("1e30,2,lung,false", "age"),
    ],
)
def test_a_row_says_which_values_are_outside(place: Path, tmp_path: Path, row: str, odd: str) -> None:
    (tmp_path / "new.csv").write_text(f"{HEAD}\n{row}\n")
    found = package.predict(place / "model", tmp_path / "new.csv")
    assert marks(found) == [odd]
    assert bool(found.warnings) == bool(odd)


@pytest.mark.slow
def test_the_command_counts_them_and_strict_refuses(place: Path, tmp_path: Path) -> None:
    (tmp_path / "new.csv").write_text(f"{HEAD}\n61,2,heart,true\n9999,2,lung,false\n-999,77,lung,false\n")
    said = playerfl("predict", place / "model", "new.csv", "--out", "out.csv", cwd=tmp_path)
    assert said.returncode == 0
    assert "warning: 2 of 3 rows have values outside the usual range of north's training rows" in said.stderr
    assert "'age' in 2 rows (new.csv, row 3: 9999, usual is " in said.stderr
    assert "'dose' in 1 row (new.csv, row 4: 77, usual is " in said.stderr
    assert [line.rpartition(",")[2] for line in (tmp_path / "out.csv").read_text().splitlines()] == [
        *(MARK, "", "age", "age; dose")
    ]
    sentence = refused(playerfl("predict", place / "model", "new.csv", "--strict", "--out", "strict.csv", cwd=tmp_path))
    assert "2 of 3 rows have values outside" in sentence
    assert not (tmp_path / "strict.csv").exists()
    (tmp_path / "new.csv").write_text(f"{HEAD}\n61,2,heart,true\n")
    assert playerfl("predict", place / "model", "new.csv", "--strict", cwd=tmp_path).returncode == 0


@pytest.mark.slow
def test_the_loader_warns_of_the_same_rows(place: Path) -> None:
    rows = [{"age": age, "dose": 2, "ward": "lung", "smoker": True} for age in (61, 9999)]
    model = load(place / "model")
    with pytest.warns(UserWarning, match=r"outside the training range: row 2 \(age\)"):
        model.predict(rows)
    assert model.outside(model.inputs(rows)) == [[], ["age"]]


@pytest.mark.slow
def test_a_whole_file_in_other_units_is_noticed(place: Path, tmp_path: Path) -> None:
    """Every single age could be a patient's, but not all of them together."""
    frame = pd.read_csv(place / "hospitals" / "north.csv").drop(columns="outcome").head(12)
    frame.to_csv(tmp_path / "new.csv", index=False)
    assert package.predict(place / "model", tmp_path / "new.csv").warnings == ()
    frame["age"] = frame["age"] / 100 + 30
    frame.to_csv(tmp_path / "new.csv", index=False)
    (warning,) = package.predict(place / "model", tmp_path / "new.csv").warnings
    assert warning.startswith("all 12 values of 'age' (30.")
    assert "are they in the same units?" in warning
    with pytest.raises(DataError, match="strict: nothing is predicted"):
        package.predict(place / "model", tmp_path / "new.csv", strict=True)


@pytest.mark.slow
def test_a_category_that_the_site_never_had(tmp_path: Path) -> None:
    (tmp_path / "clinics").mkdir()
    random = np.random.default_rng(0)
    for site, wards in (("north", ["heart", "heart"]), ("south", ["heart", "lung"])):
        frame = pd.DataFrame({"age": random.normal(60, 9, 60).round(), "ward": random.choice(wards, 60)})
        frame["flag"] = site == "south"
        frame["same"] = 5.0
        frame.assign(outcome=random.choice(["a", "b"], 60)).to_csv(tmp_path / "clinics" / f"{site}.csv", index=False)
    run = ("run", "clinics", "-a", "fedavg", "--rounds", 1, "-q", "--out", "run")
    assert playerfl(*run, cwd=tmp_path).returncode == 0
    assert playerfl("export", "run", "--site", "north", "--out", "model", "--no-onnx", cwd=tmp_path).returncode == 0
    (tmp_path / "new.csv").write_text("age,ward,flag,same\n60,heart,false,5\n60,lung,false,5\n60,heart,true,6\n")
    found = package.predict(tmp_path / "model", tmp_path / "new.csv")
    assert marks(found) == ["", "ward", "flag; same"]
    (warning,) = found.warnings
    assert "no training row has 'ward = lung'" in warning
    assert "no training row has 'flag' = true" in warning


@pytest.mark.slow
def test_missing_values_that_were_filled_in_are_named(tmp_path: Path) -> None:
    (tmp_path / "clinics").mkdir()
    random = np.random.default_rng(0)
    for site in ("north", "south"):
        frame = pd.DataFrame({"age": random.normal(60, 9, 60).round(), "crp": random.normal(5, 1, 60)})
        frame.loc[::2, "crp"] = -999
        frame.assign(outcome=random.choice(["a", "b"], 60)).to_csv(tmp_path / "clinics" / f"{site}.csv", index=False)
    sets = ("--set", "data.missing=mean", "--set", "data.missing_codes=-999")
    run = ("run", "clinics", "-a", "local", "--rounds", 1, "-q", *sets, "--out", "run")
    assert playerfl(*run, cwd=tmp_path).returncode == 0
    assert playerfl("export", "run", "--site", "north", "--out", "model", "--no-onnx", cwd=tmp_path).returncode == 0
    (tmp_path / "new.csv").write_text("age,crp\n60,-999\n,5.1\n60,5.2\n60,9999\n")
    found = package.predict(tmp_path / "model", tmp_path / "new.csv")
    filled = [row[found.columns.index("missing values filled in")] for row in found.rows]
    assert filled == ["crp", "age", "", ""]
    assert marks(found) == ["", "", "", "crp"]
    (tmp_path / "empty.csv").write_text("age,crp\n60,5\n-999,\n")
    with pytest.raises(DataError, match=r"empty.csv, row 3: all values are missing"):
        package.predict(tmp_path / "model", tmp_path / "empty.csv")
    # Half of the values are filled in, which must not make the range narrower.
    crp = next(limits for limits in read_ranges(tmp_path / "model") if limits["column"] == "crp")
    assert crp["low"] < 3 and crp["high"] > 7


def read_ranges(model: Path) -> list[dict[str, Any]]:
    ranges: list[dict[str, Any]] = json.loads((model / "model.json").read_text())["ranges"]
    return ranges


@pytest.mark.slow
def test_blank_rows_are_counted(place: Path, tmp_path: Path) -> None:
    (tmp_path / "new.csv").write_text(f"{HEAD}\n61,2,heart,true\n,,,\n\n62,2,heart,true\n\n")
    found = package.predict(place / "model", tmp_path / "new.csv")
    assert [row[0] for row in found.rows] == [2, 5]
    assert found.warnings == ("2 rows have no values (the first is row 3 of new.csv), and no prediction",)


@pytest.mark.slow
def test_a_folder_without_ranges_says_so(place: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(place / "model", tmp_path / "model")
    about = json.loads((folder / "model.json").read_text())
    del about["ranges"]
    (folder / "model.json").write_text(json.dumps(about))
    (tmp_path / "new.csv").write_text(f"{HEAD}\n9999,2,heart,true\n")
    found = package.predict(folder, tmp_path / "new.csv")
    assert MARK not in found.columns
    assert "does not say which values its training rows had" in found.warnings[0]


@pytest.mark.slow
@pytest.mark.parametrize("changed", [{"input": 7}, {"position": 99}, {"low": "x"}, {"low": None}, {"position": -1}])
def test_a_damaged_range_is_one_sentence(place: Path, tmp_path: Path, changed: dict[str, Any]) -> None:
    folder = shutil.copytree(place / "model", tmp_path / "model")
    about = json.loads((folder / "model.json").read_text())
    about["ranges"][0].update(changed)
    (folder / "model.json").write_text(json.dumps(about))
    (tmp_path / "new.csv").write_text(f"{HEAD}\n61,2,heart,true\n")
    assert "ranges" in refused(playerfl("predict", folder, "new.csv", cwd=tmp_path))


@pytest.mark.slow
def test_a_warning_is_one_line_whatever_a_folder_says(place: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(place / "model", tmp_path / "model")
    about = json.loads((folder / "model.json").read_text())
    about["site"] = "north\x1b[2J\nplayerfl: all is well"
    (folder / "model.json").write_text(json.dumps(about))
    (tmp_path / "new.csv").write_text(f"{HEAD}\n9999,2,heart,true\n")
    said = playerfl("predict", folder, "new.csv", cwd=tmp_path)
    assert said.returncode == 0 and "\x1b" not in said.stderr
    assert len(said.stderr.splitlines()) == 1


@pytest.mark.slow
def test_ranges_are_of_training_rows_and_show_no_patient(place: Path) -> None:
    about = json.loads((place / "model" / "model.json").read_text())
    ages = pd.read_csv(place / "hospitals" / "north.csv")["age"].to_numpy()
    limits = about["ranges"][0]
    shown = [limits["low"], limits["high"]]
    assert limits["column"] == "age" and limits["low"] < ages.min() and limits["high"] > ages.max()
    assert min(abs(ages[:, None] - np.array(shown)).ravel()) > 0.01
    card = (place / "model" / "README.md").read_text()
    assert "none is the value of one patient" in card
    assert f"{limits['low']:.3g} to {limits['high']:.3g}" in card


def test_usual_values_are_rarely_outside() -> None:
    random = np.random.default_rng(0)
    for draw in (
        lambda n: random.normal(60, 12, n),
        lambda n: random.uniform(0, 100, n),
        lambda n: random.exponential(3, n),
        lambda n: random.lognormal(1, 1, n),
        lambda n: random.poisson(2, n).astype(float),
        lambda n: random.integers(1, 5, n).astype(float),
    ):
        for rows, most in ((40, 0.05), (400, 0.02), (4000, 0.02)):
            found = value_range(draw(rows))
            assert found is not None
            new = draw(20_000)
            assert ((new < found[0]) | (new > found[1])).mean() < most


@pytest.mark.parametrize("rows", [20, 21, 50, 1000, 5000])
def test_a_limit_is_never_one_row_s_value(rows: int) -> None:
    """Moving the extreme row further away changes nothing, so nothing can be learnt about it."""
    values = np.random.default_rng(1).normal(50, 5, rows)
    far = values.copy()
    for _ in range(ROWS_BEYOND - 1):
        far[far.argmax()] = -1e9
    far[far == -1e9] = 1e6
    assert value_range(values)[1] == pytest.approx(value_range(far)[1])  # type: ignore[index]


def test_few_rows_and_constants() -> None:
    assert value_range(np.arange(19.0)) is None
    low, high, _ = value_range(np.full(100, 5.0)) or (0, 0, None)
    assert low == pytest.approx(5, abs=1e-4) and high == pytest.approx(5, abs=1e-4)
    rare = np.r_[np.zeros(90), np.linspace(1, 2, 10)]
    found = value_range(rare)
    assert found is not None and found[0] == 0 and 2 < found[1] < 4


def test_tensors_have_a_range_by_position_or_one_for_a_picture() -> None:
    random = torch.Generator().manual_seed(0)
    ranges = tensor_ranges(
        {
            "small": torch.randn(200, 2, generator=random),
            "picture": torch.rand(200, 1, 20, 20, generator=random),
            "tokens": torch.zeros(200, 5, dtype=torch.long),
        }
    )
    assert [(limits["column"], limits["input"], limits["position"]) for limits in ranges] == [
        ("small[0]", 0, 0),
        ("small[1]", 0, 1),
        ("picture", 1, None),
    ]


@pytest.mark.slow
def test_batches_of_different_lengths_have_no_range(tmp_path: Path) -> None:
    """A loader may pad each batch to its longest row."""

    class Longest(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.head = torch.nn.Linear(1, 2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.head(x.mean(1, keepdim=True))

    def padded(rows: list[tuple[torch.Tensor, int]]) -> tuple[torch.Tensor, torch.Tensor]:
        values, targets = zip(*rows, strict=True)
        return torch.nn.utils.rnn.pad_sequence(list(values), batch_first=True), torch.tensor(targets)

    rows = [(torch.ones(3 + i % 5) * (i % 2), i % 2) for i in range(40)]
    loaders = [torch.utils.data.DataLoader(rows[part::2], batch_size=3, collate_fn=padded) for part in (0, 1, 0)]  # type: ignore[arg-type]
    parts = dict(zip(("train", "validation", "test"), loaders, strict=True))
    task = package.own_task(Longest, {"a": parts, "b": parts})
    settings = {"data.accept_small_sites": True}
    package.run(task, "fedavg", rounds=1, out=tmp_path / "run", settings=settings)
    package.export_model(tmp_path / "run", "a", tmp_path / "model", task=task, onnx="never")
    assert read_ranges(tmp_path / "model") == []
