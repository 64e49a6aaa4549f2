"""CKA: how alike two sites' representations of the same inputs are (Kornblith et al. 2019)."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any, Literal

import torch
from torch import Tensor, nn

from playerfl.data.examples import tensors_in
from playerfl.errors import LayerError
from playerfl.layers.derive import call_model
from playerfl.layers.gradients import preserve_state
from playerfl.layers.layer_map import LayerMap, LayerName, check_choice

Formula = Literal["centred", "debiased", "printed"]
Maps = Literal["flatten", "mean"]


def linear_cka(x: Tensor, y: Tensor, formula: Formula = "centred") -> float:
    """The similarity of two representations (n, d₁) and (n, d₂) of the same n inputs: 1 if equal up to rotation.

    `centred`: ‖Y'X‖² / (‖X'X‖ · ‖Y'Y‖) on centred columns. `debiased`: the same with unbiased estimates, for few inputs
    (it may be slightly negative). `printed`: the paper's formula, not centred and with squared norms in the
    denominator, which is neither 1 for equal representations nor scale-free.

    >>> x = torch.tensor([[1.0], [2.0], [4.0], [7.0]])
    >>> round(linear_cka(x, -3 * x + 5), 6)
    1.0
    """
    centre = formula != "printed"
    return cka_of(gram(x, centre=centre), gram(y, centre=centre), formula)


def gram(x: Tensor, *, centre: bool = True) -> Tensor:
    """K = XX', all that CKA needs of a representation; `centre` subtracts the mean of each column first."""
    if x.dim() != 2:
        raise LayerError(f"a representation must have rows and columns, not the shape {tuple(x.shape)}")
    # Centred before multiplying: in float32 the common part would use up most of the digits.
    held = x - x.mean(0) if centre else x
    return (held @ held.T).double()


def cka_of(left: Tensor, right: Tensor, formula: Formula = "centred") -> float:
    """CKA from two Gram matrices of the same inputs."""
    check_choice(formula, Formula, "CKA formula")
    if left.shape != right.shape:
        raise LayerError(f"both representations need the same inputs, not {len(left)} and {len(right)} rows")
    if formula == "printed":
        # ‖Y'X‖² = Σ K∘L, ‖X'X‖² = Σ K∘K.
        return _ratio(float((left * right).sum()), float((left * left).sum()) * float((right * right).sum()))
    if formula == "centred":
        k, m = _centred(left), _centred(right)
        return _ratio(float((k * m).sum()), float(k.norm()) * float(m.norm()))
    if len(left) < 4:
        raise LayerError(f"the debiased formula needs at least 4 inputs, not {len(left)}")
    below = _unbiased_hsic(left, left) * _unbiased_hsic(right, right)
    return _ratio(_unbiased_hsic(left, right), below**0.5 if below > 0 else 0.0)


def _centred(k: Tensor) -> Tensor:
    return k - k.mean(0, keepdim=True) - k.mean(1, keepdim=True) + k.mean()


def _unbiased_hsic(k: Tensor, m: Tensor) -> float:
    """Song et al. 2012, equation 5, without the factor 1/(n(n-3)), which cancels."""
    n = len(k)
    k, m = (matrix - torch.diag(matrix.diagonal()) for matrix in (k, m))
    cross = float((k * m).sum()) + float(k.sum()) * float(m.sum()) / ((n - 1) * (n - 2))
    return cross - 2 * float(k.sum(0) @ m.sum(0)) / (n - 2)


def _ratio(above: float, below: float) -> float:
    if below == 0:
        warnings.warn("CKA is undefined for a representation that is the same for all inputs", stacklevel=3)
        return float("nan")
    return above / below


def representations(
    model: nn.Module, inputs: Any, layers: LayerMap, *, maps: Maps = "flatten"
) -> dict[LayerName, Tensor]:
    """The output of each layer, one row per input, in eval mode.

    Convolution maps are flattened, or averaged over pixels (`maps="mean"`); sequences are averaged over tokens, without
    padding. A layer whose modules are never called (because its weights are used directly) is absent.
    """
    outputs: dict[LayerName, Tensor] = {}
    mask = _token_mask(model, inputs)
    handles = [
        module.register_forward_hook(_noting(outputs, layer, mask, maps))
        for layer, owners in _owners(model, layers).items()
        for module in owners
    ]
    try:
        with preserve_state(model), torch.no_grad():
            model.eval()
            call_model(model, inputs)
    finally:
        for handle in handles:
            handle.remove()
    return {layer: outputs[layer] for layer in layers.names if layer in outputs}


def _owners(model: nn.Module, layers: LayerMap) -> dict[LayerName, list[nn.Module]]:
    """The modules that hold a layer's entries, and the module with the layer's name: the last one called is used.

    A module that also holds other layers is left out: it returns only after all of them.
    """
    modules = dict(model.named_modules())
    owners = {}
    for layer, entries in layers.entries.items():
        paths = dict.fromkeys([*(entry.rpartition(".")[0] for entry in entries), layer])
        others = [entry for entry in layers.all_entries if entry not in entries]
        owners[layer] = [
            modules[path]
            for path in paths
            if path in modules and not any(entry.startswith(f"{path}." if path else "") for entry in others)
        ]
    return owners


def _noting(outputs: dict[LayerName, Tensor], layer: LayerName, mask: Tensor | None, maps: Maps) -> Any:
    def note(module: nn.Module, given: Any, output: Any) -> None:
        first = output[0] if isinstance(output, tuple | list) else output
        if isinstance(first, Tensor) and first.dim() > 1:
            outputs[layer] = _rows(first.detach(), mask, maps)

    return note


def _rows(output: Tensor, mask: Tensor | None, maps: Maps) -> Tensor:
    if output.dim() == 3 and mask is not None and output.shape[:2] == mask.shape:
        kept = mask.unsqueeze(-1).to(output.dtype)
        return (output * kept).sum(1) / kept.sum(1).clamp_min(1)
    if output.dim() == 4 and maps == "mean":
        return output.mean((2, 3))
    # A copy: an in-place ReLU after the layer would overwrite its output.
    return output.flatten(1).clone()


def _token_mask(model: nn.Module, inputs: Any) -> Tensor | None:
    """Which tokens are not padding: the inputs' attention mask, or all ids but the padding index."""
    if isinstance(inputs, Mapping) and isinstance(inputs.get("attention_mask"), Tensor):
        given: Tensor = inputs["attention_mask"]
        return given
    tensors = (t for t in tensors_in(inputs) if isinstance(t, Tensor))
    ids = next((t for t in tensors if t.dim() == 2 and not t.is_floating_point()), None)
    if ids is None:
        return None
    padding = next((m.padding_idx for m in model.modules() if isinstance(m, nn.Embedding)), None)
    return torch.ones_like(ids) if padding is None else (ids != padding).long()


def similarity_between_sites(
    grams: Mapping[str, Mapping[LayerName, Tensor]], formula: Formula = "centred"
) -> dict[str, dict[LayerName, float]]:
    """Each site's mean CKA with all other sites, by site and layer."""
    sites = sorted(grams)
    if len(sites) < 2:
        raise LayerError("similarity between sites needs at least two sites")
    names = [layer for layer in grams[sites[0]] if all(layer in grams[site] for site in sites)]
    similarity: dict[str, dict[LayerName, float]] = {site: {} for site in sites}
    for layer in names:
        pairs = {
            (a, b): cka_of(grams[a][layer], grams[b][layer], formula)
            for i, a in enumerate(sites)
            for b in sites[i + 1 :]
        }
        for site in sites:
            others = [value for pair, value in pairs.items() if site in pair]
            similarity[site][layer] = sum(others) / len(others)
    return similarity
