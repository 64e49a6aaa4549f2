"""Uploads are checked on arrival: a bad one is refused and named, and the round goes on without it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from statistics import median_low

import torch
from torch import Tensor

from playerfl.federation.messages import ExpectedUpload, Reply, Request, SiteId, Upload
from playerfl.layers.layer_map import LayerMap
from playerfl.weights import squared_distance


def refused_reply(
    reply: Reply,
    request: Request,
    awaited: ExpectedUpload,
    layers: LayerMap,
    model: Mapping[str, Tensor],
    num_examples: int,
) -> str | None:
    """Why a reply cannot be used, or None: names, shapes, kinds and finite numbers, as the algorithm awaits them."""
    upload = reply.upload
    if upload.num_examples != num_examples:
        return f"it counts as {upload.num_examples} examples, but said {num_examples} at first"
    return (
        _refused_weights(upload, awaited, layers, model)
        or _refused_numbers(upload, awaited)
        or _refused_scores(reply, request)
    )


def _refused_weights(
    upload: Upload, awaited: ExpectedUpload, layers: LayerMap, model: Mapping[str, Tensor]
) -> str | None:
    expected = layers.travelling(model, awaited.layers)
    extra = sorted(upload.weights.keys() - expected.keys())
    if extra:
        return f"it holds {extra[0][:80]!r}, which was not asked for"
    missing = {layer for layer in awaited.layers if layers.travelling(model, [layer]).keys() - upload.weights.keys()}
    begun = {layer for layer in missing if layers.travelling(model, [layer]).keys() & upload.weights.keys()}
    if begun or (missing and not awaited.optional):
        return f"it lacks entries of the layer {min(begun or missing)!r}"
    for name, tensor in upload.weights.items():
        wanted = expected[name]
        if tensor.shape != wanted.shape or tensor.dtype != wanted.dtype:
            return f"{name!r} is {tuple(tensor.shape)} {tensor.dtype}, not {tuple(wanted.shape)} {wanted.dtype}"
        if tensor.is_floating_point() and not bool(torch.isfinite(tensor).all()):
            return f"{name!r} has NaN or infinite values"
    return None


def _refused_numbers(upload: Upload, awaited: ExpectedUpload) -> str | None:
    if upload.info.keys() != awaited.numbers.keys():
        return f"it says {sorted(upload.info)}, not {sorted(awaited.numbers)}"
    for key, length in awaited.numbers.items():
        values = upload.info[key]
        if not isinstance(values, list) or len(values) != length:
            return f"{key!r} is not a list of {length} numbers"
        if not all(isinstance(value, int | float) and math.isfinite(value) and value >= 0 for value in values):
            return f"{key!r} has values that are no finite numbers of at least 0"
    return None


def _refused_scores(reply: Reply, request: Request) -> str | None:
    # A loss may rightly be NaN (a diverged model), so values are not looked at: they enter no average of weights.
    allowed = {request.download.round, request.download.round + 1}
    if any(score.round not in allowed for score in reply.scores):
        return "it scores another round than it was asked for"
    if len({score[:4] for score in reply.scores}) != len(reply.scores):
        return "it scores the same thing twice"
    return None


def far_away(
    uploads: Mapping[SiteId, Mapping[str, Tensor]], common: Mapping[str, Tensor], bound: float
) -> dict[SiteId, str]:
    """Sites whose weights moved more than `bound` times as far from the common ones as the round's median.

    Of two sites the nearer one counts as the median, so that one of them cannot hide the other.

    >>> common = {"w": torch.zeros(1)}
    >>> far_away({"a": {"w": torch.ones(1)}, "b": {"w": torch.full((1,), 1e30)}}, common, 20)
    {'b': "it moved 1e+30 away from the common model, more than 20 times the round's median of 1"}
    """
    if not bound or len(uploads) < 2:
        return {}
    moved = {site: math.sqrt(squared_distance(weights, common)) for site, weights in uploads.items() if weights}
    if len(moved) < 2:
        return {}
    median = median_low(sorted(moved.values()))
    return {
        site: f"it moved {far:.3g} away from the common model, more than {bound:g} times the round's median of "
        f"{median:.3g}"
        for site, far in moved.items()
        if far > bound * median
    }
