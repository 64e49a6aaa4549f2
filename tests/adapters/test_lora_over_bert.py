"""LoRA over a small BERT at four sites: in one process and over Flower, what travels, and what it costs."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

import playerfl
from federations import build, federate
from playerfl.algorithms import ALGORITHMS, Algorithm, FedPer, PLayerFL
from playerfl.engine.scheduler import drive
from playerfl.errors import ConfigError, RunDirectoryError
from playerfl.flower.wire.records import from_records
from playerfl.layers.adapters import factors_a, factors_b, without_adapters
from playerfl.layers.cut_summary import summarise_cut
from playerfl.layers.export import export_cut
from playerfl.layers.layer_map import state_entries
from playerfl.layers.recommend import recommend
from playerfl.layers.recommendation import Recommendation
from playerfl.probe.measure import probe_sites
from playerfl.runs.run import Progress
from playerfl.storage import tensor_tree
from playerfl.tasks.task import Task, own_task
from playerfl.weights import num_bytes

pytestmark = [pytest.mark.system, pytest.mark.filterwarnings("ignore::FutureWarning")]
pytest.importorskip("peft", reason="peft is not installed; pip install 'playerfl[adapters]'")

import peft  # noqa: E402

from adapters import peft_models  # noqa: E402
from flower.jobs import Job  # noqa: E402

SITES = tuple(peft_models.sites())
FEW: dict[str, Any] = {"data.accept_small_sites": True, "training.learning_rate": 0.02}
METHODS: dict[str, Algorithm] = {
    "fedavg": ALGORITHMS["fedavg"](),
    "fedsa_lora": ALGORITHMS["fedsa_lora"](),
    "ffa_lora": ALGORITHMS["ffa_lora"](),
    "player_fl": PLayerFL(),
    "player_fl, a cut between adapters": PLayerFL(rule="fixed", fixed_cut=1),
}
every_method = pytest.mark.parametrize("method", METHODS)


@cache
def task(kind: str = "LoRA") -> Task:
    return own_task(peft_models.KINDS[kind], peft_models.sites())


@cache
def whole_model() -> int:
    """Bytes of the model without adapters."""
    return num_bytes(peft_models.bert().state_dict())


def travelling(method: str) -> tuple[set[str], set[str]]:
    """The entries that may travel after the first message, and all that train, by name."""
    trained = {name for name, p in peft_models.lora().named_parameters() if p.requires_grad}
    head = {name for name in trained if "classifier" in name}
    first_block = {name for name in trained if ".layer.0." in name}
    shared = {
        "fedavg": trained,
        "fedsa_lora": set(factors_a(trained)),
        "ffa_lora": factors_b(trained) | head,
        # The head's score is far above that of adapters, which start at B = 0.
        "player_fl": trained - head,
        "player_fl, a cut between adapters": first_block,
    }
    return shared[method], trained


@every_method
def test_over_flower_everything_equals_one_process_and_private_adapters_never_leave(
    method: str, tmp_path: Path
) -> None:
    job = Job(tmp_path, METHODS[method], task(), rounds=2, sites=SITES, **FEW)
    job.run()
    job.assert_equals_in_process()
    shared, trained = travelling(method)
    sent = set()
    for _, message in (*job.grid.requests, *job.grid.replies):
        for record in from_records(message.content).arrays.values():
            sent |= record.keys()
    assert sent == shared
    models = {site: load_file(job.home / site / "job" / "model.safetensors") for site in SITES}
    start = job.in_process().setup.initial
    for name in start.keys() - shared:
        values = {models[site][name].numpy().tobytes() for site in SITES}
        assert (len(values) > 1) == (name in trained and not (method == "ffa_lora" and name in factors_a(trained)))
        # Neither by name nor by value; vectors of zeros may be in anything.
        for _, message in (*job.grid.requests, *job.grid.replies):
            for record in message.content.array_records.values():
                wire = b"".join(array.data for array in record.values())
                assert not any(value in wire for value in values if any(value) and len(value) > 64), name


@every_method
def test_a_round_sends_what_is_shared_to_the_byte(method: str) -> None:
    result = federate(METHODS[method], task(), rounds=3, **FEW)
    shared, trained = travelling(method)
    sizes = {name: entry.nbytes for name, entry in result.weights["site-0"].items()}
    each = sum(sizes[name] for name in shared)
    whole = sum(sizes[name] for name in trained)
    prepared = {"down": 8, "up": 8 * 3} if method.startswith("player_fl") else {"down": 0, "up": 0}
    for site in SITES:
        rows = result.traffic[result.traffic["site"] == site]
        assert rows["up"].sum() == 3 * each + prepared["up"]
        assert rows["down"].sum() == whole + 3 * each + prepared["down"]
    assert result.full_fine_tuning_bytes == whole_model()
    assert result.bytes_up_per_round < whole_model() / 5


@pytest.fixture(scope="module")
def recommendation() -> Recommendation:
    profiles = probe_sites(task(), settings={**FEW, "training.batch_size": 8}).profiles
    return recommend(profiles, peft_models.lora())


@pytest.mark.parametrize("cut", [0, 1, 2, 3])
def test_exports_and_runs_agree_on_which_adapter_entries_travel(cut: int, recommendation: Recommendation) -> None:
    model = peft_models.lora()
    assert recommendation.layers is not None
    summary = summarise_cut(model, recommendation.layers, cut)
    export = export_cut(summary)
    run = build(FedPer(3 - cut), task(), rounds=1, **FEW)
    expected = run.algorithm.server_expects(run.server, ("fit",)).entries(run.server.layers, run.setup.initial)
    keys = list(model.state_dict())
    sent = [key for key in keys if key in expected]
    assert export["flower_state_dict_keys"] == export["fl4health_layers_to_transfer"] == sent
    excluded = export["nvflare_exclude_vars"]
    assert [key for key in keys if not re.search(excluded, key)] == sent
    assert summary.bytes_per_round == num_bytes(expected)
    assert summary.bytes_of_full_fine_tuning == whole_model()


def test_a_recommendation_is_about_the_adapters(recommendation: Recommendation) -> None:
    run = build(PLayerFL(), task(), rounds=1, **FEW)
    drive(run.rounds())
    assert run.server.memory["cut"] == recommendation.cut.index == 2
    assert run.server.layers.difference(recommendation.layers) is None  # type: ignore[arg-type]
    # One number for each adapted block, of what trains in it: the frozen weights would have scores far above 0.
    scores = recommendation.importance["site-0"]
    assert 0 < scores["bert.encoder.layer.0.attention"] < scores["classifier"]
    assert f"full fine-tuning would send {whole_model():,} bytes" in str(recommendation)


@pytest.mark.parametrize("kind", [kind for kind in peft_models.KINDS if kind != "LoRA"])
def test_every_kind_of_adapter_can_be_averaged(kind: str) -> None:
    result = federate("fedavg", task(kind), rounds=1, **FEW)
    frozen = set(result.data["frozen"]["entries"])
    moved = {
        name
        for name, start in build("fedavg", task(kind), **FEW).setup.initial.items()
        if not torch.equal(start, result.weights["site-0"][name])
    }
    assert moved
    assert not moved & frozen


@pytest.mark.parametrize("kind", ["DoRA", "VeRA", "LoRA of embeddings", "LoRA inside a model of one's own"])
def test_fedsa_lora_shares_what_plays_the_part_of_a(kind: str) -> None:
    run = build("fedsa_lora", task(kind), rounds=1, **FEW)
    result = drive(run.rounds())
    names = set(run.algorithm.server_expects(run.server, ("fit",)).entries(run.server.layers, run.setup.initial))
    assert names
    assert all(re.search("lora_A|lora_embedding_A|vera_lambda_d", name) for name in names)
    assert result.bytes_up_per_round == sum(result.weights["site-0"][name].nbytes for name in names)


@pytest.mark.parametrize(("method", "does"), [("fedsa_lora", "shares"), ("ffa_lora", "freezes")])
@pytest.mark.parametrize("kind", ["IA3", "LoHa", "VB-LoRA", "RandLoRA", "prefix tuning", "prompt tuning"])
def test_methods_for_lora_refuse_other_adapters(kind: str, method: str, does: str) -> None:
    with pytest.raises(ConfigError, match=f"{method} {does} the A matrices of LoRA.*; use LoRA, or fedavg"):
        playerfl.run(task(kind), method, rounds=1, settings=FEW)


OF_BERT = [kind for kind in peft_models.KINDS if "torch" not in kind and "tokens" not in kind and "inside" not in kind]


@pytest.mark.parametrize("kind", OF_BERT)
def test_full_fine_tuning_would_send_the_model_as_it_was_before_adapters(kind: str) -> None:
    state = state_entries(peft_models.KINDS[kind]())
    assert num_bytes({name: state[name] for name in without_adapters(state)}) == whole_model()


def test_lora_of_convolutions_trains() -> None:
    """DoRA flattens its matrices with `view`, which failed in the memory format that is fastest for convolutions."""

    def model() -> Any:
        net = nn.Sequential(
            nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 8, 3), nn.Flatten(), nn.Linear(32, 3)
        )
        config = peft.LoraConfig(r=2, use_dora=True, target_modules=["0", "3"], modules_to_save=["5"])
        return peft_models.adapted(net, config)

    data = {site: (torch.randn(40, 1, 6, 6), torch.arange(40) % 3) for site in ("a", "b")}
    result = playerfl.run(own_task(model, data), "fedsa_lora", rounds=1, settings=FEW)
    assert result.bytes_up_per_round == 4 * (2 * 9 + 2 * 36)


def test_without_adapters_a_method_says_that_it_is_fedavg() -> None:
    result = federate("fedsa_lora", rounds=1)
    assert result.data["notes"][-1] == "FedSALoRA amounts to FedAvg with this model and these settings"


class StoppedError(Exception):
    """A run is interrupted."""


def stop_after(round_: int) -> Any:
    def stop(progress: Progress) -> None:
        if progress.round == round_:
            raise StoppedError

    return stop


SIMPLE = {"rounds": 3, "settings": {**FEW, "training.batch_size": 8}}


@pytest.mark.parametrize("method", ["fedper", "fedsa_lora", "ditto"])
def test_frozen_weights_are_stored_once_and_a_run_resumes_without_them(method: str, tmp_path: Path) -> None:
    whole = playerfl.run(task(), method, out=tmp_path / "whole", **SIMPLE)
    with pytest.raises(StoppedError):
        playerfl.run(task(), method, out=tmp_path / "half", listener=stop_after(2), **SIMPLE)
    frozen = set(whole.data["frozen"]["entries"])
    stored = tensor_tree.read(tmp_path / "half" / "checkpoint.safetensors")
    assert not {name for name, _ in tensors(stored)} & frozen
    resumed = playerfl.resume(tmp_path / "half", task=task())
    for name in ("scores.csv", "traffic.csv", "finished.json", "frozen.safetensors"):
        assert (tmp_path / "half" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes(), name
    assert load_file(tmp_path / "whole" / "frozen.safetensors").keys() == frozen
    for site in SITES:
        own = load_file(tmp_path / "whole" / "weights" / f"{site}.safetensors")
        assert not own.keys() & frozen
        assert own.keys() | frozen == resumed.weights[site].keys()
        assert resumed.model(site)(peft_models.tokens()).logits.shape == (2, 3)


def tensors(tree: Any) -> list[tuple[str, torch.Tensor]]:
    found = []
    for name, value in tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ():
        found += [(str(name), value)] if isinstance(value, torch.Tensor) else tensors(value)
    return found


def test_a_run_is_not_resumed_on_another_pretrained_model(tmp_path: Path) -> None:
    with pytest.raises(StoppedError):
        playerfl.run(task(), "fedavg", out=tmp_path / "run", listener=stop_after(1), **SIMPLE)

    def retrained() -> Any:
        model = peft_models.lora()
        with torch.no_grad():
            next(p for p in model.parameters() if not p.requires_grad).add_(1.0)
        return model

    with pytest.raises(RunDirectoryError, match="other frozen weights, such as another revision"):
        playerfl.resume(tmp_path / "run", task=own_task(retrained, peft_models.sites()))


def test_sites_share_one_copy_of_the_frozen_weights() -> None:
    run = build("fedper", task(), rounds=2, **FEW)
    drive(run.rounds())
    for client in run.clients.values():
        assert client.kept is not None
        for name in run.server.layers.frozen:
            assert client.kept.weights[name] is run.setup.initial[name]
