"""LoRA over a real SuperLink: four institutions with their own copies of the model, and what leaves them."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from safetensors.torch import load_file

from documented import ROOT
from flower.institutions import Institutions, in_process
from playerfl.flower.site.files.audit import AuditLog, sent_entries
from playerfl.layers.adapters import factors_a
from playerfl.runs.experiment import Experiment
from playerfl.runs.setup import initial_model

pytestmark = [
    pytest.mark.system,
    pytest.mark.skipif(os.name != "posix", reason="needs process groups"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]
pytest.importorskip("peft", reason="peft is not installed; pip install 'playerfl[adapters]'")

SITES = ("aachen", "bonn", "celle", "dessau")
NOTES = f"""
import playerfl, torch
from torch import nn

def notes(number):
    ids = torch.randint(1, 10_000, (60 + 10 * number, 12), generator=torch.Generator().manual_seed(number))
    return ids, (ids[:, 0] + number) % 3

def task():
    sites = {{name: notes(number) for number, name in enumerate({SITES})}}
    return playerfl.own_task(lambda: nn.Sequential(nn.Embedding(10_000, 3), nn.Flatten(), nn.Linear(36, 3)), sites)
"""
METHODS: dict[str, dict[str, Any]] = {
    "fedsa_lora": {"name": "fedsa_lora"},
    "player_fl": {"name": "player_fl", "rule": "fixed", "fixed_cut": 1},
}
SENT = {"fedsa_lora": "fedsa_lora 4.1 kB", "player_fl": "player_fl 4.1 kB"}


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Institutions]:
    """A server and four sites, each with its own copy of the code."""
    folder = tmp_path_factory.mktemp("institutions")
    with ExitStack() as stack:
        here = Institutions(folder, stack, SITES)
        for name in ("server", *SITES):
            (folder / name).mkdir()
            (folder / name / "notes.py").write_text(NOTES)
            shutil.copy(ROOT / "examples" / "lora_tweets.py", folder / name / "lora.py")
        here.policies = {
            name: {"task": f"{folder / name / 'notes.py'}:task", "model": f"{folder / name / 'lora.py'}:make_model"}
            for name in SITES
        }
        here.home = folder / "server" / "home"
        here.up()
        for name in SITES:
            here.join(name)
        yield here


def experiment(here: Institutions, method: str) -> Experiment:
    return Experiment.resolve(
        {
            "task": f"{here.folder / 'server' / 'notes.py'}:task",
            "model": f"{here.folder / 'server' / 'lora.py'}:make_model",
            "rounds": 2,
            "selection": "client_best",
            "device": "cpu",
            "algorithm": METHODS[method],
            "training": {"batch_size": 16, "learning_rate": 0.002},
        }
    )


@pytest.mark.long
@pytest.mark.parametrize("method", METHODS)
def test_four_institutions_tune_adapters_and_keep_their_private_ones(here: Institutions, method: str) -> None:
    settings = experiment(here, method)
    app = here.init(method, settings, min_sites=len(SITES), deadline=300)
    output = here.do("run", str(here.home), str(app))
    assert f"From a site per round: {SENT[method]}. Full fine-tuning would send 2.8 MB" in output.stderr
    assert here.fingerprints(method)["models"] == in_process(settings)

    models = {name: load_file(here.state(name) / method / "model.safetensors") for name in SITES}
    start = initial_model(settings).state_dict()
    trained = {entry for entry in start if any(not start[entry].equal(model[entry]) for model in models.values())}
    shared = set(factors_a(trained)) if method == "fedsa_lora" else {e for e in trained if "encoder.layer.0." in e}
    private = trained - shared
    assert shared and {"classifier" in entry for entry in private} == {True, False}

    common = load_file(here.home / "jobs" / method / "common.safetensors")
    assert common.keys() == shared
    for name in SITES:
        lines = [line for line in AuditLog(here.state(name) / "audit.jsonl").entries() if line.get("job") == method]
        assert {entry for line in lines for entry in sent_entries(line)} == shared
    audit = here.do("audit", "--state", str(here.state("aachen")), "--left", "net.classifier")
    assert "net.classifier never left this site" in audit.stdout
    # Nor by value, in whatever the server wrote: results, checkpoints, Flower's database and logs.
    stored = [file.read_bytes() for file in here.home.rglob("*") if file.is_file()]
    assert any(common[min(shared)].numpy().tobytes() in content for content in stored)
    for model in models.values():
        for entry in private:
            value = model[entry].numpy().tobytes()
            assert not any(value in content for content in stored), entry

    described = here.do("jobs", "--state", str(here.state("bonn"))).stdout
    assert "it is this site's own (--model) instead of the task's" in described
    assert "tensors 4 leave (" in described and "the others are frozen or stay here" in described
