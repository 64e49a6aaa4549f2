"""Layers are the blocks that adapters are in: no adapter is torn apart, and every layer has something to train."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from playerfl.errors import LayerError
from playerfl.layers.adapters import fixed_buffers
from playerfl.layers.layer_map import LayerMap, state_entries

pytestmark = [pytest.mark.system, pytest.mark.filterwarnings("ignore::FutureWarning")]
peft = pytest.importorskip("peft", reason="peft is not installed; pip install 'playerfl[adapters]'")

from adapters import peft_models  # noqa: E402

BLOCKS = ["bert.encoder.layer.0.attention", "bert.encoder.layer.1.attention"]
HEAD = "classifier"


def homes(layers: LayerMap, *parts: str) -> set[str]:
    """The layers of the entries that begin with one of these paths."""
    return {layer for layer, entries in layers.entries.items() for e in entries if e.startswith(parts)}


@pytest.mark.parametrize("kind", peft_models.KINDS)
@pytest.mark.parametrize("example", [True, False], ids=["traced", "registered"])
@pytest.mark.parametrize("granularity", ["block", "module"])
def test_an_adapter_and_what_it_adapts_are_in_one_layer(kind: str, example: bool, granularity: Any) -> None:
    model = peft_models.KINDS[kind]()
    layers = LayerMap.of(model, peft_models.tokens() if example else None, granularity=granularity)
    for path, module in model.named_modules():
        if path and type(module).__module__.startswith("peft") and "base_layer" in module._modules:
            assert len(homes(layers, f"{path}.")) == 1, path
    assert len(homes(layers, *(p for p, _ in model.named_modules() if p.endswith("classifier")))) == 1
    assert all(layers.num_parameters.values())
    trained = {name for name, parameter in model.named_parameters() if parameter.requires_grad}
    assert set(layers.trained) == trained
    assert layers.frozen == state_entries(model).keys() - trained


@pytest.mark.parametrize("kind", ["LoRA", "rsLoRA", "DoRA", "VeRA"])
def test_a_layer_is_an_adapted_block_named_as_without_adapters(kind: str) -> None:
    layers = LayerMap.of(peft_models.KINDS[kind](), peft_models.tokens())
    assert list(layers.names) == [*BLOCKS, HEAD]
    assert "the frozen bert.embeddings goes with it" in layers.reasons[BLOCKS[0]]
    assert "base_model" not in " ".join(layers.reasons.values())


def test_adapters_everywhere_give_the_layers_of_the_model_itself() -> None:
    plain = LayerMap.of(peft_models.bert(), peft_models.tokens())
    everywhere = LayerMap.of(peft_models.KINDS["LoRA of all linear layers, with biases"](), peft_models.tokens())
    assert everywhere.names == plain.names[1:]


@pytest.mark.parametrize(
    ("build", "targets", "names"),
    [
        ("gpt2", ["c_attn"], ["transformer.h.0.attn", "transformer.h.1.attn", "score"]),
        (
            "llama",
            "all-linear",
            [*(f"model.layers.{i}.{part}" for i in (0, 1) for part in ("self_attn", "mlp")), "score"],
        ),
        (
            "distilbert",
            ["q_lin", "v_lin"],
            [*(f"distilbert.transformer.layer.{i}.attention" for i in (0, 1)), "pre_classifier", "classifier"],
        ),
    ],
)
def test_layers_of_other_architectures(build: str, targets: Any, names: list[str]) -> None:
    model = peft_models.lora(getattr(peft_models, build)(), target_modules=targets)
    assert list(LayerMap.of(model, peft_models.tokens()).names) == names


def test_layers_of_a_vision_transformer() -> None:
    config = peft.LoraConfig(r=2, target_modules=["query", "value", "q_proj", "v_proj"], modules_to_save=["classifier"])
    model = peft_models.adapted(peft_models.vit(), config)
    names = LayerMap.of(model, torch.linspace(-1, 1, 256).reshape(2, 2, 8, 8)).names
    assert len(names) == 3
    assert all("attention" in name for name in names[:2])
    assert names[2] == "classifier"


def test_fixed_projections_never_travel() -> None:
    model = peft_models.KINDS["VeRA"]()
    layers = LayerMap.of(model, peft_models.tokens())
    assert len(fixed_buffers(model)) == 2
    assert fixed_buffers(model) <= layers.never_sent
    # Nor do they count as statistics of a site's data.
    assert not layers.buffers


def test_statistics_of_a_norm_that_peft_replaced_never_travel() -> None:
    net = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.BatchNorm1d(4), torch.nn.ReLU(), torch.nn.Linear(4, 3))
    model = peft_models.adapted(net, peft.LoraConfig(r=2, target_modules=["0"], modules_to_save=["1", "3"]))
    layers = LayerMap.of(model, torch.randn(2, 4))
    statistics = [name for name in layers.travelling(state_entries(model)) if "running" in name]
    assert statistics == [f"base_model.model.1.modules_to_save.default.running_{what}" for what in ("mean", "var")]


def test_adapters_whose_ranks_change_are_refused() -> None:
    model = peft_models.adapted(peft_models.bert(), peft.AdaLoraConfig(task_type="SEQ_CLS", total_step=10))
    with pytest.raises(LayerError, match=r"AdaLoRA moves rank .* use LoraConfig with a fixed rank"):
        LayerMap.of(model, peft_models.tokens())


def test_merged_adapters_are_refused() -> None:
    model = peft_models.lora()
    model.merge_adapter()
    with pytest.raises(LayerError, match=r"query is merged into its weights, .* call unmerge_adapter\(\)"):
        LayerMap.of(model, peft_models.tokens())
    model.unmerge_adapter()
    assert list(LayerMap.of(model, peft_models.tokens()).names) == [*BLOCKS, HEAD]


def test_a_module_that_peft_trains_whole_is_named_as_without_adapters() -> None:
    model = peft_models.lora(modules_to_save=["pooler", "classifier"])
    assert list(LayerMap.of(model, peft_models.tokens()).names) == [*BLOCKS, "bert.pooler.dense", HEAD]
