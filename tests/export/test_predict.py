"""Predictions: those of the run on its own test rows, in the target's units, and refusals that name the cell."""

from __future__ import annotations

import contextlib
import csv
import io
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

import own_data
import playerfl as package
from command_line import playerfl, refused
from playerfl.export.predict import predict
from playerfl.export.write import export_model
from playerfl.learning.metrics import accuracy, macro_f1
from playerfl.tasks.folder import FolderOptions, folder_task
from playerfl.tasks.load import load_task

pytestmark = pytest.mark.slow  # they share a run and an export, which take seconds

HEAD = "age,dose,ward,smoker"


def table_of(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text)))


def loaded(folder: Path, **options: Any) -> Any:
    chosen = FolderOptions(**options)
    return folder_task(folder).for_options(chosen).load_sites(chosen)


def test_rows(place: Path, sites: Any, site: str) -> pd.DataFrame:
    """The rows of a site's file that were its test rows, in the order of the test part."""
    frame = pd.read_csv(place / "hospitals" / f"{site}.csv")
    encoding, test = sites.encodings[site], sites[site].test
    inputs, cells = encoding.inputs.encode(frame), frame[encoding.target.name]
    if encoding.target.classes:
        targets = torch.tensor([encoding.target.classes.index(cell) for cell in cells])
    else:
        targets = encoding.target.scaled(torch.tensor(cells.to_numpy()))
    same = ((inputs == row).all(1) & (targets == t) for row, t in zip(test.inputs, test.targets, strict=True))
    positions = [int(rows.long().argmax()) for rows in same]
    assert torch.equal(inputs[positions], test.inputs)
    assert torch.equal(targets[positions], test.targets)
    return frame.iloc[positions]


test_rows.__test__ = False  # type: ignore[attr-defined]


def test_the_runs_test_scores_come_out_exactly(place: Path, tmp_path: Path) -> None:
    sites = loaded(place / "hospitals")
    rows = test_rows(place, sites, "north")
    rows.to_csv(tmp_path / "test.csv", index=False)
    with contextlib.chdir(place):
        stored = package.load_result("runs/player_fl").site_scores["north"]
        answers = table_of(predict("model", tmp_path / "test.csv").csv())
    classes = sites.encodings["north"].target.classes
    predicted = torch.tensor([classes.index(row["predicted outcome"]) for row in answers])
    truth = sites["north"].test.targets
    assert accuracy(predicted, truth) == stored["accuracy"]
    assert macro_f1(predicted, truth) == stored["f1"]
    of_truth = [float(row[f"probability of {classes[t]}"]) for row, t in zip(answers, truth.tolist(), strict=True)]
    assert -np.log(of_truth).mean() == pytest.approx(stored["loss"], rel=1e-6)
    assert [row["row"] for row in answers] == [str(i) for i in range(2, len(rows) + 2)]


def test_numbers_are_in_the_targets_units(place: Path, tmp_path: Path) -> None:
    settings = ("--set", "data.target=age", "--set", "data.missing=mean", "--set", "data.drop_columns=outcome")
    said = playerfl(
        "run", "hospitals", "-a", "fedavg", *settings, "--rounds", 3, "-q", "--out", tmp_path / "run", cwd=place
    )
    assert said.returncode == 0, said.stderr
    sites = loaded(place / "hospitals", target="age", missing="mean", drop_columns=("outcome",))
    rows = test_rows(place, sites, "south")
    rows.drop(columns="age").to_csv(tmp_path / "test.csv", index=False)
    with contextlib.chdir(place):
        export_model(tmp_path / "run", "south", tmp_path / "model", onnx="never")
        stored = package.load_result(tmp_path / "run").site_scores["south"]
    answers = predict(tmp_path / "model", tmp_path / "test.csv")
    assert answers.columns[:3] == ("row", "outcome", "predicted age")
    target = sites.encodings["south"].target
    errors = (np.array([row[2] for row in answers.rows]) - rows["age"].to_numpy()) / target.spread
    assert (errors**2).mean() == pytest.approx(stored["loss"], rel=1e-5)
    # A missing value is filled in, since the model was trained that way.
    (tmp_path / "gap.csv").write_text("dose,ward,smoker\n,heart,true\n")
    assert len(predict(tmp_path / "model", tmp_path / "gap.csv").rows) == 1


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (
            f"{HEAD}\n61,2,roof,true\n",
            "new.csv, column 'ward', row 2: 'roof' is an unknown category; known: heart, lung",
        ),
        (
            f"{HEAD}\n61,2,lung,true\nold,2,lung,true\n",
            "new.csv, column 'age', row 3: 'old' is text in a column of numbers",
        ),
        (f"{HEAD}\n61,,lung,true\n", "new.csv, column 'dose', row 2: the value is missing"),
        (f"{HEAD}\n61,2,lung,7\n", "new.csv, column 'smoker', row 2: 7 is not true or false"),
        (f"{HEAD}\n1e300,2,lung,true\n", "new.csv, column 'age', row 2: 1e+300 is too large"),
        ("age,dose,ward\n61,2,lung\n", "new.csv has no column 'smoker'; the model needs it"),
        (f"{HEAD},height\n61,2,lung,true,180\n", "new.csv has a column 'height', which the model does not know"),
        (f"{HEAD},age\n61,2,lung,true,3\n", "new.csv has several columns called 'age'"),
        (f"{HEAD}\n", "new.csv has no rows"),
        ("", "new.csv is empty"),
        (f"{HEAD}\n61,2,lung,true,9,9\n", "new.csv has rows with more values than the 4 columns"),
    ],
)
def test_a_row_the_model_cannot_read_is_named(place: Path, tmp_path: Path, content: str, says: str) -> None:
    (tmp_path / "new.csv").write_text(content)
    assert says in refused(playerfl("predict", place / "model", "new.csv", cwd=tmp_path))


def test_columns_in_another_order_and_the_target_do_not_matter(place: Path, tmp_path: Path) -> None:
    (tmp_path / "one.csv").write_text(f"{HEAD}\n61,2,lung,true\n")
    (tmp_path / "other.csv").write_text("outcome,smoker,ward,dose,age\nwell,True,lung,2.0,61.0\n")
    assert predict(place / "model", tmp_path / "one.csv") == predict(place / "model", tmp_path / "other.csv")


@pytest.mark.parametrize(
    ("new", "says"),
    [("nowhere.csv", "there is no file nowhere.csv"), (".", ". is not a table"), ("x.txt", "x.txt is not a table")],
)
def test_what_is_no_table_is_refused(place: Path, tmp_path: Path, new: str, says: str) -> None:
    (tmp_path / "x.txt").touch()
    assert says in refused(playerfl("predict", place / "model", new, cwd=tmp_path))


def test_files_are_not_replaced_by_accident(place: Path, tmp_path: Path) -> None:
    (tmp_path / "new.csv").write_text(f"{HEAD}\n61,2,lung,true\n")
    run = ("predict", place / "model", "new.csv", "--out")
    assert "is the table to predict for" in refused(playerfl(*run, "new.csv", "--overwrite", cwd=tmp_path))
    assert playerfl(*run, "deep/out.csv", cwd=tmp_path).returncode == 0
    assert "replace it with --overwrite" in refused(playerfl(*run, "deep/out.csv", cwd=tmp_path))
    assert "is a folder" in refused(playerfl(*run, "deep", cwd=tmp_path))
    assert playerfl(*run, "deep/out.csv", "--overwrite", cwd=tmp_path).returncode == 0
    assert len(table_of((tmp_path / "deep" / "out.csv").read_text())) == 1


def test_no_cell_is_a_formula(tmp_path: Path) -> None:
    folder = tmp_path / "hospitals"
    folder.mkdir()
    for seed, site in enumerate(("north", "south")):
        frame = own_data.table(seed=seed).assign(patient=[f"=cmd({i})" for i in range(own_data.ROWS)])
        frame["outcome"] = frame["outcome"].map({"ill": "=HYPERLINK(1)", "well": "+well"})
        frame.to_csv(folder / f"{site}.csv", index=False)
    run = ("run", folder, "-a", "local", "--rounds", 1, "-q", "--out", tmp_path / "run")
    assert (
        playerfl(*run, "--set", "data.target=outcome", "--set", "data.drop_columns=patient", cwd=tmp_path).returncode
        == 0
    )
    export_model(tmp_path / "run", "north", tmp_path / "model", onnx="never")
    (tmp_path / "new.csv").write_text(f'{HEAD},patient\n61,2,lung,true,"=1+1"\n')
    said = playerfl("predict", tmp_path / "model", "new.csv", cwd=tmp_path).stdout
    head, row = csv.reader(io.StringIO(said))
    assert head[:3] == ["row", "patient", "predicted outcome"]
    assert row[1] == "'=1+1"
    assert row[2] in ("'=HYPERLINK(1)", "'+well")
    assert not any(cell.startswith(("=", "+", "@")) for cell in (*head, *row))


def test_pictures(tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image")
    random = np.random.default_rng(0)
    for site in ("north", "south"):
        for number, name in enumerate(("dark", "light")):
            (tmp_path / "skin" / site / name).mkdir(parents=True)
            for i in range(20):
                pixels = random.integers(0, 120, (9, 11, 3)) + 130 * number
                image.fromarray(pixels.astype(np.uint8)).save(tmp_path / "skin" / site / name / f"{name}-{i}.png")
    sets = ("--set", "data.image_size=8", "--set", "training.batch_size=4")
    with contextlib.chdir(tmp_path):
        said = playerfl("run", "skin", "-a", "fedavg", *sets, "--rounds", 2, "-q", "--out", "run", cwd=tmp_path)
        assert said.returncode == 0, said.stderr
        assert playerfl("export", "run", "--site", "north", "--out", "model", cwd=tmp_path).returncode == 0
        stored = package.load_result("run").site_scores["north"]
        sites = loaded(Path("skin"), image_size=8)
    (tmp_path / "new").mkdir()
    for file in (tmp_path / "skin" / "north").glob("*/*.png"):
        shutil.copy(file, tmp_path / "new")
    answers = predict(tmp_path / "model", tmp_path / "new")
    *plain, mark = answers.columns
    assert (plain, mark) == (
        ["file", "predicted class", "probability of dark", "probability of light"],
        "outside training range",
    )
    assert {row[-1] for row in answers.rows} == {""}
    by_name = {row[0]: row[1] for row in answers.rows}
    inputs = {f.name: sites.encodings["north"].inputs.encode([f])[0] for f in (tmp_path / "new").iterdir()}
    test = sites["north"].test
    named = [next(name for name, x in inputs.items() if torch.equal(x, row)) for row in test.inputs]
    hits = [by_name[name] == ("dark", "light")[t] for name, t in zip(named, test.targets.tolist(), strict=True)]
    assert sum(hits) / len(hits) == stored["accuracy"]
    one = predict(tmp_path / "model", tmp_path / "new" / "dark-0.png").rows
    if (tmp_path / "model" / "model.onnx").exists():
        onnxruntime = pytest.importorskip("onnxruntime")
        session = onnxruntime.InferenceSession(tmp_path / "model" / "model.onnx", providers=["CPUExecutionProvider"])
        (found,) = session.run(None, {"pixels": ((inputs["dark-0.png"][None] + 1) * 127.5).numpy()})
        assert found[0].tolist() == pytest.approx(list(one[0][2:4]), abs=1e-5)
    image.fromarray(np.full((9, 11, 3), 255, np.uint8)).save(tmp_path / "blank.png")
    blank = predict(tmp_path / "model", tmp_path / "blank.png")
    assert blank.rows[0][-1] == "contrast"
    assert "'contrast' in 1 row (blank.png: 0, usual is " in blank.warnings[0]
    (tmp_path / "new" / "notes.txt").touch()
    assert "is not a .png or .jpg image" in refused(playerfl("predict", "model", "new", cwd=tmp_path))
    (tmp_path / "broken.png").write_bytes(b"\x89PNG no")
    assert "is not a readable PNG or JPEG image" in refused(playerfl("predict", "model", "broken.png", cwd=tmp_path))


def test_a_bundled_task_takes_arrays(tmp_path: Path) -> None:
    assert playerfl("run", "digits", "-a", "fedavg", "--rounds", 1, "-q", "--out", "run", cwd=tmp_path).returncode == 0
    assert playerfl("export", "run", "--site", "site-0", "--out", "model", "--no-onnx", cwd=tmp_path).returncode == 0
    task = load_task("digits")
    test = task.load_sites(task.options())["site-0"].test
    np.savez(tmp_path / "new.npz", inputs=test.inputs.numpy())
    answers = predict(tmp_path / "model", tmp_path / "new.npz")
    predicted = torch.tensor([int(row[1]) for row in answers.rows])
    with contextlib.chdir(tmp_path):
        assert accuracy(predicted, test.targets) == package.load_result("run").site_scores["site-0"]["accuracy"]
    np.savez(tmp_path / "flat.npz", inputs=test.inputs.numpy().reshape(len(test), -1))
    assert "the model takes (rows, 1, 8, 8)" in refused(playerfl("predict", "model", "flat.npz", cwd=tmp_path))
    np.savez(tmp_path / "x.npz", x=test.inputs.numpy())
    assert "x.npz has no array 'inputs'" in refused(playerfl("predict", "model", "x.npz", cwd=tmp_path))


class Words(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = torch.nn.Embedding(50, 8)
        self.head = torch.nn.Linear(8, 2)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.head(self.embedding(tokens).mean(1))


def test_arrays_that_are_not_like_the_training_data(tmp_path: Path) -> None:
    tokens = torch.randint(50, (60, 6), generator=torch.Generator().manual_seed(0))
    sites = dict.fromkeys(("a", "b"), (tokens, tokens[:, 0] % 2))
    package.run(package.own_task(Words, sites), "fedavg", rounds=1, out=tmp_path / "run")
    export_model(tmp_path / "run", "a", tmp_path / "model", task=package.own_task(Words, sites), onnx="never")
    for values, says in (
        (tokens.numpy() + 0.5, "takes whole numbers"),
        (np.full((2, 6), np.nan), "takes whole numbers"),
        (tokens.numpy() + 1000, "fails on these inputs: index out of range"),
        (tokens.numpy()[:0], "new.npz has no rows"),
    ):
        np.savez(tmp_path / "new.npz", inputs=values)
        assert says in refused(playerfl("predict", "model", "new.npz", cwd=tmp_path))
    np.savez(tmp_path / "new.npz", inputs=tokens.numpy().astype(np.float64))
    assert len(predict(tmp_path / "model", tmp_path / "new.npz").rows) == 60


def test_numbers_far_from_the_training_data_in_an_array(tmp_path: Path) -> None:
    x = torch.randn(90, 4, generator=torch.Generator().manual_seed(0))
    sites = {name: (x, (x[:, 0] > 0).long()) for name in ("a", "b")}
    task = package.own_task(lambda: torch.nn.Linear(4, 2), sites)
    package.run(task, "fedavg", rounds=1, out=tmp_path / "run")
    export_model(tmp_path / "run", "a", tmp_path / "model", task=task, onnx="never")
    new = x.numpy()[:3].copy()
    new[1, 2] = 255
    np.savez(tmp_path / "new.npz", inputs=new)
    found = predict(tmp_path / "model", tmp_path / "new.npz")
    assert [row[-1] for row in found.rows] == ["", "inputs[2]", ""]
    assert "new.npz, row 2: 255, usual is" in found.warnings[0]
    # Not "the model diverged": the value is at fault.
    new[2, 0] = np.inf
    np.savez(tmp_path / "new.npz", inputs=new)
    said = refused(playerfl("predict", "model", "new.npz", cwd=tmp_path))
    assert "new.npz, row 3: a value is infinite or not a number" in said


class Pair(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(4, 2)

    def forward(self, ids: torch.Tensor, mask: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"logits": self.layer(ids) * mask[:, None]}


def test_a_model_with_named_inputs(tmp_path: Path) -> None:
    x = torch.randn(60, 4, generator=torch.Generator().manual_seed(0))
    inputs = {"ids": x, "mask": torch.ones(60)}
    task = package.own_task(Pair, {"a": (inputs, (x[:, 0] > 0).long()), "b": (inputs, (x[:, 0] > 0).long())})
    result = package.run(task, "fedper", rounds=1, out=tmp_path / "run", settings={"algorithm.personal_layers": 1})
    exported = export_model(tmp_path / "run", "a", tmp_path / "model", task=task, onnx="never")
    assert exported.largest_difference == 0
    np.savez(tmp_path / "new.npz", ids=x.numpy(), mask=np.ones(60, dtype=np.float32))
    with torch.inference_mode():
        expected = result.model("a")(**inputs)["logits"].argmax(1).tolist()
    assert [int(row[1]) for row in predict(tmp_path / "model", tmp_path / "new.npz").rows] == expected


def test_a_table_of_arrays_needs_no_targets(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    (tmp_path / "sites").mkdir()
    for site in ("north", "south"):
        x = random.normal(size=(60, 3))
        np.savez(tmp_path / "sites" / f"{site}.npz", x=x, y=(x[:, 0] > 0).astype(int))
    assert playerfl("run", "sites", "-a", "local", "--rounds", 1, "-q", "--out", "run", cwd=tmp_path).returncode == 0
    assert playerfl("export", "run", "--site", "north", "--out", "model", "--no-onnx", cwd=tmp_path).returncode == 0
    np.savez(tmp_path / "new.npz", x=random.normal(size=(4, 3)))
    assert [row[0] for row in predict(tmp_path / "model", tmp_path / "new.npz").rows] == [1, 2, 3, 4]
    np.savez(tmp_path / "wide.npz", x=random.normal(size=(4, 5)))
    assert "wide.npz has a column 'x3'" in refused(playerfl("predict", "model", "wide.npz", cwd=tmp_path))
