"""Whether a model is the one whose layers were measured: otherwise the exports would name what was never scored."""

from __future__ import annotations

from torch import nn

from playerfl.errors import LayerError
from playerfl.layers.layer_map import LayerMap, frozen_entries, state_entries
from playerfl.layers.wrappers import unwrapped


def check_model(layers: LayerMap, model: nn.Module) -> None:
    """Refuses a model whose entries, sizes or frozen parts are not those of the measured layers.

    >>> check_model(LayerMap.of(nn.Linear(2, 3)), nn.Linear(2, 3))
    """
    if problem := _mismatch(layers, model):
        raise LayerError(f"this is not the model that was measured: {problem}; give the model that the scores are from")


def _mismatch(layers: LayerMap, model: nn.Module) -> str | None:
    tensors, known = state_entries(model), set(layers.all_entries)
    if unknown := [entry for entry in layers.all_entries if entry not in tensors]:
        return f"it has no {unknown[0]}"
    if missing := [entry for entry in tensors if entry not in known]:
        return f"{missing[0]} has no layer"
    parameters, frozen = dict(unwrapped(model).named_parameters()), frozen_entries(model)
    if changed := sorted(frozen ^ layers.frozen):
        return f"{changed[0]} {'is frozen now' if changed[0] in frozen else 'was frozen'}"
    if changed := sorted((tensors.keys() - parameters.keys() - frozen) ^ layers.buffers):
        return f"{changed[0]} is a buffer in only one of them"
    for layer, entries in layers.entries.items():
        size = sum(parameters[entry].numel() for entry in entries if entry in parameters and entry not in frozen)
        if size != layers.num_parameters[layer]:
            return f"its layer {layer!r} has {size:,} trainable parameters instead of {layers.num_parameters[layer]:,}"
    return None
