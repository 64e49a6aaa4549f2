"""Blocks of many models' entries: what is put in comes out again, and is laid out for the kernels in between."""

from __future__ import annotations

import pytest
import torch

from playerfl.learning.stacked.layout import ALIGNMENT, Layout

SHAPES = [(), (0,), (5,), (64,), (5, 64), (15, 7), (16, 7), (64, 64), (20, 0), (8, 3, 2, 2)]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_entries_come_back(shape: tuple[int, ...]) -> None:
    models = [{"entry": torch.randn(shape)} for _ in range(3)]
    layout = Layout(models[0])
    blocks = layout.stacked(models)
    assert blocks["entry"].is_contiguous()
    assert blocks["entry"].shape[1] % ALIGNMENT == 0
    for model, found in zip(models, layout.models(blocks), strict=True):
        assert torch.equal(found["entry"], model["entry"])
        assert found["entry"].shape == shape
    assert torch.equal(layout.view("entry", blocks["entry"][1]), models[1]["entry"])
    assert torch.equal(layout.blocks(layout.views(blocks))["entry"], blocks["entry"])


@pytest.mark.parametrize("shape", [(5,), (16, 7)], ids=str)
def test_the_rest_of_a_row_is_zeros(shape: tuple[int, ...]) -> None:
    entry = torch.ones(shape)
    block = Layout({"entry": entry}).stacked([{"entry": entry}] * 2)["entry"]
    assert block[:, entry.numel() :].count_nonzero() == 0
    assert block.sum() == 2 * entry.numel()


def test_gradients_of_a_stack_of_linear_layers_are_not_copied() -> None:
    layout = Layout({"weight": torch.zeros(64, 32)})
    gradient = torch.bmm(torch.randn(3, 32, 8), torch.randn(3, 8, 64)).mT
    assert layout.blocks({"weight": gradient})["weight"].data_ptr() == gradient.data_ptr()


def test_expanded_gradients_are_copied() -> None:
    gradient = torch.randn(64).expand(3, 64)
    block = Layout({"bias": torch.zeros(64)}).blocks({"bias": gradient})["bias"]
    assert block.is_contiguous()
    assert torch.equal(block, gradient)
