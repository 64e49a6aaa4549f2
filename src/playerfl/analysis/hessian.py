"""The sum of a layer's Hessian eigenvalues: the trace of its diagonal block, exact or estimated."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from playerfl.errors import LayerError
from playerfl.layers.derive import call_model
from playerfl.layers.gradients import LossFunction, preserve_state
from playerfl.layers.layer_map import LayerMap, LayerName, check_choice
from playerfl.layers.sensitivity import scored_entries
from playerfl.seeding import generator_for

Method = Literal["auto", "exact", "hutchinson", "repo_hv_nuclear"]
METHODS: tuple[Method, ...] = get_args(Method)
EXACT_UP_TO = 2000
"""The largest layer for which `auto` computes every diagonal entry, in parameters."""
_WORTH_EXACT = 1e10
"""`auto` estimates even a small layer if the product of its parameters, the rows, and the parameters from that layer
to the output exceeds this."""
_AT_ONCE = 64


@dataclass(frozen=True)
class HessianTrace:
    """tr H_l of one layer; `standard_error` is None if it is exact."""

    value: float
    standard_error: float | None
    method: str
    parameters: int

    @property
    def per_parameter(self) -> float:
        """What the paper plots: the sum of eigenvalues over n_l."""
        return self.value / self.parameters if self.parameters else 0.0

    @property
    def error_per_parameter(self) -> float | None:
        if self.standard_error is None or not self.parameters:
            return None
        return self.standard_error / self.parameters


def hessian_traces(
    model: nn.Module,
    batches: Iterable[tuple[Any, Any]],
    loss: LossFunction,
    layers: LayerMap,
    *,
    method: Method = "auto",
    probes: int = 32,
    exact_up_to: int = EXACT_UP_TO,
    seed: int = 0,
    tick: Callable[[], None] | None = None,
) -> dict[LayerName, HessianTrace]:
    """The Hessian trace of every layer at the model's current weights, for the mean loss over all rows, in eval mode.

    `exact`: Σ_j ∂²f/∂θ_j², one Hessian-vector product per parameter. `hutchinson`: the mean of z'Hz over `probes`
    random sign vectors z, with its standard error; z is zero outside the layer, since other layers would only add
    noise. `auto`: exact for layers of at most `exact_up_to` parameters, except convolutions, which take too long. A
    trace may be negative away from a minimum. `repo_hv_nuclear` is what the authors' code plotted instead: for each
    weight, the sum of the singular values of H·v for one random unit vector v.
    """
    check_choice(method, Method, "Hessian method")
    if probes < 2:
        raise LayerError(f"probes must be at least 2, for a standard error, not {probes}")
    held = list(batches)
    rows = sum(len(targets) for _, targets in held)
    if not rows:
        raise LayerError("the Hessian needs at least one example")
    parameters = dict(model.named_parameters())
    traces = {}
    behind = sum(layers.num_parameters.values())
    # Only the plain attention kernel has a second derivative.
    with preserve_state(model), sdpa_kernel(SDPBackend.MATH):
        model.eval()
        for layer, names in scored_entries(layers, parameters, include_bias=True).items():
            trained = [parameters[name] for name in names]
            size = layers.num_parameters[layer]
            small = size <= exact_up_to and size * rows * behind <= _WORTH_EXACT and all(p.dim() < 3 for p in trained)
            behind -= size
            chosen = ("exact" if small else "hutchinson") if method == "auto" else method
            work = _WORK[chosen]
            samples = torch.zeros(1 if chosen != "hutchinson" else probes, dtype=torch.float64)
            for inputs, targets in held if trained else ():
                value = loss(call_model(model, inputs), targets).mean()
                first = torch.autograd.grad(value, trained, create_graph=True, allow_unused=True)
                pairs = [(p, g) for p, g in zip(trained, first, strict=True) if g is not None and g.requires_grad]
                samples += work(pairs, probes, (seed, layer)) * (len(targets) / rows)
            error = float(samples.std()) / math.sqrt(probes) if chosen == "hutchinson" else None
            traces[layer] = HessianTrace(float(samples.mean()), error, chosen, size)
            if tick:
                tick()
    return traces


Pairs = Sequence[tuple[nn.Parameter, Tensor]]
"""A layer's parameters with their gradients, which can be differentiated again."""


def _exact(pairs: Pairs, probes: int, key: tuple[int, str]) -> Tensor:
    total = 0.0
    for parameter, gradient in pairs:
        count = parameter.numel()
        for start in range(0, count, _AT_ONCE):
            picked = torch.arange(start, min(start + _AT_ONCE, count), device=parameter.device)
            basis = torch.zeros(len(picked), count, dtype=gradient.dtype, device=parameter.device)
            basis[torch.arange(len(picked)), picked] = 1.0
            products = _products(parameter, gradient, basis.view(-1, *gradient.shape))
            diagonal = products.reshape(len(picked), count)[torch.arange(len(picked)), picked]
            total += float(diagonal.double().sum())
    return torch.tensor([total], dtype=torch.float64)


def _products(parameter: nn.Parameter, gradient: Tensor, vectors: Tensor) -> Tensor:
    """H v for many v at once; one by one if an operation cannot be batched."""
    try:
        (products,) = torch.autograd.grad(
            gradient, parameter, vectors, retain_graph=True, is_grads_batched=True, allow_unused=True,
            materialize_grads=True,
        )  # fmt: skip
        return products
    except RuntimeError:
        return torch.stack([_times_hessian([(parameter, gradient)], [v])[0][1] for v in vectors])


def _hutchinson(pairs: Pairs, probes: int, key: tuple[int, str]) -> Tensor:
    generator = generator_for(key[0], "hutchinson", key[1])
    samples = []
    for _ in range(probes):
        signs = [
            (torch.randint(2, p.shape, generator=generator, dtype=torch.int8) * 2 - 1).to(p.device, g.dtype)
            for p, g in pairs
        ]
        samples.append(sum(float((z.double() * h.double()).sum()) for z, h in _times_hessian(pairs, signs)))
    return torch.tensor(samples, dtype=torch.float64)


def _hv_nuclear(pairs: Pairs, probes: int, key: tuple[int, str]) -> Tensor:
    generator = generator_for(key[0], "hv", key[1])
    weights = [(p, g) for p, g in pairs if p.dim() > 1]
    total = 0.0
    for parameter, gradient in weights:
        direction = torch.randn(parameter.shape, generator=generator).to(parameter.device, gradient.dtype)
        ((_, product),) = _times_hessian([(parameter, gradient)], [direction / direction.norm()])
        total += float(torch.linalg.svdvals(product.flatten(1)).sum())
    return torch.tensor([total], dtype=torch.float64)


def _times_hessian(pairs: Pairs, vectors: Sequence[Tensor]) -> list[tuple[Tensor, Tensor]]:
    """(v, H v) parameter by parameter."""
    if not pairs:
        return []
    products = torch.autograd.grad(
        [gradient for _, gradient in pairs],
        [parameter for parameter, _ in pairs],
        list(vectors),
        retain_graph=True,
        allow_unused=True,
        materialize_grads=True,
    )
    return list(zip(vectors, products, strict=True))


_WORK = {"exact": _exact, "hutchinson": _hutchinson, "repo_hv_nuclear": _hv_nuclear}
