"""A model of one's own on any task, settings per algorithm, and inputs that a model cannot be called with."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader

import own_data
import playerfl
from command_line import playerfl as command
from command_line import refused
from playerfl.errors import DataError
from playerfl.runs.experiment import Experiment
from playerfl.runs.settings_table import read_toml
from playerfl.studies.run_file import software

MODEL = """
from torch import nn


def make_model(inputs, outputs):
    return nn.Sequential(nn.Flatten(), nn.Linear(inputs if isinstance(inputs, int) else 64, 7), nn.Linear(7, outputs))


def with_hidden(hidden):
    return nn.Linear(hidden, 2)


class Named(nn.Linear):
    def __init__(self, inputs, outputs):
        super().__init__(inputs, outputs)


class OneMapping(nn.Linear):
    def forward(self, batch):
        return super().forward(batch["x"])


class WantsMapping(nn.Linear):
    def forward(self, batch):
        return super().forward(batch["x"])


def wants_mapping(inputs, outputs):
    return WantsMapping(inputs, outputs)


def three_outputs(inputs):
    return nn.Linear(inputs, 3)


built = nn.Linear(4, 2)
number = 3
"""


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("own-model")
    own_data.hospitals(place / "hospitals")
    (place / "mine.py").write_text(MODEL)
    return place


def run(place: Path, *arguments: object) -> subprocess.CompletedProcess[str]:
    return command("run", "--out", "out", *arguments, "--rounds", 1, "-q", "--overwrite", cwd=place)


@pytest.mark.parametrize("task", ["hospitals", "digits"])
def test_a_function_gets_the_sizes_it_asks_for(place: Path, task: str) -> None:
    assert run(place, task, "-a", "fedavg", "--model", "mine.py:make_model").returncode == 0
    shapes = {name: tuple(entry.shape) for name, entry in _result(place).weights[_result(place).sites[0]].items()}
    assert shapes["1.weight"] == {"hospitals": (7, 5), "digits": (7, 64)}[task]
    assert shapes["2.weight"] == {"hospitals": (2, 7), "digits": (10, 7)}[task]


def _result(place: Path) -> playerfl.RunResult:
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(place)
        result = playerfl.load_result("out")
        assert isinstance(result.model(result.sites[0]), nn.Module)
        return result


def test_the_run_is_the_same_when_the_tasks_model_was_built_before(place: Path) -> None:
    first = run(place, "hospitals", "-a", "local", "--model", "mine.py:Named").stdout
    assert run(place, "hospitals", "-a", "local", "--model", "mine.py:Named").stdout == first


def test_a_study_knows_runs_of_other_models_apart(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(place)
    own = Experiment.resolve({"task": "digits", "model": "mine.py:make_model"})
    assert software(own.names)["code"].keys() == {"mine.py:make_model"}
    assert Experiment.resolve({"task": "digits"}).model_dump().keys() == own.model_dump().keys() - {"model"}


@pytest.mark.parametrize(
    ("model", "says"),
    [
        ("mine.py:with_hidden", "cannot be called without arguments: missing a required argument: 'hidden'"),
        ("mine.py:OneMapping", "cannot be called without arguments"),
        ("mine.py:built", "is a model; give a function that builds it"),
        ("mine.py:number", "is of type int; it must be a function"),
        ("mine.py:mke_model", "did you mean 'make_model'?"),
        ("heart", "model heart does not name an object; write mymodule:name or file.py:name"),
    ],
)
def test_what_is_no_model_is_refused(place: Path, model: str, says: str) -> None:
    assert says in refused(run(place, "hospitals", "--model", model))


def test_a_number_needs_one_output(place: Path) -> None:
    text = refused(run(place, "hospitals", "--model", "mine.py:three_outputs", "--set", "data.target=age"))
    assert text.endswith("the model's output has the shape (2, 3); (rows, 1) is needed to predict a number")


def test_classes_need_one_output_each(place: Path) -> None:
    text = refused(run(place, "hospitals", "--model", "mine.py:three_outputs"))
    assert "the model has 3 outputs, but the target has 2 classes" in text


def test_a_model_that_wants_a_mapping_is_told_what_it_gets(place: Path) -> None:
    """Without torch's warning about an index that is a text."""
    text = refused(run(place, "hospitals", "--model", "mine.py:wants_mapping"))
    assert "the model cannot read the sites' inputs (one tensor, float32 (2, 5)): " in text


def test_settings_may_be_for_one_algorithm(place: Path) -> None:
    chosen = ("--set", "player_fl.threshold=3", "--set", "local.training.learning_rate=0.02")
    assert run(place, "hospitals", "-a", "local", "-a", "player_fl", *chosen, "--out", "both").returncode == 0
    local, layered = (read_toml(place / "both" / name / "experiment.toml") for name in ("local", "player_fl"))
    assert (local["algorithm"], layered["algorithm"]["threshold"]) == ({"name": "local"}, 3)
    assert (local["training"]["learning_rate"], layered["training"]["learning_rate"]) == (0.02, 1e-3)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ("-a local --set player_fl.threshold=3", "which is not run here; add -a player_fl"),
        ("-a local -a player_fl --set algorithm.threshold=3", "name one of them, as in --set player_fl.threshold=…"),
        (
            "-a local --set local.threshold=3",
            "unknown key 'threshold' in the settings of local; allowed: server_beta2, ",
        ),
        ("--set algorithm=fedavg --set player_fl.threshold=3", "which is not run here"),
    ],
)
def test_settings_for_an_algorithm_must_fit_it(place: Path, arguments: str, says: str) -> None:
    assert says in refused(run(place, "hospitals", *arguments.split()))


class Ids(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 2)

    def forward(self, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.layer(ids) * mask[:, None]
        return out


X, Y = torch.randn(60, 4, generator=torch.Generator().manual_seed(0)), torch.arange(60) % 2
MASK = torch.ones(60)


def own_run(model: type[nn.Module], inputs: Any) -> playerfl.RunResult:
    return playerfl.run(playerfl.own_task(model, {"a": (inputs, Y), "b": (inputs, Y)}), "fedavg", rounds=1)


@pytest.mark.parametrize("inputs", [(X, MASK), {"ids": X, "mask": MASK}, {"mask": MASK, "ids": X}])
def test_tuples_are_positional_and_mappings_keyword_arguments(inputs: Any) -> None:
    assert own_run(Ids, inputs).sites == ["a", "b"]


class OneMapping(Ids):
    def forward(self, batch: dict[str, torch.Tensor]) -> torch.Tensor:  # type: ignore[override]
        return super().forward(**batch)


def test_a_model_that_takes_one_mapping_gets_it_whole() -> None:
    assert own_run(OneMapping, {"ids": X, "mask": MASK}).sites == ["a", "b"]


@pytest.mark.parametrize(
    ("model", "inputs", "says"),
    [
        (Ids, X, "one tensor is passed, forward(…), but Ids.forward takes (ids, mask)"),
        (Ids, (X, MASK, MASK), "a tuple is passed as positional arguments, forward(…, …, …), but Ids.forward takes"),
        (Ids, {"ids": X, "other": MASK}, "forward(ids=…, other=…), but Ids.forward takes (ids, mask)"),
        (
            Ids,
            {"ids": X[:, :3], "mask": MASK},
            "(a mapping of tensors, float32 (2, 3), float32 (2,)): mat1",
        ),
    ],
)
def test_other_inputs_than_the_model_takes_are_named(model: type[nn.Module], inputs: Any, says: str) -> None:
    with pytest.raises(DataError) as caught:
        own_run(model, inputs)
    assert says in str(caught.value)


@pytest.mark.parametrize("inputs", [{"x": {"ids": X}}, (X, (X, X)), {"x": X, "text": ["a"] * 60}])
def test_nested_inputs_are_refused(inputs: Any) -> None:
    with pytest.raises(DataError, match="inputs must be a tensor, a tuple of tensors"):
        own_run(Ids, inputs)


def test_nested_batches_of_a_loader_are_refused() -> None:
    rows = [{"x": {"ids": x}, "labels": int(y)} for x, y in zip(X, Y, strict=True)]
    loader = DataLoader(rows, batch_size=20)  # type: ignore[arg-type]
    site = {"train": loader, "validation": loader, "test": loader}
    with pytest.raises(DataError, match="batch 0: input 'x' is of type dict; inputs must be a tensor"):
        playerfl.run(playerfl.own_task(Ids, {"a": site}), "local", rounds=1)
