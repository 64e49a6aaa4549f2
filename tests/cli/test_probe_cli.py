"""`playerfl layers`, `probe` and `analyze` as a new user meets them, with their own files."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from command_line import playerfl, refused

MYMODULE = """
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

class BasicBlock(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.conv, self.norm = nn.Conv2d(width, width, 3, padding=1), nn.BatchNorm2d(width)
    def forward(self, x):
        return (x + self.norm(self.conv(x))).relu()

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.head = nn.Linear(4, 3)  # registered first, called last
        self.stem = nn.Conv2d(1, 4, 3, padding=1)
        self.block = BasicBlock(4)
    def forward(self, x):
        return self.head(self.block(self.stem(x)).mean((2, 3)))

def make_model():
    return Net()

def make_sites():
    rng = torch.Generator().manual_seed(0)
    def site(rows):
        return torch.randn(rows, 1, 6, 6, generator=rng), torch.arange(rows) % 3
    return {"north": site(60), "south": site(90)}

def make_loaders():
    return {name: DataLoader(TensorDataset(*data), batch_size=16) for name, data in make_sites().items()}

def numbers():
    return [(x, x.mean((1, 2, 3))) for x, _ in make_sites().values()]

def one_number():
    return nn.Sequential(nn.Flatten(), nn.Linear(36, 4), nn.ReLU(), nn.Linear(4, 1))

def squared(output, targets):
    return (output.squeeze(1) - targets) ** 2

class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.middle, self.out = nn.Embedding(5, 4), nn.Linear(4, 4), nn.Linear(4, 5, bias=False)
        self.out.weight = self.embed.weight

instance = Net()
constant = 3
def broken():
    missing = {}
    return missing["weights"]
def wrong():
    return "a text"
def needs(width):
    return Net()
def no_sites():
    return {}
def flat():
    return {"north": (torch.zeros(9, 2), torch.arange(9) % 3)}
def wide():
    sites = make_sites()
    return {**sites, "south": (sites["south"][0].double(), sites["south"][1])}
def text_loss(output, targets):
    return "small"
def loss_fails(output, targets):
    raise RuntimeError("too late")
def detached(output, targets):
    return (output.detach().squeeze(1) - targets) ** 2
"""


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    (tmp_path / "mymodule.py").write_text(MYMODULE)
    sys.modules.pop("mymodule", None)
    yield tmp_path
    sys.modules.pop("mymodule", None)


def test_layers_are_shown_before_anything_runs(folder: Path) -> None:
    output = playerfl("layers", "mymodule:make_model", cwd=folder)
    assert output.returncode == 0, output.stderr
    assert "Layers of Net, input to output" in output.stdout
    assert "guessed from the model's definition" in output.stderr
    assert output.stdout.index("head") < output.stdout.index("stem")
    output = playerfl("layers", "mymodule.py:make_model", "--data", "mymodule:make_sites", "--cut", "1", cwd=folder)
    assert output.returncode == 0, output.stderr
    assert output.stdout.index("stem") < output.stdout.index("head")
    assert "What this cut means for one site" in output.stdout


def test_layers_as_json_with_warnings(folder: Path) -> None:
    output = playerfl("layers", "mymodule:Tied", "--json", cwd=folder)
    content = json.loads(output.stdout)
    assert [layer["name"] for layer in content["layers"]] == ["embed", "middle"]
    assert content["warnings"] == ["embed.weight is used by embed and out: a cut after layer 1 separates them"]
    output = playerfl("layers", "digits", "--json", cwd=folder)
    assert [layer["name"] for layer in json.loads(output.stdout)["layers"]][-1] == "fc2"


@pytest.mark.slow
def test_your_own_model_and_sites_get_a_recommendation(folder: Path) -> None:
    output = playerfl("probe", "mymodule:make_model", "--data", "mymodule:make_sites", "--out", "cut", cwd=folder)
    assert output.returncode == 0, output.stderr
    for text in (
        "Which layers to share",
        "Verdict",
        "batches, resampled",
        "one left out",
        "next-best",
        "any threshold",
    ):
        assert text in output.stdout
    assert output.stderr.index("Layers of Net") < output.stderr.index("sites measured: 2/2")
    assert {path.name for path in (folder / "cut").iterdir()} == {
        "recommendation.json", "profiles.json", "recommendation.png", "nvflare_exclude_vars.txt",
        "fl4health_layers_to_transfer.json", "flower_state_dict_keys.json",
    }  # fmt: skip
    stored = json.loads((folder / "cut" / "recommendation.json").read_text())
    # The whole file is the regex: with a trailing newline it would match nothing, and all layers would travel.
    assert (folder / "cut" / "nvflare_exclude_vars.txt").read_text() == stored["export"]["nvflare_exclude_vars"]
    (measured,) = json.loads((folder / "cut" / "profiles.json").read_text())["seeds"]
    assert {site: profile["num_examples"] for site, profile in measured.items()} == {"north": 60, "south": 90}
    again = playerfl("probe", "cut", "--threshold", "1e9", "--json", cwd=folder)
    content = json.loads(again.stdout)
    assert content["cut"]["index"] == 3
    assert content["verdict"] == "no clear transition"
    assert content["meaning"]["private_parameters"] == 0
    playerfl("probe", "cut", "--threshold", "1e9", "--out", "other", cwd=folder)
    (copied,) = json.loads((folder / "other" / "profiles.json").read_text())["seeds"]
    assert copied == measured
    # The copy alone gives the same decision.
    assert json.loads(playerfl("probe", "other", "--json", cwd=folder).stdout) == content
    assert "already been measured" in refused(playerfl("probe", "cut", "--seeds", "2", cwd=folder))
    (folder / "mymodule.py").unlink()
    sys.modules.pop("mymodule", None)
    bare = playerfl("probe", "cut", "--json", cwd=folder)
    assert json.loads(bare.stdout)["meaning"] is None
    assert "the model cannot be built" in bare.stderr


@pytest.mark.slow
def test_stdout_holds_only_json_and_seeds_are_compared(folder: Path) -> None:
    output = playerfl(
        "probe", "mymodule:make_model", "--data", "mymodule.py:make_loaders", "--seeds", 2, "--rule", "max_jump",
        "--json", "--figure", "cut.svg", "--batch-size", 16, cwd=folder,
    )  # fmt: skip
    content = json.loads(output.stdout)
    assert len(content["by_seed"]) == 2
    assert content["cut"]["rule"] == "max_jump"
    assert content["threshold_interval"] is None
    assert content["verify_seconds"] is None  # a DataLoader's rows cannot be held out
    assert (folder / "cut.svg").stat().st_size > 5_000


def test_numbers_as_targets_need_a_loss(folder: Path) -> None:
    given = ("probe", "mymodule:one_number", "--data", "mymodule:numbers")
    output = playerfl(*given, "--loss", "mymodule:squared", "--json", cwd=folder)
    assert output.returncode == 0, output.stderr
    assert list(json.loads(output.stdout)["sites"]) == ["site-0", "site-1"]
    assert "--loss" in refused(playerfl(*given, cwd=folder))


@pytest.mark.slow
def test_runs_are_probed_without_training(folder: Path) -> None:
    ran = playerfl("run", "synthetic", "-a", "local", "-a", "player_fl", "--rounds", 1, "--out", "o", "-q", cwd=folder)
    assert ran.returncode == 0, ran.stderr
    stored = json.loads((folder / "o" / "player_fl" / "layers.json").read_text())["decision"]
    for target in ("o/player_fl", "o"):
        content = json.loads(playerfl("probe", target, "--json", cwd=folder).stdout)
        assert content["cut"]["index"] == stored["index"]
        assert content["meaning"]["federated"] == stored["federated"]
    assert playerfl("probe", "o/player_fl", "--out", "saved", cwd=folder).returncode == 0
    assert json.loads(playerfl("probe", "saved", "--json", cwd=folder).stdout) == content
    fresh = json.loads(playerfl("probe", "synthetic", "--json", "-q", cwd=folder).stdout)
    assert fresh["cut"]["importance"] == stored["importance"]
    assert "has no layer scores, because local measures none" in refused(playerfl("probe", "o/local", cwd=folder))
    other = shutil.copytree(folder / "o" / "player_fl", folder / "o" / "other") / "experiment.toml"
    other.write_text(other.read_text().replace('task = "synthetic"', 'task = "digits"'))
    assert "several tasks (digits, synthetic)" in refused(playerfl("probe", "o", cwd=folder))


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("layers", "mymodule:make_modl"), "mymodule has no 'make_modl'; did you mean 'make_model'?"),
        (("layers", "mymodul:make_model"), "there is no module mymodul"),
        (("layers", "mymodule:broken"), "calling mymodule:broken failed on line 53: KeyError: 'weights'"),
        (("layers", "mymodule:wrong"), "mymodule:wrong returned str"),
        (("layers", "mymodule:needs"), "cannot be called without arguments: missing a required argument: 'width'"),
        (("layers", "mymodule:constant"), "mymodule:constant is of type int"),
        (("layers", "mymodule:instance"), "give a function that builds it"),
        (("layers", "mymodule:make_model", "--cut", "7"), "--cut must be between 0 and 3"),
        (("layers", "mymodule:make_model", "--set", "rounds=3"), "allowed: bn_stats, granularity, tie_policy"),
        (("layers", "absent.py:make_model"), "there is no file absent.py"),
        (("layers", "hart"), "unknown task 'hart'; did you mean 'heart'?"),
        (("probe", "mymodule:make_model"), "name the sites' data too"),
        (("probe", "mymodule:make_model", "--data", "here"), "--data here does not name an object"),
        (("probe", "mymodule:make_model", "--data", "mymodule:broken"), "calling mymodule:broken failed on line 53"),
        (("probe", "mymodule:make_model", "--data", "mymodule:no_sites"), "gives no sites"),
        (("probe", "mymodule:make_model", "--data", "mymodule:constant"), "a mapping from site names"),
        (("probe", "mymodule:make_model", "--data", "mymodule:numbers", "--loss", "mymodule:constant"), "is int"),
        (("probe", "synthetic", "--data", "mymodule:make_sites"), "is a task with its own data"),
        (("probe", "synthetic", "--rule", "biggest"), "unknown --rule 'biggest'"),
        (("probe", "synthetic", "--normalise", "all"), "unknown --normalise 'all'"),
        (("probe", "synthetic", "--figure", "cut.pgn"), "did you mean 'png'"),
        (("probe", "synthetic", "--figure", "absent/cut.png"), "there is no folder absent"),
        (("probe", "synthetic", "--out", "mymodule.py"), "cannot write mymodule.py"),
        (("layers", "mymodule:make_model", "--data", "mymodule:flat"), "cannot be called with the example batch"),
        (("probe", "mymodule:make_model", "--data", "mymodule:wide"), "convert them, as in inputs.float()"),
        (("probe", "mymodule:one_number", "--data", "mymodule:numbers", "--loss", "mymodule:text_loss"), "returned"),
        (("probe", "mymodule:one_number", "--data", "mymodule:numbers", "--loss", "mymodule:loss_fails"), "too late"),
        (("probe", "mymodule:one_number", "--data", "mymodule:numbers", "--loss", "mymodule:detached"), "not depend"),
        (("probe", "synthetic", "--threshold", "-1"), "threshold -1.0 is not allowed"),
        (("probe", "synthetic", "--seeds", "0"), "--seeds must be at least 1"),
        (("probe", "synthetic", "--set", "algorithm.name=fedavg"), "only player_fl measures"),
        (("analyze", "synthetic", "--sweep", "--drift", "2"), "use one at a time"),
        (("analyze", "synthetic", "--hessian", "exactly"), "unknown --hessian 'exactly'"),
        (("analyze", "synthetic", "--probes", "1"), "--probes must be at least 2"),
        (("analyze", "synthetic", "--drift", "0"), "give at least 1"),
        (("analyze", "synthetic", "--drift", "5", "--rounds", "5"), "measures only once in 5 rounds"),
        (("analyze", "synthetic", "--federated", "fedvag"), "did you mean 'fedavg'"),
        (("analyze", "synthetic", "--out", "mymodule.py"), "cannot write mymodule.py"),
        (("analyze", "synthetic", "--set", "algorithm.mu=1"), "leave algorithm settings out"),
    ],
    ids=lambda value: None if isinstance(value, tuple) else value[:30],
)  # fmt: skip
def test_bad_input_gets_one_sentence(arguments: tuple[str, ...], sentence: str, folder: Path) -> None:
    output = playerfl(*arguments, "-q", cwd=folder) if arguments[0] != "layers" else playerfl(*arguments, cwd=folder)
    assert sentence in refused(output)


@pytest.mark.slow
def test_analyze_leaves_figures_and_json(tmp_path: Path) -> None:
    quick = ("--set", "data.rows=60", "--set", "data.sites=2", "--rounds", 1)
    output = playerfl(
        "analyze", "synthetic", *quick, "--rows", 8, "--hessian", "hutchinson", "--probes", 2, cwd=tmp_path
    )
    assert output.returncode == 0, output.stderr
    assert "Rank correlation" in output.stdout
    assert {path.name for path in (tmp_path / "synthetic-analysis").iterdir()} == {
        "analysis.json", "overview.png", "gradient_variance.png", "hessian.png", "cka.png", "sensitivity.png",
        "correlation.png",
    }  # fmt: skip
    assert "layers measured: 24/24, done in" in output.stderr
    output = playerfl("analyze", "synthetic", *quick, "--sweep", "--seeds", 1, "--out", "o", "--json", cwd=tmp_path)
    assert json.loads(output.stdout)["best_cuts"].keys() == {"0"}
    assert "runs: 6/6" in output.stderr
    output = playerfl("analyze", "synthetic", *quick[:4], "--rounds", 3, "--drift", 2, "--out", "o", cwd=tmp_path)
    assert "later measurements agree" in output.stdout
    assert {path.name for path in (tmp_path / "o").iterdir()} == {"sweep.json", "sweep.png", "drift.json", "drift.png"}


@pytest.mark.slow
def test_a_finished_run_is_analyzed_with_its_own_models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Drawing takes most of the time, and is tested above.
    monkeypatch.setattr("playerfl.report.plots.comparison.save", lambda figure, file: file)
    playerfl("run", "synthetic", "-a", "fedavg", "--rounds", 1, "--seed", 3, "--set", "data.sites=2",
             "--set", "data.rows=60", "--out", "run", "-q", cwd=tmp_path)  # fmt: skip
    output = playerfl(
        "analyze", "run", "--rows", 8, "--hessian", "hutchinson", "--probes", 2, "--json", "-q", cwd=tmp_path
    )
    content = json.loads(output.stdout)
    assert {finding["seed"] for finding in content["findings"]} == {3}
    federated = ("cka", "end of federated")
    similarities = [f["value"] for f in content["findings"] if (f["quantity"], f["moment"][:16]) == federated]
    assert similarities == pytest.approx([1.0] * 6)  # after averaging all sites have the same model
    assert "those that the run's sites keep" in content["notes"][-1]
    for other in (("--seeds", 2), ("--rounds", 3), ("--set", "training.batch_size=8")):
        assert "already has models for its seed and settings" in refused(
            playerfl("analyze", "run", *other, cwd=tmp_path)
        )


@pytest.fixture(scope="module")
def scores() -> dict[str, object]:
    """What `playerfl probe --out` writes into profiles.json."""
    from playerfl.probe.measure import probe_sites
    from playerfl.probe.stored import scores_of

    small = {"data.rows": 12, "data.sites": 2, "data.accept_small_sites": True}
    return {**scores_of(probe_sites("synthetic", settings=small), "synthetic", {})}


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("layers", 3),
        ("layers", [["fc1", ["fc1.weight"]]]),
        ("layer_map", {}),
        ("layers", [[1, 2]]),
        ("seeds", {"a": 1}),
        ("options", {"rule": []}),
        ("options", {"reduce": 5}),
    ],
)
def test_scores_that_were_changed_by_hand_are_one_sentence(
    key: str, value: object, scores: dict[str, object], tmp_path: Path
) -> None:
    (tmp_path / "profiles.json").write_text(json.dumps({**scores, key: value}))
    assert refused(playerfl("probe", ".", cwd=tmp_path))


@pytest.mark.parametrize("target", ["digits", "changed.py:task"])
def test_scores_of_another_model_are_not_exported(target: str, scores: dict[str, object], tmp_path: Path) -> None:
    (tmp_path / "changed.py").write_text(
        "from dataclasses import replace\n"
        "from playerfl.models.mlp import MLP\n"
        "from playerfl.tasks.load import load_task\n"
        "task = replace(load_task('synthetic'), build_model=lambda options: MLP((20, 64, 32, 16, 2)))\n"
    )
    (tmp_path / "profiles.json").write_text(json.dumps({**scores, "target": target}))
    output = playerfl("probe", ".", "--json", cwd=tmp_path)
    assert "this is not the model that was measured" in output.stderr
    assert json.loads(output.stdout)["export"] is None
