"""What several layers use: it goes with its first use, keeps them apart, and warnings say who uses it."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from playerfl.errors import LayerError
from playerfl.layers.layer_map import LayerMap
from zoo import REAL
from zoo.attentive import words
from zoo.blocks import Conformer, sequence
from zoo.recurrent import GateByGate, GruCell, LstmCell, NormedLstmCell, Unrolled
from zoo.vision import D

BLOCKS = ("blocks.0.attn", "blocks.0.up+down", "blocks.1.attn", "blocks.1.up+down", "blocks.2.attn", "blocks.2.up+down")


def layers_of(name: str) -> LayerMap:
    build, example = REAL[name]
    return LayerMap.of(build(), example())


@pytest.mark.parametrize(
    ("name", "entry", "users"),
    [
        ("one bias table", "relative.weight", BLOCKS[::2]),
        ("one bias table, looked up in every block", "relative.weight", BLOCKS[::2]),
        ("one bias table, repeated for every example", "relative.weight", BLOCKS[::2]),
        ("one bias table, a bare parameter", "relative", BLOCKS[::2]),
        ("ReZero", "alpha", BLOCKS),
        ("one norm for all blocks", "blocks.0.norm1.weight", BLOCKS),
        ("one activation with a parameter for all blocks", "blocks.0.act.weight", BLOCKS[1::2]),
    ],
)
def test_what_blocks_share_goes_with_its_first_use_and_keeps_them_apart(
    name: str, entry: str, users: tuple[str, ...]
) -> None:
    layers = layers_of(name)
    assert layers.names == ("words", *BLOCKS, "head")
    assert entry in layers.entries[users[0]]
    assert layers.tied[entry] == users


def test_the_warning_says_once_what_is_shared_and_by_whom() -> None:
    layers = layers_of("one norm for all blocks")
    assert layers.cut_warnings(3) == [
        "blocks.0.norm1 is used by blocks.0.attn, blocks.0.up+down, blocks.1.attn and 3 more layers, on both sides of "
        "the cut"
    ]
    assert layers.cut_warnings(1) == []
    assert layers.reasons["blocks.0.attn"].endswith(f"blocks.0.norm1 is also used by {', '.join(BLOCKS[1:])}")
    table = layers_of("one bias table")
    assert "relative.weight is used by blocks.0.attn, blocks.1.attn and blocks.2.attn" in table.cut_warnings(2)[0]
    assert table.cut_warnings(6) == []


def test_a_shared_part_may_be_private_or_refused() -> None:
    build, example = REAL["ReZero"]
    assert "alpha" in LayerMap.of(build(), example(), tie_policy="local").entries["blocks.2.up+down"]
    with pytest.raises(LayerError, match=r"alpha is used by the layers blocks\.0\.attn, blocks\.0\.up\+down"):
        LayerMap.of(build(), example(), tie_policy="error")


class Untied(nn.Module):
    """Encoder and decoder share their words, but not the head: behind the decoder's first layer nothing is tied."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(11, D)
        self.encoder, self.decoder, self.head = nn.Linear(D, D), nn.GRUCell(D, D), nn.Linear(D, 2)
        self.again = nn.Embedding(11, D)
        self.again.weight = self.words.weight

    def forward(self, ids: Tensor) -> Tensor:
        memory = self.encoder(self.words(ids)).relu().mean(1)
        out: Tensor = self.head(self.decoder(self.again(ids[:, 0]), memory))
        return out


def test_a_table_without_a_layer_of_its_own_counts_where_it_is_read() -> None:
    layers = LayerMap.of(Untied(), words())
    assert layers.names == ("words", "encoder", "decoder", "head")
    assert layers.tied == {"words.weight": ("words", "decoder")}
    assert [bool(layers.cut_warnings(cut)) for cut in range(5)] == [False, True, True, False, False]


@pytest.mark.parametrize("steps", [1, 2, 3, 9])
@pytest.mark.parametrize("cell", [LstmCell, NormedLstmCell, GruCell, GateByGate])
def test_a_cell_is_one_layer_however_long_the_example_is(cell: type[nn.Module], steps: int) -> None:
    ids = torch.arange(2 * steps).reshape(2, steps) % 11
    layers = LayerMap.of(Unrolled(cell, 2), ids)
    assert layers.names == ("words", "cells.0", "cells.1", "head")


def test_a_norm_at_the_end_of_a_block_stays_there() -> None:
    layers = LayerMap.of(Conformer(), sequence())
    assert "blocks.0.final.weight" in layers.entries["blocks.0.ff2"]
    assert "blocks.1.final.weight" in layers.entries["blocks.1.ff2"]


def test_a_buffer_goes_where_it_is_used() -> None:
    assert "output_scale" in LayerMap.of(Conformer(), sequence()).entries["head"]
    constants = layers_of("constants of the data")
    assert {"mean", "spread"} <= set(constants.entries["body.0"])
    assert "unit" in constants.entries["out"]


def test_experts_that_no_example_reached_are_part_of_their_block() -> None:
    layers = layers_of("experts that see nothing")
    assert layers.names == ("0", "1.attn", "1.moe", "2.attn", "2.moe", "4")
    assert "1.moe.experts.0.0 is part of it, but was not used in the forward pass" in layers.reasons["1.moe"]


@pytest.mark.system
@pytest.mark.filterwarnings("ignore")
def test_peft_dora_keeps_factors_and_magnitude_together() -> None:
    peft = pytest.importorskip("peft", reason="peft is not installed")
    net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 2))
    model = peft.get_peft_model(net, peft.LoraConfig(r=2, target_modules=["0", "2"], use_dora=True))
    layers = LayerMap.of(model, torch.zeros(2, 4))
    trains = {name.removeprefix("base_model.model."): n for name, n in layers.num_parameters.items() if n}
    assert trains == {"0": 24 + 8, "2": 32 + 8}
