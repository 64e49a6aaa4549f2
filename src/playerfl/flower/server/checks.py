"""Checks of sites and uploads. Bad ones are refused with a reason, and the round continues without them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from statistics import median_low

import torch
from torch import Tensor

from playerfl.data.schema import Schema
from playerfl.federation.messages import ExpectedUpload, Reply, Request, SiteId, Upload
from playerfl.flower.server.job import Job
from playerfl.flower.server.state import JobState
from playerfl.flower.wire.introduction import Introduction
from playerfl.layers.layer_map import LayerMap
from playerfl.weights import Weights, squared_distance


@dataclass(frozen=True)
class JobChecks:
    """Admits sites with the same layers, and accepts replies that contain what the algorithm expects."""

    job: Job
    state: JobState

    def admit(self, site: SiteId, introduction: Introduction) -> str | None:
        """Why a site cannot take part, or None. The first site to be admitted decides the layers."""
        if reason := self._differing_schema(site, introduction.schema):
            return reason
        layers, agreed = introduction.layers, self.state.layers
        if sorted(entry for entries in layers.entries.values() for entry in entries) != sorted(self.job.initial):
            return "its layers are not those of the model"
        if agreed is None:
            self.job.algorithm.check_layers(layers)
            self.state.layers = layers
        elif agreed != layers:
            return "it divides the model into different layers than the other sites; declare them with layer_groups()"
        self.state.examples[site] = introduction.examples
        return None

    def _differing_schema(self, site: SiteId, schema: Schema | None) -> str | None:
        contacts = self.state.contacts
        if contacts.schema is None and self.job.schema is not None:
            contacts.schema = ("the server", self.job.schema)
        if schema is None:
            return None
        if contacts.schema is None:
            contacts.schema = (site, schema)
        other, agreed = contacts.schema
        return schema.difference(agreed, site, other)

    def refused(self, requests: Mapping[SiteId, Request], replies: Mapping[SiteId, Reply]) -> dict[SiteId, str]:
        """The replies that cannot be used, and why."""
        server, deployment = self.state.server, self.job.deployment
        assert server is not None
        reasons = {}
        for site, reply in replies.items():
            expected = self.job.algorithm.server_expects(server, requests[site].verbs)
            if deployment.privacy.secure_range:
                expected = replace(expected, layers=())
            examples = self.state.examples[site]
            reason = refused_reply(reply, requests[site], expected, server.layers, self.job.initial, examples)
            if reason:
                reasons[site] = reason
        accepted = {site: reply.upload.weights for site, reply in replies.items() if site not in reasons}
        return {**reasons, **far_away(accepted, server.weights, deployment.norm_bound)}

    def expected_weights(self) -> Weights:
        """What a fit uploads now: only names, shapes and types matter."""
        server = self.state.server
        assert server is not None
        expected = self.job.algorithm.server_expects(server, ("fit",))
        return server.layers.travelling(self.job.initial, expected.layers)


def refused_reply(
    reply: Reply,
    request: Request,
    expected_upload: ExpectedUpload,
    layers: LayerMap,
    model: Mapping[str, Tensor],
    num_examples: int,
) -> str | None:
    """Why a reply cannot be used, or None: names, shapes, types and finite numbers must be as the algorithm expects."""
    upload = reply.upload
    if upload.num_examples != num_examples:
        return f"it now claims {upload.num_examples} examples, but introduced itself with {num_examples}"
    return (
        _refused_weights(upload, expected_upload, layers, model)
        or _refused_numbers(upload, expected_upload)
        or _refused_scores(reply, request)
    )


def _refused_weights(
    upload: Upload, expected_upload: ExpectedUpload, layers: LayerMap, model: Mapping[str, Tensor]
) -> str | None:
    expected = layers.travelling(model, expected_upload.layers)
    extra = sorted(upload.weights.keys() - expected.keys())
    if extra:
        return f"it holds {extra[0][:80]!r}, which was not asked for"
    entries = {layer: layers.travelling(model, [layer]).keys() for layer in expected_upload.layers}
    missing = {layer for layer in entries if entries[layer] - upload.weights.keys()}
    partial = {layer for layer in missing if entries[layer] & upload.weights.keys()}
    if partial or (missing and not expected_upload.optional):
        return f"it lacks entries of the layer {min(partial or missing)!r}"
    for name, tensor in upload.weights.items():
        wanted = expected[name]
        if tensor.shape != wanted.shape or tensor.dtype != wanted.dtype:
            return f"{name!r} is {tuple(tensor.shape)} {tensor.dtype}, not {tuple(wanted.shape)} {wanted.dtype}"
        if tensor.is_floating_point() and not bool(torch.isfinite(tensor).all()):
            return f"{name!r} has NaN or infinite values"
    return None


def _refused_numbers(upload: Upload, expected_upload: ExpectedUpload) -> str | None:
    if upload.info.keys() != expected_upload.numbers.keys():
        return f"its info holds {sorted(upload.info)}, not {sorted(expected_upload.numbers)}"
    for key, length in expected_upload.numbers.items():
        values = upload.info[key]
        if not isinstance(values, list) or len(values) != length:
            return f"{key!r} is not a list of {length} numbers"
        if not all(isinstance(value, int | float) and math.isfinite(value) and value >= 0 for value in values):
            return f"{key!r} must be finite and non-negative"
    return None


def _refused_scores(reply: Reply, request: Request) -> str | None:
    # Values are not checked: a diverged model's loss is NaN, and scores do not enter the average of weights.
    allowed = {request.download.round, request.download.round + 1}
    if any(score.round not in allowed for score in reply.scores):
        return "it has scores for a round that was not asked for"
    if len({score[:4] for score in reply.scores}) != len(reply.scores):
        return "it has the same score twice"
    return None


def far_away(
    uploads: Mapping[SiteId, Mapping[str, Tensor]], common: Mapping[str, Tensor], bound: float
) -> dict[SiteId, str]:
    """Sites whose weights moved more than `bound` times as far from the common model as the round's median site.

    With two sites the nearer one is the median, so a distant site is noticed.

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
