"""Gradient variance: how much the entries of a layer's gradient differ from each other."""

from __future__ import annotations

import torch
from torch import Tensor

from playerfl.layers.gradients import Gradients
from playerfl.layers.layer_map import LayerMap, LayerName
from playerfl.layers.sensitivity import scored_entries


def gradient_variance(gradients: Gradients, layers: LayerMap, *, normalise: bool = False) -> dict[LayerName, float]:
    """The population variance of a layer's gradient entries:  1/n_l · Σ_j (g_j - mean g)².

    Across parameters, as in the paper's equation, not across batches. `normalise` divides by n_l once more, as in the
    paper's text. A missing gradient counts as zeros.

    >>> from torch import nn
    >>> layers = LayerMap.of(nn.Linear(2, 1, bias=False))
    >>> gradient_variance({"weight": torch.tensor([[1.0, 3.0]])}, layers)
    {'parameters': 1.0}
    """
    known = {name: gradient for name, gradient in gradients.items() if gradient is not None}
    variances = {}
    for layer, names in scored_entries(layers, known, include_bias=True).items():
        size = layers.num_parameters[layer]
        present = [known[name].double().flatten() for name in names if name in known]
        entries: Tensor = torch.cat(present) if present else torch.zeros(0, dtype=torch.float64)
        if not size:
            variances[layer] = 0.0
            continue
        mean = float(entries.sum()) / size
        absent = size - entries.numel()
        variance = (float((entries - mean).square().sum()) + absent * mean**2) / size
        variances[layer] = variance / size if normalise else variance
    return variances
