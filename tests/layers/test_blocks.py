"""Layers of the models people bring: residual blocks, adapters, frozen backbones, tied embeddings."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from playerfl.layers.layer_map import LayerMap
from playerfl.layers.probe import SensitivityProbe


class BasicBlock(nn.Module):
    """As in a ResNet: two convolutions with norms, and a shortcut around them."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.shortcut = nn.Sequential(nn.Conv2d(inputs, outputs, 1), nn.BatchNorm2d(outputs))

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.bn2(self.conv2(self.bn1(self.conv1(x)).relu())) + self.shortcut(x)
        return out.relu()


class PreActivation(BasicBlock):
    """The norm comes first, and still belongs to this block."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__(inputs, outputs)
        self.bn1 = nn.BatchNorm2d(inputs)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.bn2(self.conv2(self.conv1(self.bn1(x).relu())).relu()) + self.shortcut(x)
        return out


class Unit(nn.Module):
    """Its class name says nothing; the child called `skip` shows that it is a residual block."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.conv2, self.skip = nn.Conv2d(2, 2, 1), nn.Conv2d(2, 2, 1), nn.Conv2d(2, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.conv2(self.conv1(x)) + self.skip(x)
        return out


class Plain(nn.Module):
    """Neither its name nor its parts show the shortcut; only its code does."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.norm1 = nn.Conv2d(2, 2, 1), nn.BatchNorm2d(2)
        self.conv2, self.norm2 = nn.Conv2d(2, 2, 1), nn.BatchNorm2d(2)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.norm2(self.conv2(self.norm1(self.conv1(x)).relu()))
        out += x
        return out.relu()


class Noisy(Plain):
    """Its code draws random numbers, even while it is traced."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) + torch.rand(1)


class Middle(nn.Module):
    """A network with a sum in the middle is not a block: another layer comes after it."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.last = nn.Linear(2, 2), nn.Linear(2, 2), nn.Linear(2, 2)

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x)
        out: Tensor = self.last(h + self.second(h))
        return out


class TwoSums(Middle):
    """Several sums mean several blocks."""

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.first(x)
        out: Tensor = x + self.second(x)
        return out


class OnData(Middle):
    """Code with a condition on its data cannot be traced without data."""

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = x + self.first(x) if x.sum() > 0 else x
        return out


@pytest.mark.parametrize("block", [BasicBlock, PreActivation])
@pytest.mark.parametrize("example", [None, torch.zeros(2, 1, 4, 4)], ids=["registered", "flow"])
def test_a_residual_block_is_one_layer(block: type[BasicBlock], example: Tensor | None) -> None:
    net = nn.Sequential(nn.Conv2d(1, 2, 1), nn.BatchNorm2d(2), block(2, 2), block(2, 3), nn.Flatten(), nn.Linear(48, 2))
    layers = LayerMap.of(net, example)
    assert layers.names == ("0", "2", "3", "5")
    assert "1.running_mean" in layers.entries["0"]
    assert "2.bn1.running_mean" in layers.entries["2"]
    assert "3.shortcut.1.weight" in layers.entries["3"]


def test_a_block_is_known_by_its_shortcut() -> None:
    assert LayerMap.of(nn.Sequential(Unit(), Unit(), nn.Conv2d(2, 1, 1))).names == ("0", "1", "2")


def test_a_block_is_known_by_its_code() -> None:
    network = nn.Sequential(nn.Conv2d(1, 2, 1), Plain(), Noisy(), nn.Flatten())
    random = torch.get_rng_state()
    assert LayerMap.of(network).names == ("0", "1", "2")
    assert torch.equal(torch.get_rng_state(), random)


@pytest.mark.parametrize("network", [Middle, TwoSums, OnData])
def test_modules_that_are_not_blocks_keep_their_layers(network: type[nn.Module]) -> None:
    assert LayerMap.of(nn.Sequential(network())).names == ("0.first", "0.second", "0.last")


class VisionTransformer(nn.Module):
    """Position and class tables are parameters of the network itself, as most people write it."""

    def __init__(self) -> None:
        super().__init__()
        self.cls_token, self.pos_embed = nn.Parameter(torch.zeros(1, 1, 4)), nn.Parameter(torch.zeros(1, 5, 4))
        self.patches, self.head = nn.Conv2d(1, 4, 2, 2), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        patches = self.patches(x).flatten(2).transpose(1, 2)
        out: Tensor = self.head((torch.cat([self.cls_token.expand(len(x), -1, -1), patches], 1) + self.pos_embed)[:, 0])
        return out


@pytest.mark.parametrize("example", [None, torch.zeros(2, 1, 4, 4)], ids=["registered", "flow"])
def test_tables_of_the_network_itself_join_its_embedding(example: Tensor | None) -> None:
    layers = LayerMap.of(VisionTransformer(), example)
    assert layers.names == ("patches", "head")
    assert layers.entries["patches"][:2] == ("cls_token", "pos_embed")


def test_a_network_of_blocks_is_not_one_layer() -> None:
    class ResidualNet(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.blocks = nn.Sequential(BasicBlock(1, 2), BasicBlock(2, 2))
            self.head = nn.Linear(2, 2)

    assert LayerMap.of(ResidualNet()).names == ("blocks.0", "blocks.1", "head")


class LoRALinear(nn.Module):
    """A frozen layer and a trained low-rank update."""

    def __init__(self, inputs: int, outputs: int, rank: int = 2) -> None:
        super().__init__()
        self.base = nn.Linear(inputs, outputs).requires_grad_(False)
        self.down, self.up = nn.Linear(inputs, rank, bias=False), nn.Linear(rank, outputs, bias=False)
        nn.init.zeros_(self.up.weight)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.base(x) + self.up(self.down(x))
        return out


def adapted() -> nn.Module:
    return nn.Sequential(LoRALinear(4, 6), nn.ReLU(), LoRALinear(6, 6), nn.ReLU(), nn.Linear(6, 3))


def test_an_adapted_layer_is_one_layer_and_counts_what_trains() -> None:
    layers = LayerMap.of(adapted())
    assert dict(layers.num_parameters) == {"0": 20, "2": 24, "4": 21}
    assert "0.base.weight" in layers.frozen


def test_adapters_that_start_at_zero_score_from_the_second_step_on() -> None:
    """One factor starts at zero, so θ·g is 0 for it, and the gradient of the other factor is 0 too."""
    model = adapted()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    with SensitivityProbe(model).attach(optimizer) as probe:
        for _ in range(3):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(torch.randn(8, 4)), torch.randint(3, (8,))).backward()
            optimizer.step()
    first, *later = probe.profile().batches
    assert first[:2] == (0.0, 0.0)
    assert all(row[0] > 0 and row[1] > 0 for row in later)


def test_a_frozen_backbone_is_listed_and_scores_nothing() -> None:
    net = nn.Sequential(nn.Linear(4, 4).requires_grad_(False), nn.Linear(4, 4).requires_grad_(False), nn.Linear(4, 2))
    layers = LayerMap.of(net)
    assert dict(layers.num_parameters) == {"0": 0, "1": 0, "2": 10}
    assert layers.travelling(dict(net.named_parameters())).keys() == {"2.weight", "2.bias"}


@pytest.mark.system
@pytest.mark.filterwarnings("ignore")
def test_peft_models_have_a_layer_for_each_adapted_module() -> None:
    peft = pytest.importorskip("peft", reason="peft is not installed")
    net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 2))
    model = peft.get_peft_model(net, peft.LoraConfig(r=2, target_modules=["0", "2"], modules_to_save=["4"]))
    layers = LayerMap.of(model, torch.zeros(1, 4))
    trains = {name.removeprefix("base_model.model."): n for name, n in layers.num_parameters.items() if n}
    assert trains == {"0": 24, "2": 32, "4": 18}


@pytest.mark.system
@pytest.mark.filterwarnings("ignore")
def test_transformers_models_have_the_layers_of_the_paper() -> None:
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    bert = transformers.BertForSequenceClassification(
        transformers.BertConfig(vocab_size=9, hidden_size=8, num_hidden_layers=1, num_attention_heads=2,
                                intermediate_size=16, max_position_embeddings=8)
    )  # fmt: skip
    assert LayerMap.of(bert).names == (
        "bert.embeddings", "bert.encoder.layer.0.attention",
        "bert.encoder.layer.0.intermediate.dense+dense", "bert.pooler.dense", "classifier",
    )  # fmt: skip
    gpt = transformers.GPT2LMHeadModel(
        transformers.GPT2Config(vocab_size=9, n_embd=8, n_layer=1, n_head=2, n_positions=8, bos_token_id=0,
                                eos_token_id=0)
    )  # fmt: skip
    layers = LayerMap.of(gpt)
    assert layers.names == ("transformer.wte", "transformer.h.0.attn", "transformer.h.0.mlp")
    assert layers.tied == {"transformer.wte.weight": ("transformer.wte", "lm_head")}
    assert "transformer.wte.weight is used by transformer.wte and lm_head, on both sides" in layers.cut_warnings(1)[0]


class Bilinear(nn.Module):
    """A gated feed-forward without an activation."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.other, self.out = nn.Linear(4, 8), nn.Linear(4, 8), nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = x + self.out(self.one(x) * self.other(x))
        return y


def test_data_times_data_is_no_linear_map() -> None:
    layers = LayerMap.of(nn.Sequential(nn.Linear(3, 4), Bilinear(), Bilinear(), nn.Linear(4, 2)), torch.randn(2, 3))
    assert layers.names == ("0", "1", "2", "3")
    assert layers.reasons["1"] == "residual block: a shortcut leads around it"
