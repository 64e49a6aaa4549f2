"""Runs as a whole: read back, resumed with other data, compared, diverged, refused before anything is written."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from faulty_disk import FaultyDisk
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import playerfl
from command_line import playerfl as command
from command_line import refused
from federations import FEATURES, assert_same, federate, mlp, sites, task
from playerfl.algorithms import FedPer, LocalAdaptation, PLayerFL, PLayerFLMinusOne
from playerfl.errors import PlayerflError
from playerfl.layers.layer_map import LayerMap, state_entries
from playerfl.runs.run import Progress
from playerfl.storage import tensor_tree
from playerfl.tasks.task import own_task

SETTINGS = {"training.batch_size": 8}


def test_a_run_of_your_own_task_gives_its_models_back(tmp_path: Path) -> None:
    own = task("batch norm")
    made = playerfl.run(own, "player_fl", rounds=1, settings=SETTINGS, out=tmp_path / "o")
    for read in (playerfl.load_result(tmp_path / "o", task=own), playerfl.resume(tmp_path / "o", task=own)):
        x = torch.randn(4, FEATURES)
        assert torch.equal(read.model("site-1")(x), made.model("site-1")(x))
    assert repr(made).startswith("<RunResult: player_fl on own, 1 rounds, 3 sites")


def test_a_run_of_your_own_task_says_that_it_needs_the_task_again(tmp_path: Path) -> None:
    playerfl.run(task(), "local", rounds=1, settings=SETTINGS, out=tmp_path / "o")
    read = playerfl.load_result(tmp_path / "o")
    for ask in (lambda: read.model("site-1"), lambda: playerfl.resume(tmp_path / "o")):
        with pytest.raises(PlayerflError, match=r"unknown task 'own'.* pass it again, as task="):
            ask()


def test_models_that_are_large_together_are_read_one_by_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    held = playerfl.run("synthetic", "local", rounds=1, out=tmp_path / "o")
    monkeypatch.setattr("playerfl.runs.directory._HELD_BYTES", 0)
    read = playerfl.load_result(tmp_path / "o")
    assert isinstance(held.weights, dict) and not isinstance(read.weights, dict)
    assert_same(read, held)
    (tmp_path / "o" / "weights" / "site-2.safetensors").write_bytes(b"nonsense")
    with pytest.raises(PlayerflError, match=r"site-2\.safetensors cannot be read"):
        read.model("site-2")


@pytest.mark.slow
def test_only_the_tables_grow(tmp_path: Path) -> None:
    sizes: dict[int, dict[str, int]] = {}

    def look(progress: Progress) -> None:
        files = (file for file in (tmp_path / "o").rglob("*") if file.is_file())
        sizes.setdefault(progress.round, {file.name: file.stat().st_size for file in files})

    playerfl.run(task(), "player_fl", rounds=40, settings=SETTINGS, out=tmp_path / "o", listener=look)
    early, late = sizes[10], sizes[39]
    assert early.keys() == late.keys()
    # The checkpoint says in digits how long the tables are and which round it is.
    assert {name for name in early if late[name] > early[name] + 64} == {"scores.csv", "traffic.csv", "confusions.csv"}
    a_round = (sizes[39]["scores.csv"] - sizes[10]["scores.csv"]) / 29
    assert (sizes[20]["scores.csv"] - sizes[10]["scores.csv"]) / 10 == pytest.approx(a_round, rel=0.1)


@pytest.mark.parametrize("change", ["swapped", "deleted", "data"])
def test_a_finished_run_that_was_changed_is_refused(tmp_path: Path, change: str) -> None:
    playerfl.run("synthetic", "local", rounds=1, out=tmp_path / "o")
    weights = tmp_path / "o" / "weights"
    if change == "swapped":
        shutil.copy(weights / "site-1.safetensors", weights / "site-0.safetensors")
    elif change == "deleted":
        (weights / "site-0.safetensors").unlink()
    else:
        (tmp_path / "o" / "data.json").write_text("{}")
    with pytest.raises(PlayerflError, match=r"has been changed since the run ended|is not a valid"):
        playerfl.load_result(tmp_path / "o")


def test_weights_that_do_not_fit_the_experiments_model_are_one_sentence(tmp_path: Path) -> None:
    own = task()
    playerfl.run(own, "local", rounds=1, settings=SETTINGS, out=tmp_path / "o")
    other = own_task(lambda: nn.Linear(FEATURES, 3), sites())
    with pytest.raises(PlayerflError, match="weights of site-0 do not fit the model its experiment describes"):
        playerfl.load_result(tmp_path / "o", task=other).model("site-0")


def stopped(own: Any, out: Path, algorithm: str = "fedavg") -> None:
    def stop(progress: Progress) -> None:
        if progress.round == 1:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        playerfl.run(own, algorithm, rounds=3, settings=SETTINGS, out=out, listener=stop)


def test_a_run_resumes_only_with_the_data_and_the_model_it_started_with(tmp_path: Path) -> None:
    stopped(task(), tmp_path / "o")
    other = {site: (x + 1, y) for site, (x, y) in sites().items()}
    with pytest.raises(PlayerflError, match="was started with different data"):
        playerfl.resume(tmp_path / "o", task=task(sites=other))
    with pytest.raises(PlayerflError, match="was started with a different model"):
        playerfl.resume(tmp_path / "o", task=task("batch norm"))
    assert playerfl.resume(tmp_path / "o", task=task()).sites == ["site-0", "site-1", "site-2"]


@pytest.mark.parametrize("stored", ["layers", "profile", None])
def test_a_run_resumes_only_with_the_layers_it_started_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stored: str | None
) -> None:
    """Earlier versions stored layers with the sites' scores, or not at all."""
    stopped(task(), tmp_path / "o", "fedavg" if stored is None else "player_fl")
    if stored != "layers":
        file = tmp_path / "o" / "checkpoint.safetensors"
        saved = tensor_tree.read(file)
        del saved["layers"]
        file.write_bytes(tensor_tree.encode(saved))
    with monkeypatch.context() as later:
        groups = [("everything", list(state_entries(mlp())))]
        later.setattr(LayerMap, "of", lambda model, *_, **__: LayerMap.from_groups(model, groups))
        if stored is None:
            assert playerfl.resume(tmp_path / "o", task=task()).algorithm == "fedavg"
            return
        with pytest.raises(PlayerflError, match=r"started with the layers 0, 2.* finds everything; resume it with the"):
            playerfl.resume(tmp_path / "o", task=task())
    assert playerfl.resume(tmp_path / "o", task=task()).algorithm == "player_fl"


def test_a_failed_resume_unlocks_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stopped(task(), tmp_path / "o")
    with monkeypatch.context() as other:
        other.setattr("playerfl.runs.api.environment", lambda *_: {"python": "another"})
        with FaultyDisk(tmp_path, 1).mounted(), pytest.raises(PlayerflError, match=r"cannot write .*environment\.json"):
            playerfl.resume(tmp_path / "o", task=task())
    with pytest.raises(PlayerflError, match="site-0"):
        playerfl.resume(tmp_path / "o", task=task(sites={"site-0": (torch.zeros(0, FEATURES), torch.zeros(0))}))
    assert playerfl.resume(tmp_path / "o", task=task()).sites == ["site-0", "site-1", "site-2"]


@pytest.mark.slow
def test_a_failed_resume_unlocks_all_runs_of_a_comparison(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from writing_commands import SMALL
    from writing_commands import playerfl as here

    assert here("run", "synthetic", "-a", "local", "-a", "fedavg", "--rounds", 1, *SMALL, "--out", tmp_path)[0] == 0
    for name in ("local", "fedavg"):
        (tmp_path / name / "finished.json").unlink()
    with monkeypatch.context() as other:
        other.setattr("playerfl.runs.api.environment", lambda *_: {"python": "another"})
        with FaultyDisk(tmp_path / "fedavg", 1).mounted():
            code, text = here("run", "--resume", tmp_path)
    assert code == 2 and "cannot write" in text
    assert here("run", "--resume", tmp_path, "-q")[0] == 0


@pytest.mark.slow
def test_a_comparison_killed_between_two_directories_is_completed(tmp_path: Path) -> None:
    run = ("run", "synthetic", "--rounds", "2", "-a", "local", "-a", "fedavg", "-q", "--out")
    assert command(*run, "o", cwd=tmp_path).returncode == 0
    shutil.rmtree(tmp_path / "o" / "fedavg")
    before = (tmp_path / "o" / "local" / "scores.csv").read_bytes()
    output = command("run", "--resume", "o", "-q", "--json", cwd=tmp_path)
    assert [one["algorithm"] for one in json.loads(output.stdout)["runs"]] == ["local", "fedavg"]
    assert (tmp_path / "o" / "local" / "scores.csv").read_bytes() == before


@pytest.mark.slow
def test_a_comparison_cannot_use_the_directory_of_a_run(tmp_path: Path) -> None:
    assert command("run", "synthetic", "--rounds", "1", "-q", "--out", "o", cwd=tmp_path).returncode == 0
    again = command("run", "synthetic", "--rounds", "1", "-a", "local", "-a", "fedavg", "--out", "o", cwd=tmp_path)
    assert "o holds a single run" in refused(again)


def test_a_diverged_run_says_so_and_its_json_has_no_nan(tmp_path: Path) -> None:
    wild = ("--set", "training.optimizer=sgd", "--learning-rate", "1e30", "--set", "selection=round_best")
    output = command("run", "synthetic", "-a", "fedavg", "--rounds", "2", "--json", *wild, cwd=tmp_path)
    assert "fedavg diverged" in output.stderr
    assert json.loads(output.stdout, parse_constant=pytest.fail)["runs"][0]["average"]["loss"] is None


@pytest.mark.slow
@pytest.mark.parametrize(
    "setting",
    ["algorithm.threshold=-1", "algorithm.max_batches=0", "algorithm.rule=fixed algorithm.fixed_cut=9",
     "training.betas=[1.5,0.9]", "training.momentum=0.9",
     "selection=round_best eval_point=post_local participation=0.5"],
)  # fmt: skip
def test_values_that_cannot_work_are_refused_before_a_directory_is_made(tmp_path: Path, setting: str) -> None:
    given = [part for one in setting.split() for part in ("--set", one)]
    refused(command("run", "synthetic", "-a", "player_fl", *given, "--out", "o", cwd=tmp_path))
    refused(command("run", "synthetic", "-a", "fedper", "--set", "algorithm.personal_layers=9", cwd=tmp_path))
    assert not list(tmp_path.rglob("*"))


def test_adaptation_starts_from_the_common_model_wherever_models_are_scored() -> None:
    nothing = LocalAdaptation(adapt_epochs=0)
    local = federate(nothing, eval_point="post_local")
    assert torch.equal(local.weights["site-0"]["0.weight"], local.weights["site-1"]["0.weight"])


def test_a_moved_cut_is_not_explained_by_the_measured_one() -> None:
    cut = federate(PLayerFLMinusOne(rule="fixed", fixed_cut=3)).cut
    assert cut is not None
    assert cut.index == 2
    assert cut.reason == "the cut was measured after 3 layers and moved to 2"


def loaders(x: torch.Tensor, y: torch.Tensor, **options: Any) -> dict[str, Any]:
    return {part: DataLoader(TensorDataset(x, y), **options) for part in ("train", "validation", "test")}


def test_loaders_are_counted_by_what_they_give_and_refused_for_nan() -> None:
    x, y = sites()["site-0"]
    picky = own_task(mlp, {"a": loaders(x, y, batch_sampler=[[0, 1, 2], [3, 4, 5]])})
    assert playerfl.run(picky, "local", rounds=1).num_examples == {"a": 6}
    x = x.clone()
    x[3] = float("nan")
    with pytest.raises(PlayerflError, match="a, train has NaN or infinite values in batch 0"):
        playerfl.run(own_task(mlp, {"a": loaders(x, y, batch_size=8)}), "local", rounds=1)
    with pytest.raises(PlayerflError, match="targets do not fit the model's outputs"):
        playerfl.run(own_task(mlp, {"a": loaders(sites()["site-0"][0], y + 7, batch_size=8)}), "local", rounds=1)


def test_a_last_batch_of_one_does_not_break_batch_norm() -> None:
    from federations import with_batch_norm

    x, y = sites()["site-0"]
    alone = own_task(with_batch_norm, {"a": loaders(x[:9], y[:9], batch_size=8)})
    assert playerfl.run(alone, "local", rounds=1).sites == ["a"]
    with pytest.raises(PlayerflError, match="does not work with batch norm"):
        playerfl.run(task("batch norm"), "local", rounds=1, settings={"training.batch_size": 1})


def test_targets_may_be_any_whole_numbers() -> None:
    own = {site: (x, y.to(torch.int32)) for site, (x, y) in sites().items()}
    assert playerfl.run(own_task(mlp, own), "local", rounds=1, settings=SETTINGS).sites


def frozen() -> nn.Module:
    return mlp().requires_grad_(False)


@pytest.mark.parametrize(
    ("model", "sentence"),
    [
        (frozen, "has no parameters to train"),
        (lambda: None, "must be an nn.Module, not NoneType"),
    ],
)
def test_models_that_cannot_be_trained_are_refused(model: Any, sentence: str) -> None:
    with pytest.raises(PlayerflError, match=sentence):
        playerfl.run(own_task(model, sites()), "player_fl", rounds=1, settings=SETTINGS)


def test_a_model_in_place_of_its_factory_is_refused() -> None:
    with pytest.raises(PlayerflError, match="pass a function that builds the model"):
        own_task(mlp(), sites())  # type: ignore[arg-type]


def test_runs_of_other_lengths_are_not_compared() -> None:
    runs = [federate(FedPer(), rounds=1), federate(PLayerFL(), rounds=2)]
    with pytest.raises(PlayerflError, match="differ in 'rounds'"):
        playerfl.compare(runs)
