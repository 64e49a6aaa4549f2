"""Model folders: complete, readable with torch alone, and refused in one sentence if they are not what they claim."""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

import own_data
from command_line import playerfl, refused
from playerfl.export.folder import read_folder

pytestmark = pytest.mark.slow  # they share a run and an export, which take seconds

NEW = "age,dose,ward,smoker\n61.5,2,heart,true\n48.0,4,lung,false\n"


@pytest.fixture
def folder(place: Path, tmp_path: Path) -> Path:
    (tmp_path / "new.csv").write_text(NEW)
    return shutil.copytree(place / "model", tmp_path / "model")


def test_it_has_everything(place: Path) -> None:
    model = place / "model"
    about = json.loads((model / "model.json").read_text())
    experiment = (place / "runs" / "player_fl" / "experiment.toml").read_text()
    assert {file.name for file in model.iterdir()} == {
        "README.md",
        "experiment.toml",
        "graph.json",
        "load_model.py",
        "model.json",
        "weights.safetensors",
    }
    assert about["site"] == "north"
    assert about["sites"] == {"north": 38, "south": 39}
    assert about["test"]["rows"] == 12
    assert about["layers"]["shared"] + about["layers"]["private"] == ["fc1", "fc2", "fc3"]
    assert about["environment"]["torch"] == torch.__version__
    assert (about["experiment"]["seed"], about["experiment"]["algorithm"]["name"]) == (0, "player_fl")
    assert [c["kind"]["name"] for c in about["encoding"]["table"]["columns"]] == ["age", "dose", "ward", "smoker"]
    assert (model / "experiment.toml").read_text().splitlines()[:3] == experiment.splitlines()[:3]


def test_the_card_says_in_words_what_the_model_is(place: Path) -> None:
    card = (place / "model" / "README.md").read_text()
    about = json.loads((place / "model" / "model.json").read_text())
    assert "# A model of outcome for north" in card
    assert "probability of each of 2 classes: ill, well" in card
    assert "| ward | one of: heart, lung |" in card
    assert "On 12 test rows of north" in card
    accuracy, interval = about["test"]["scores"]["accuracy"], about["test"]["intervals"]["accuracy"]
    assert interval[0] <= accuracy <= interval[1]
    assert f"| accuracy | {accuracy:.4f}" in card
    assert "on 38 training rows of north, together with south (39 rows)" in card
    assert "never left north" in card or "No layer was shared" in card
    assert "There is no ONNX file: it was not asked for." in card


@pytest.mark.system
def test_the_loader_needs_torch_only(folder: Path) -> None:
    """In a process where nothing else can be imported, the same probabilities come out."""
    said = playerfl("predict", folder, folder.parent / "new.csv", cwd=folder)
    probabilities = [float(line.split(",")[2]) for line in said.stdout.splitlines()[1:]]
    rows = [
        {"age": 61.5, "dose": 2, "ward": "heart", "smoker": True},
        {"age": 48.0, "dose": 4, "ward": "lung", "smoker": False},
    ]
    code = f"""
import sys
for name in ("playerfl", "safetensors", "pandas", "pydantic"):
    sys.modules[name] = None
from load_model import load
print([row["ill"] for row in load(".").predict({rows!r})])
try:
    load(".").predict([{{**{rows[0]!r}, "ward": "roof"}}])
except ValueError as problem:
    print(problem)
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    first, second = done.stdout.splitlines()
    assert json.loads(first) == probabilities
    assert second == "ward: 'roof' is not one of heart, lung"


def changed_json(name: str, change: Callable[[Any], None], *, sign: bool = True) -> Callable[[Path], None]:
    """Changes a JSON file as an attacker would: with the fingerprint in model.json made to fit."""

    def damage(folder: Path) -> None:
        content = json.loads((folder / name).read_text())
        change(content)
        (folder / name).write_text(json.dumps(content))
        if sign and name != "model.json":
            resign(folder)

    return damage


def resign(folder: Path) -> None:
    about = json.loads((folder / "model.json").read_text())
    for name in about["fingerprints"]:
        about["fingerprints"][name] = hashlib.sha256((folder / name).read_bytes()).hexdigest()
    (folder / "model.json").write_text(json.dumps(about))


def tensors(change: Callable[[dict[str, torch.Tensor]], None], *, sign: bool = True) -> Callable[[Path], None]:
    def damage(folder: Path) -> None:
        held = load_file(folder / "weights.safetensors")
        change(held)
        save_file(held, folder / "weights.safetensors")
        if sign:
            resign(folder)

    return damage


def header(old: bytes, new: bytes) -> Callable[[Path], None]:
    def damage(folder: Path) -> None:
        file = folder / "weights.safetensors"
        assert old in file.read_bytes()
        file.write_bytes(file.read_bytes().replace(old, new, 1))
        resign(folder)

    return damage


def first_call(called: str) -> Callable[[Any], None]:
    return lambda graph: graph["calls"][0].__setitem__(1, called)


DAMAGES: dict[str, tuple[Callable[[Path], None], str]] = {
    "no weights": (lambda f: (f / "weights.safetensors").unlink(), "has no file weights.safetensors"),
    "no model.json": (lambda f: (f / "model.json").unlink(), "has no file model.json"),
    "a link instead of a file": (
        lambda f: ((f / "graph.json").unlink(), (f / "graph.json").symlink_to("/etc/passwd"))[0],
        "has no file graph.json",
    ),
    "not JSON": (lambda f: (f / "model.json").write_text("{"), "cannot be read"),
    "JSON of another kind": (lambda f: (f / "model.json").write_text("[1]"), "was not written by this version"),
    "deep JSON": (lambda f: (f / "model.json").write_text("[" * 100_000), "cannot be read"),
    "another format": (changed_json("model.json", lambda a: a.update(format="playerfl model 9")), "playerfl model 9"),
    "a key is missing": (changed_json("model.json", lambda a: a.pop("inputs")), "inputs: Field required"),
    "no target": (changed_json("model.json", lambda a: a["encoding"].pop("target")), "does not say what"),
    "a missing scale": (
        changed_json("model.json", lambda a: a["encoding"]["table"]["columns"][0]["scales"].pop()),
        "has 0 scales for 1 inputs",
    ),
    "a third class": (
        changed_json("model.json", lambda a: a["encoding"]["target"]["classes"].append("dead")),
        "but 3 classes",
    ),
    "another column": (
        changed_json("model.json", lambda a: a["encoding"]["table"]["columns"].pop()),
        "which the model does not know",
    ),
    "changed weights": (
        tensors(lambda t: t.update({k: v + 1 for k, v in t.items() if v.is_floating_point()}), sign=False),
        "has been changed since the model was exported",
    ),
    "a weight is missing": (tensors(lambda t: t.pop("model.fc1.weight")), "KeyError: 'model.fc1.weight'"),
    "a weight of another shape": (
        tensors(lambda t: t.update({"model.fc1.weight": torch.zeros(3, 3)})),
        "the model in",
    ),
    "a shape that the bytes do not fill": (
        header(b'"shape":[64]', b'"shape":[65]'),
        "has the shape [65], but 256 bytes",
    ),
    "a header longer than the file": (
        lambda f: ((f / "weights.safetensors").write_bytes(b"\xff" * 32), resign(f))[0],
        "its header is longer than the file",
    ),
    "a forbidden operation": (
        changed_json("graph.json", first_call("aten.from_file.default")),
        "the operation 'aten.from_file.default' is not allowed in a model",
    ),
    "Python as an operation": (changed_json("graph.json", first_call("os.system")), "is not allowed in a model"),
    "a value that is not there": (
        changed_json("graph.json", lambda g: g.update(output="elsewhere")),
        "the model in",
    ),
    "no operations": (changed_json("graph.json", lambda g: g.pop("calls")), "KeyError: 'calls'"),
    "changed operations": (
        changed_json("graph.json", lambda g: g["calls"].pop(), sign=False),
        "has been changed since the model was exported",
    ),
}


@pytest.mark.parametrize("name", DAMAGES)
def test_a_damaged_or_hostile_folder_is_one_sentence(name: str, folder: Path) -> None:
    damage, says = DAMAGES[name]
    damage(folder)
    assert says in refused(playerfl("predict", "model", "new.csv", cwd=folder.parent))


def test_reading_runs_no_code_of_the_folder(folder: Path) -> None:
    (folder / "load_model.py").write_text("raise SystemExit(9)")
    assert playerfl("predict", "model", "new.csv", cwd=folder.parent).returncode == 0


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ("export runs/local --out new", "give the site with --site; the run has: north, south"),
        ("export runs/local --site nort --out new", "unknown site 'nort'; did you mean 'north'?"),
        ("export runs/local --site north", "give the folder to write with --out"),
        ("export runs --site north --out new", "compares several algorithms; export one of its runs: runs/local"),
        ("export nowhere --site north --out new", "there is no run in nowhere"),
        ("export runs/local --site north --out model", "model already holds a model; replace it with --overwrite"),
        ("export runs/local --site north --out hospitals", "holds something that is not a model"),
        ("export --site north --out new", "give either a run, or --state STATE/JOB"),
        ("export runs/local --task hospitals --site north --out new", "--task is only for --state"),
        ("export --state runs/local --site north --out new", "it has no model.safetensors"),
    ],
)
def test_what_cannot_be_exported(place: Path, arguments: str, says: str) -> None:
    assert says in refused(playerfl(*arguments.split(), cwd=place))


def test_data_that_have_changed_are_noticed(place: Path, tmp_path: Path) -> None:
    here = shutil.copytree(place, tmp_path / "here")
    own_data.set_cell(here / "hospitals", "age", 17.0, site="north")
    said = refused(playerfl("export", "runs/local", "--site", "north", "--out", "new", cwd=here))
    assert "the data of hospitals have changed since the run in runs/local" in said
    assert not (here / "new").exists()


def test_an_export_replaces_a_model_whole(place: Path, tmp_path: Path) -> None:
    here = shutil.copytree(place, tmp_path / "here")
    (here / "model" / "left over").touch()
    arguments = ("export", "runs/local", "--site", "south", "--out", "model", "--overwrite", "--no-onnx")
    assert playerfl(*arguments, cwd=here).returncode == 0
    assert read_folder(here / "model").about["site"] == "south"
    assert not (here / "model" / "left over").exists()
    assert read_folder(here / "model").about["layers"]["shared"] == []
