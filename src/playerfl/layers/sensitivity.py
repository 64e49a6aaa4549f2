"""Layer importance and federation sensitivity: the paper's metric as pure functions on names and numbers."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, pairwise
from statistics import median
from typing import Any, Literal, NotRequired

import torch
from torch import Tensor
from typing_extensions import TypedDict

from playerfl.errors import LayerError
from playerfl.layers.layer_map import LayerMap, LayerName, check_choice

Importance = Mapping[LayerName, float]
"""s_l, one number per layer, input to output."""
ClientWeight = Literal["uniform", "samples"]
Normalise = Literal["none", "first_layer", "last"]
Reduce = Literal["mean", "median"]


@torch.no_grad()
def layer_importance(
    weights: Mapping[str, Tensor],
    gradients: Mapping[str, Tensor | None],
    layers: LayerMap,
    *,
    include_bias: bool = True,
) -> dict[LayerName, float]:
    """The mean over a layer's trainable scalars of (θ·∂f/∂θ)²:  s_l = 1/n_l · Σ (θ_p g_p)².

    A missing gradient counts as zero; frozen parameters do not count at all; a layer without trainable
    parameters scores 0. Computed in float64.

    >>> from torch import nn
    >>> layers = LayerMap.of(nn.Sequential(nn.Linear(2, 1, bias=False), nn.Linear(1, 1, bias=False)))
    >>> weights = {"0.weight": torch.tensor([[1.0, 2.0]]), "1.weight": torch.tensor([[3.0]])}
    >>> layer_importance(weights, {"0.weight": torch.tensor([[2.0, 1.0]]), "1.weight": None}, layers)
    {'0': 4.0, '1': 0.0}
    """
    scores = {}
    for layer, names in scored_entries(layers, weights, include_bias=include_bias).items():
        total = 0.0
        for name in names:
            gradient = gradients.get(name)
            if gradient is not None:
                total += float((weights[name].double() * gradient.double()).square().sum())
        size = sum(weights[name].numel() for name in names)
        scores[layer] = total / size if size else 0.0
    return scores


def scored_entries(
    layers: LayerMap, weights: Mapping[str, Tensor], *, include_bias: bool
) -> dict[LayerName, list[str]]:
    """The entries whose scalars make up each layer's score: its trainable parameters."""
    left_out = layers.frozen | layers.buffers

    def counts(name: str) -> bool:
        return name not in left_out and (include_bias or "bias" not in name.rpartition(".")[2])

    return {layer: [name for name in names if counts(name)] for layer, names in layers.entries.items()}


def federation_sensitivity(importance: Importance) -> dict[LayerName, float]:
    """The running sum of layer scores, first layer to l:  F_l = Σ_{k ≤ l} s_k.

    >>> federation_sensitivity({"conv1": 1.0, "conv2": 0.5, "fc": 4.0})
    {'conv1': 1.0, 'conv2': 1.5, 'fc': 5.5}
    """
    return dict(zip(importance, accumulate(importance.values()), strict=True))


class ProfileRecord(TypedDict):
    """A profile as it is written to a file."""

    layers: list[LayerName]
    batches: list[list[float]]
    batch_sizes: list[int]
    num_examples: int
    weight_batches: bool
    layer_map: NotRequired[dict[str, Any]]


@dataclass(frozen=True)
class Profile:
    """One site's layer scores, batch by batch: what a cut is decided from, and the evidence for it."""

    layers: tuple[LayerName, ...]
    batches: tuple[tuple[float, ...], ...]
    """One row per measured batch, one number per layer. A single row if the mode measures once."""
    batch_sizes: tuple[int, ...]
    num_examples: int
    weight_batches: bool = False
    layer_map: LayerMap | None = field(default=None, compare=False)
    """The layers that were measured, so that a recommendation exports these and no others."""

    @property
    def importance(self) -> dict[LayerName, float]:
        """s_l(c): the mean over batches, which count equally or in proportion to their sizes."""
        shares = self.batch_sizes if self.weight_batches else (1,) * len(self.batches)
        total = sum(shares)
        columns = zip(*self.batches, strict=True)
        means = (_sum([s * w for s, w in zip(column, shares, strict=True)]) / total for column in columns)
        return dict(zip(self.layers, means, strict=True))

    def to_json(self, *, layer_map: bool = True) -> ProfileRecord:
        """`layer_map`: whether to write down which entries each layer has. A run stores them once, not per site."""
        written: ProfileRecord = {
            "layers": list(self.layers),
            "batches": [list(row) for row in self.batches],
            "batch_sizes": list(self.batch_sizes),
            "num_examples": self.num_examples,
            "weight_batches": self.weight_batches,
        }
        if layer_map and self.layer_map is not None:
            written["layer_map"] = self.layer_map.to_json()
        return written

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> Profile:
        """Reads what `to_json` wrote.

        >>> Profile.from_json(Profile(("a", "b"), ((1.0, 2.0),), (8,), 8).to_json()).importance
        {'a': 1.0, 'b': 2.0}
        """
        try:
            rows = tuple(tuple(float(value) for value in row) for row in content["batches"])
            profile = cls(
                tuple(content["layers"]),
                rows,
                tuple(int(size) for size in content["batch_sizes"]),
                int(content["num_examples"]),
                bool(content.get("weight_batches", False)),
                LayerMap.from_json(content["layer_map"]) if content.get("layer_map") else None,
            )
        except (KeyError, TypeError, ValueError, AttributeError) as problem:
            raise LayerError(
                f"these are not a site's layer scores as Profile.to_json writes them: {problem}"
            ) from problem
        if not rows or any(len(row) != len(profile.layers) for row in rows) or len(profile.batch_sizes) != len(rows):
            raise LayerError("a site's layer scores need one row per batch and one number per layer")
        if not profile.layers or len(set(profile.layers)) < len(profile.layers) or min(profile.batch_sizes) < 1:
            raise LayerError("a site's layer scores need names of their own, and batches need examples")
        return profile


@dataclass(frozen=True)
class Combined:
    """The sites' scores combined, with warnings."""

    importance: dict[LayerName, float]
    warnings: list[str] = field(default_factory=list)
    shares: Mapping[str, float] = field(default_factory=dict)
    """Each usable site's share of the summed sensitivity, after weighting and normalising."""


def combine_sites(
    scores: Mapping[str, Importance],
    *,
    num_examples: Mapping[str, int] | None = None,
    client_weight: ClientWeight = "uniform",
    normalise: Normalise = "none",
    reduce: Reduce = "mean",
) -> Combined:
    """One score per layer from every site's scores.

    The plain mean decides as the paper's sum does (a cut is scale-free), and gives a site with ten times the
    gradient a hundred times the weight; `normalise="first_layer"` divides each site's F_l by its F_1, "last"
    by its F_L. A site whose scores are not finite or all zero is left out, with a warning.

    >>> combine_sites({"a": {"x": 1.0, "y": 3.0}, "b": {"x": 3.0, "y": 3.0}}).importance
    {'x': 2.0, 'y': 3.0}
    >>> combine_sites({"a": {"x": 1.0, "y": 3.0}, "b": {"x": 3.0, "y": 3.0}}, normalise="first_layer").importance
    {'x': 1.0, 'y': 2.0}
    """
    check_choice(client_weight, ClientWeight, "client_weight")
    check_choice(normalise, Normalise, "normalise")
    check_choice(reduce, Reduce, "reduce")
    if client_weight == "samples" and (num_examples is None or reduce == "median"):
        raise LayerError("client_weight='samples' needs num_examples and reduce='mean'")

    usable, warnings = _usable_sites(scores)
    layers = list(next(iter(usable.values())))
    for site, importance in usable.items():
        if importance.keys() != usable[next(iter(usable))].keys():
            raise LayerError(f"{site} and {next(iter(usable))} score different layers; all sites need the same model")
    rows = {site: _scaled([importance[layer] for layer in layers], normalise) for site, importance in usable.items()}
    if reduce == "median":
        sums = [list(accumulate(row)) for row in rows.values()]
        middle = [median(column) for column in zip(*sums, strict=True)]
        combined = [middle[0], *(b - a for a, b in pairwise(middle))]
        # In a median all sites count equally.
        return Combined(dict(zip(layers, combined, strict=True)), warnings, dict.fromkeys(rows, 1 / len(rows)))
    share = {site: num_examples[site] if num_examples and client_weight == "samples" else 1 for site in rows}
    shared = {site: [value * share[site] for value in row] for site, row in rows.items()}
    combined = [_sum(column) / sum(share.values()) for column in zip(*shared.values(), strict=True)]
    totals = {site: _sum(row) for site, row in shared.items()}
    shares = {site: total / _sum([*totals.values()]) for site, total in totals.items()}
    return Combined(dict(zip(layers, combined, strict=True)), warnings + _dominating_site(shares), shares)


def _sum(values: Sequence[float]) -> float:
    """The exact sum; infinite if it is too large for a number."""
    try:
        return math.fsum(values)
    except OverflowError:
        return math.inf


def _scaled(values: Sequence[float], normalise: Normalise) -> list[float]:
    first = next(value for value in values if value > 0)
    scale = {"none": 1.0, "first_layer": first, "last": math.fsum(values)}[normalise]
    return [value / scale for value in values]


def _usable_sites(scores: Mapping[str, Importance]) -> tuple[dict[str, Importance], list[str]]:
    usable, warnings = {}, []
    for site in sorted(scores):
        if is_usable(scores[site]):
            usable[site] = scores[site]
        else:
            warnings.append(f"{site} is left out: its scores are not finite or all zero")
    if not usable:
        raise LayerError(
            f"no site has usable layer scores ({', '.join(sorted(scores)) or 'none given'}); {_why(scores)}"
        )
    return usable, warnings


def is_usable(importance: Importance) -> bool:
    """Whether a site's scores can say where to cut: all are finite, and not all are zero.

    >>> is_usable({"a": 0.0, "b": 1.0}), is_usable({"a": 0.0, "b": 0.0}), is_usable({"a": math.nan, "b": 1.0})
    (True, False, False)
    """
    # Their sum too: scores near the largest number cannot be added up.
    return math.isfinite(sum(importance.values())) and any(value > 0 for value in importance.values())


def _why(scores: Mapping[str, Importance]) -> str:
    """Why none of the sites' scores can be used, and what to do."""
    if not scores:
        return "measure at least one site"
    if not all(math.isfinite(sum(importance.values())) for importance in scores.values()):
        return "some are not finite, so the loss may have diverged: try a smaller learning rate"
    return (
        "all of them are zero: no gradient reached a weight that is not zero itself. Adapters such as LoRA start with "
        "B at zero, so their first step scores nothing: measure more than one batch"
    )


DOMINATES = 0.8
"""A site with a larger share of the summed sensitivity than this decides on its own."""


def _dominating_site(shares: Mapping[str, float]) -> list[str]:
    site = max(shares, key=shares.__getitem__)
    if len(shares) > 1 and shares[site] > DOMINATES:
        return [f"{site} alone supplies {round(100 * shares[site])} % of the summed sensitivity and decides the cut"]
    return []


class ScoreRecorder:
    """Reads (θ·g)² of every layer between backward and optimiser step, without waiting for the result.

    The per-batch sums stay on the device until `profile` asks for them; a step costs three fused calls.
    """

    def __init__(
        self,
        parameters: Mapping[str, Tensor],
        layers: LayerMap,
        *,
        include_bias: bool = True,
        weight_batches: bool = False,
        touched_rows: frozenset[str] = frozenset(),
    ) -> None:
        """`touched_rows`: embedding tables whose unused rows must not dilute their layer's mean."""
        self._layers = layers
        self._weight_batches = weight_batches
        self._touched = touched_rows
        self._members = scored_entries(layers, parameters, include_bias=include_bias)
        self.names = [name for names in self._members.values() for name in names]
        self._parameters = [parameters[name] for name in self.names]
        self._norms: list[Tensor] = []
        self._touched_counts: list[Mapping[str, Tensor]] = []
        self._batch_sizes: list[int] = []

    @torch.no_grad()
    def record(
        self,
        gradients: Mapping[str, Tensor | None] | None = None,
        batch_size: int = 1,
        scale: float | Tensor | None = None,
    ) -> None:
        """Records one batch's scores from the given gradients, or from the parameters' `.grad`.

        `scale`: the factor by which mixed precision has multiplied these gradients.
        """
        if gradients is None:
            by_entry = [parameter.grad for parameter in self._parameters]
        else:
            by_entry = [gradients.get(name) for name in self.names]
        present = [i for i, gradient in enumerate(by_entry) if gradient is not None]
        norms = torch.zeros(len(self.names), dtype=_wide(self._parameters))
        touched = dict.fromkeys(self._touched, torch.tensor(0))
        if present:
            dense = [_dense(by_entry[i]) for i in present]
            held = [self._parameters[i].detach() for i in present]
            if held[0].dtype in (torch.float16, torch.bfloat16):
                held = [p.float() for p in held]
            products = torch._foreach_mul(held, [g.to(p.dtype) for p, g in zip(held, dense, strict=True)])
            # The sum of squares underflows in float32 for small late-training gradients.
            values = torch.stack(torch._foreach_norm(products, 2, dtype=_wide(products)))
            norms = values if len(present) == len(self.names) else norms.to(values.device)
            if norms is not values:
                norms[present] = values
            if scale is not None:
                norms = norms / scale
            touched |= {
                self.names[i]: (gradient != 0).any(dim=1).sum()
                for i, gradient in zip(present, dense, strict=True)
                if self.names[i] in self._touched
            }
        self.take(norms, batch_size, touched)

    def take(self, norms: Tensor, batch_size: int = 1, touched: Mapping[str, Tensor] | None = None) -> None:
        """Records the scores of one batch that were computed elsewhere: ‖θ·g‖ of every entry in `names`."""
        self._norms.append(norms)
        self._touched_counts.append(touched or {})
        self._batch_sizes.append(batch_size)

    def profile(self, num_examples: int) -> Profile:
        """Everything recorded so far, reduced to one number per layer and batch."""
        if not self._norms:
            raise LayerError("nothing was measured: no optimiser step happened while the probe was attached")
        squares = torch.stack(self._norms).cpu().double().square().tolist()
        sizes = {name: p.numel() for name, p in zip(self.names, self._parameters, strict=True)}
        widths = {name: p.shape[-1] for name, p in zip(self.names, self._parameters, strict=True) if p.dim()}
        rows = []
        for values, touched in zip(squares, self._touched_counts, strict=True):
            sums = dict(zip(self.names, values, strict=True))
            counted = sizes | {name: int(rows_seen) * widths[name] for name, rows_seen in touched.items()}
            rows.append(
                tuple(
                    math.fsum(sums[n] for n in names) / count if (count := sum(counted[n] for n in names)) else 0.0
                    for names in self._members.values()
                )
            )
        return Profile(self._layers.names, tuple(rows), tuple(self._batch_sizes), num_examples, self._weight_batches)


def _dense(gradient: Tensor | None) -> Tensor:
    assert gradient is not None
    return gradient.to_dense() if gradient.layout != torch.strided else gradient


def _wide(tensors: Sequence[Tensor]) -> torch.dtype:
    # Apple's mps device has no float64.
    return torch.float32 if tensors and tensors[0].device.type == "mps" else torch.float64
