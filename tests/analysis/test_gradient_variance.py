"""The spread of a layer's gradient entries, by hand and against torch."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from playerfl.analysis.gradient_variance import gradient_variance
from playerfl.layers.layer_map import LayerMap
from playerfl.seeding import generator_for

NET = nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 1))
LAYERS = LayerMap.of(NET)
GRADIENTS = {
    name: torch.randn(p.shape, generator=generator_for(0, name), dtype=torch.float64)
    for name, p in NET.named_parameters()
}


@pytest.mark.parametrize("normalise", [False, True])
def test_gradient_variance_is_the_population_variance_over_weights_and_biases(normalise: bool) -> None:
    variances = gradient_variance(dict(GRADIENTS), LAYERS, normalise=normalise)
    for layer in LAYERS.names:
        entries = torch.cat([GRADIENTS[name].flatten() for name in LAYERS.entries[layer]])
        expected = float(entries.var(correction=0)) / (len(entries) if normalise else 1)
        assert variances[layer] == pytest.approx(expected, rel=1e-12)


def test_missing_gradients_are_zeros() -> None:
    variance = gradient_variance({**GRADIENTS, "0.bias": None}, LAYERS)["0"]
    entries = torch.cat([GRADIENTS["0.weight"].flatten(), torch.zeros(3)])
    assert variance == pytest.approx(float(entries.var(correction=0)), rel=1e-12)


def test_frozen_layers_have_zero_variance() -> None:
    net = nn.Sequential(nn.Linear(2, 3).requires_grad_(False), nn.Linear(3, 1))
    variances = gradient_variance({"1.weight": torch.ones(1, 3), "1.bias": torch.ones(1)}, LayerMap.of(net))
    assert variances == {"0": 0.0, "1": 0.0}
