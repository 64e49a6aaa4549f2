"""What is measured is what is trained and what is exported: one map of layers for all of them."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch
from torch import nn

from playerfl.engine.scheduler import drive
from playerfl.errors import LayerError
from playerfl.federation.client import Client
from playerfl.federation.messages import Upload
from playerfl.layers.cut_summary import summarise_cut
from playerfl.layers.export import export_cut
from playerfl.layers.layer_map import LayerMap
from playerfl.layers.probe import SensitivityProbe
from playerfl.layers.recommend import recommend
from playerfl.layers.sensitivity import Profile
from playerfl.probe.measure import probe_sites
from playerfl.runs.experiment import Experiment
from playerfl.runs.run import Run
from playerfl.runs.settings_table import with_settings
from playerfl.runs.setup import prepare_setup
from playerfl.tasks.task import Task, own_task
from zoo import REAL

BATCHES = 3
FOUR_KINDS = ["ViT, all in one class", "GPT, tied", "ResNet, basic blocks", "two towers"]


def measured(model: nn.Module, example: Any) -> Profile:
    """The probe inside somebody's own loop, with an example batch."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with SensitivityProbe(model, example=example).attach(optimizer) as probe:
        for _ in range(BATCHES):
            optimizer.zero_grad()
            model(example).square().mean().backward()
            optimizer.step()
    return probe.profile()


@pytest.mark.parametrize("name", FOUR_KINDS)
def test_a_recommendation_without_the_example_exports_what_was_measured(name: str) -> None:
    build, example = REAL[name]
    model = build()
    profile = measured(model, example())
    recommendation = recommend({"north": profile, "south": profile}, build())
    assert recommendation.layers is not None
    assert recommendation.layers.difference(LayerMap.of(model, example())) is None
    content = recommendation.to_json()
    assert content["layers"] == {name: list(entries) for name, entries in recommendation.layers.entries.items()}
    keys = list(model.state_dict())
    shared = {entry for layer in recommendation.cut.federated for entry in recommendation.layers.entries[layer]}
    sent = [key for key in keys if key in shared or (name == "GPT, tied" and key == "wte.weight")]
    export = content["export"]
    assert export["fl4health_layers_to_transfer"] == export["flower_state_dict_keys"] == sent
    excluded = export["nvflare_exclude_vars"]
    assert [key for key in keys if not (excluded and re.search(excluded, key))] == sent
    # The same after a journey through JSON.
    again = recommend({"north": Profile.from_json(profile.to_json())}, build())
    assert again.layers is not None
    assert again.layers.difference(recommendation.layers) is None


def test_other_layers_and_other_models_are_refused() -> None:
    build, example = REAL["ViT, all in one class"]
    profile = measured(build(), example())
    with pytest.raises(LayerError, match=r"the scores are not of the layers given: .* belongs to layer"):
        recommend({"north": profile}, build(), layers=LayerMap.of(build(), example(), granularity="module"))
    with pytest.raises(LayerError, match="this is not the model that was measured: it has no first"):
        recommend({"north": profile}, REAL["two towers"][0]())
    other = SensitivityProbe(build(), layers=LayerMap.of(build(), example(), granularity="module"))
    other.record(gradients={name: torch.ones_like(p) for name, p in other.model.named_parameters()})
    with pytest.raises(LayerError, match="score different layers"):
        recommend({"north": profile, "south": other.profile()}, build())


@pytest.mark.parametrize(
    "name",
    [
        "ViT, all in one class",
        "GPT, tied",
        "ResNet, basic blocks",
        "two towers",
        "class attention",
        "columns as tokens",
    ],
)
def test_probe_rounds_and_exports_agree_on_what_travels(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    build, example = REAL[name]
    rows = torch.cat([example()] * 8)
    sites = {site: (rows, torch.arange(len(rows)) % 3) for site in ("north", "south")}
    settings = {"training.batch_size": 8, "rounds": 1, "data.accept_small_sites": True, "selection": "last"}
    layers = LayerMap.of(build(), example())
    recommendation = probe_sites(build, sites, settings={"data.accept_small_sites": True}).recommend()
    assert recommendation.layers is not None
    assert recommendation.layers.difference(layers) is None
    assert recommendation.summary is not None
    recommended = recommendation.cut.index
    for cut in sorted({recommended, 2}):
        summary = recommendation.summary if cut == recommended else summarise_cut(build(), layers, cut)
        exports = _exported(export_cut(summary), list(build().state_dict()), layers)
        assert len(set(map(frozenset, exports.values()))) == 1, exports
        fixed = {"algorithm.rule": "fixed", "algorithm.fixed_cut": cut}
        sent = _sent(own_task(build, sites), {**settings, "algorithm.name": "player_fl", **fixed}, monkeypatch)
        assert sent == next(iter(exports.values())) == set(layers.travelling(build().state_dict(), layers.names[:cut]))
    for algorithm in ("fedavg", "ditto"):
        sent = _sent(own_task(build, sites), {**settings, "algorithm.name": algorithm}, monkeypatch)
        assert sent == set(layers.all_entries)


def _sent(task: Task, settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """The entries that left any site in a run."""
    left: set[str] = set()
    upload = Client.upload

    def watched(client: Client, *arguments: Any, **keywords: Any) -> Upload:
        made = upload(client, *arguments, **keywords)
        left.update(made.weights)
        return made

    experiment = Experiment.resolve(with_settings({}, settings), task)
    run = Run(experiment, prepare_setup(experiment, task))
    with monkeypatch.context() as patched:
        patched.setattr(Client, "upload", watched)
        drive(run.rounds())
    return left


def _exported(export: dict[str, Any], keys: list[str], layers: LayerMap) -> dict[str, set[str]]:
    """The entries that each framework would send, tied tensors under their first name."""
    excluded = export["nvflare_exclude_vars"]
    kept = {
        "NVFlare": [key for key in keys if not (excluded and re.search(excluded, key))],
        "FL4Health": export["fl4health_layers_to_transfer"],
        "Flower": export["flower_state_dict_keys"],
    }
    return {framework: set(names) & set(layers.all_entries) for framework, names in kept.items()}


def small(width: int = 8) -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, width), nn.BatchNorm1d(width), nn.ReLU(), nn.Linear(width, 3))


def test_a_model_of_another_size_or_with_other_frozen_parts_is_refused() -> None:
    rows = torch.randn(6, 4)
    profile = measured(small(), rows)
    with pytest.raises(LayerError, match="its layer '0' has 224 trainable parameters instead of 56"):
        recommend({"a": profile}, small(32))
    with pytest.raises(LayerError, match="a and b measured different layers: layer '0' has 56 trainable"):
        recommend({"a": profile, "b": measured(small(32), rows)})
    frozen = small()
    frozen[0].requires_grad_(False)
    with pytest.raises(LayerError, match=r"0\.bias is frozen now"):
        recommend({"a": profile}, frozen)
    with pytest.raises(LayerError, match=r"0\.bias was frozen"):
        recommend({"a": measured(frozen, rows)}, small())
    assert recommend({"a": profile}, nn.DataParallel(small())).summary is not None


@pytest.mark.parametrize(
    ("key", "value", "sentence"),
    [
        ("frozen", ["nowhere"], "an entry is in two layers, or in none"),
        ("frozen", ["0.weight"], "0.weight was frozen"),
        ("buffers", [], "1.num_batches_tracked is a buffer in only one of them"),
        ("entries", {"0": ["0.weight"], "3": ["0.weight"]}, "an entry is in two layers, or in none"),
    ],
)
def test_a_map_that_was_changed_by_hand_is_refused(key: str, value: Any, sentence: str) -> None:
    stored: Any = measured(small(), torch.randn(6, 4)).to_json()
    stored["layer_map"][key] = value
    with pytest.raises(LayerError, match=sentence):
        recommend({"a": stored}, small())


@pytest.mark.parametrize("sizes", [[0, 8, 8], [-1, 8, 8]])
def test_batches_without_examples_are_refused(sizes: list[int]) -> None:
    stored = {**measured(small(), torch.randn(6, 4)).to_json(), "batch_sizes": sizes, "weight_batches": True}
    with pytest.raises(LayerError, match="batches need examples"):
        recommend({"a": stored})
