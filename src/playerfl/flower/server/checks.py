"""Checks of sites and uploads. Bad ones are refused with a reason, and the round continues without them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from torch import Tensor

from playerfl.data.schema import Schema
from playerfl.engine.handle import scored
from playerfl.federation.messages import ExpectedUpload, Reply, Request, SiteId, Upload
from playerfl.flower.server.influence import capped_examples, far_away
from playerfl.flower.server.job import LEAST_OWN_LOSS, Job
from playerfl.flower.server.model_layers import same_layers
from playerfl.flower.server.schema_vote import agreed_schema
from playerfl.flower.server.state import JobState
from playerfl.flower.wire.introduction import Introduction
from playerfl.flower.wire.values import unusable_values
from playerfl.layers.layer_map import LayerMap
from playerfl.weights import Weights

MOST_EXAMPLES = 10**9
MOST_SCORES = 1000
LARGEST_NUMBER = 1e100
"""For the numbers in an upload's info: layer scores are products of squares."""
LONGEST_REASON = 300
_ROUNDING = 1e-6


@dataclass(frozen=True)
class JobChecks:
    """Admits sites with the same layers, and accepts replies that contain what the algorithm expects."""

    job: Job
    state: JobState

    def admit(self, site: SiteId, introduction: Introduction) -> str | None:
        """Why a site cannot take part, or None. Its layers and columns count once all have spoken; see `settle`."""
        if reason := self._differing_schema(site, introduction.schema):
            return reason
        layers, agreed = introduction.layers, self.state.layers
        if introduction.examples > MOST_EXAMPLES:
            return f"it claims {introduction.examples:.3g} training examples; at most {MOST_EXAMPLES:,} are accepted"
        if sorted(entry for entries in layers.entries.values() for entry in entries) != sorted(self.job.initial):
            return "its layers are not those of the model"
        if agreed is not None and not same_layers(agreed, layers):
            return _OTHER_LAYERS
        self.state.stated_layers[site] = layers
        if introduction.schema is not None:
            self.state.stated_schemas[site] = introduction.schema
        if introduction.check is not None:
            self.state.stated_checks[site] = introduction.check
        self.state.examples[site] = introduction.examples
        return None

    def settle(self) -> dict[SiteId, str]:
        """Decides layers and columns of the job, once the sites have introduced themselves; who differs, and why."""
        schemas = self.state.stated_schemas
        columns = agreed_schema(self.job.schema, schemas)
        differing = {}
        if columns is not None:
            self.state.contacts.schema = columns
            found = {site: schema.difference(columns, site, "the other sites") for site, schema in schemas.items()}
            differing = {site: reason for site, reason in found.items() if reason}
        return differing | self._other_layers()

    def _other_layers(self) -> dict[SiteId, str]:
        stated = self.state.stated_layers
        if self.state.layers is None and stated:
            agreed = self.job.layers.agreed(stated)
            if agreed is None:
                return dict.fromkeys(stated, "its layers are not those of the model")
            self.job.algorithm.check_layers(agreed)
            self.state.layers = agreed
        agreed = self.state.layers
        return {
            site: _OTHER_LAYERS
            for site, layers in stated.items()
            if agreed is not None and not same_layers(agreed, layers)
        }

    def _differing_schema(self, site: SiteId, schema: Schema | None) -> str | None:
        """Compares with what is agreed already: the server's own template, or what `settle` has decided."""
        contacts = self.state.contacts
        if contacts.schema is None:
            contacts.schema = self.job.schema
        if schema is None or contacts.schema is None:
            return None
        return schema.difference(contacts.schema, site, "the server")

    def refused(self, requests: Mapping[SiteId, Request], replies: Mapping[SiteId, Reply]) -> dict[SiteId, str]:
        """The replies that cannot be used, and why."""
        server, deployment = self.state.server, self.job.deployment
        assert server is not None
        reasons = {}
        for site, reply in replies.items():
            expected = self.job.algorithm.server_expects(server, requests[site].verbs)
            if deployment.privacy.secure_range:
                expected = replace(expected, layers=())
            reason = _or_failure(
                lambda reply=reply, site=site, expected=expected: (
                    refused_reply(  # type: ignore[misc]
                        reply, expected, server.layers, self.job.initial, self.state.examples[site]
                    )
                    or _refused_values_of_scores(reply, self.job)
                    or _misplaced_score(reply, requests[site], self.job)
                )
            )
            if reason:
                reasons[site] = reason[:LONGEST_REASON]
        accepted = {site: reply.upload for site, reply in replies.items() if site not in reasons}
        weights = {site: upload.weights for site, upload in accepted.items()}
        examples = {site: upload.num_examples for site, upload in accepted.items()}
        too_heavy = self._too_heavy(examples) if deployment.privacy.secure_range else {}
        return {**reasons, **far_away(weights, server.weights, deployment.norm_bound, examples), **too_heavy}

    def weighted(self, replies: Mapping[SiteId, Reply]) -> dict[SiteId, Reply]:
        """The replies with each site's number of examples capped at its share; unchanged if no site is above it."""
        examples = {site: reply.upload.num_examples for site, reply in replies.items()}
        capped = capped_examples(examples, self.job.deployment.max_weight)
        return {
            site: reply
            if capped[site] == examples[site]
            else replace(reply, upload=replace(reply.upload, num_examples=capped[site]))
            for site, reply in replies.items()
        }

    def _too_heavy(self, examples: Mapping[SiteId, int]) -> dict[SiteId, str]:
        """Sites above their share under secure aggregation, where each site weighs its own upload."""
        share = self.job.deployment.max_weight
        capped = capped_examples(examples, share)
        return {
            site: f"it claims more than {share:.0%} of all examples, and secure aggregation cannot cap its weight"
            for site in examples
            if capped[site] < examples[site]
        }

    def expected_weights(self) -> Weights:
        """The tensors that a fit uploads now: only names, shapes and types matter."""
        server = self.state.server
        assert server is not None
        expected = self.job.algorithm.server_expects(server, ("fit",))
        return expected.entries(server.layers, self.job.initial)


_OTHER_LAYERS = "its layers, or their order, differ from those of the server's model; declare them with layer_groups()"


def _or_failure(check: Callable[[], str | None]) -> str | None:
    """The result of a check. If the check itself fails, the upload is refused: no upload may end the job."""
    try:
        return check()
    except Exception as problem:
        return f"its upload cannot be checked ({type(problem).__name__})"


def refused_reply(
    reply: Reply,
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
        or _refused_scores(reply)
    )


def _refused_weights(
    upload: Upload, expected_upload: ExpectedUpload, layers: LayerMap, model: Mapping[str, Tensor]
) -> str | None:
    expected = expected_upload.entries(layers, model)
    extra = sorted(upload.weights.keys() - expected.keys())
    if extra:
        return f"it holds {extra[0][:80]!r}, which was not asked for"
    by_layer = ((layer, replace(expected_upload, layers=(layer,))) for layer in expected_upload.layers)
    entries = {layer: one.entries(layers, model).keys() for layer, one in by_layer}
    missing = {layer for layer in entries if entries[layer] - upload.weights.keys()}
    partial = {layer for layer in missing if entries[layer] & upload.weights.keys()}
    if partial or (missing and not expected_upload.optional):
        return f"it lacks entries of the layer {min(partial or missing)!r}"
    for name, tensor in upload.weights.items():
        wanted = expected[name]
        if tensor.shape != wanted.shape or tensor.dtype != wanted.dtype:
            return f"{name!r} is {tuple(tensor.shape)} {tensor.dtype}, not {tuple(wanted.shape)} {wanted.dtype}"
        if reason := _refused_values(name, tensor):
            return reason
    return None


def _refused_values(name: str, tensor: Tensor) -> str | None:
    if reason := unusable_values(name, tensor):
        return reason
    # A negative variance, or a negative count, would turn the other sites' models into NaN.
    if (name.endswith("running_var") or not tensor.is_floating_point()) and bool((tensor < 0).any()):
        return f"{name!r} has negative values"
    return None


def _refused_numbers(upload: Upload, expected_upload: ExpectedUpload) -> str | None:
    if upload.info.keys() != expected_upload.numbers.keys():
        held = [key[:40] for key in sorted(upload.info)[:10]]
        return f"its info holds {held}, not {sorted(expected_upload.numbers)}"
    for key, length in expected_upload.numbers.items():
        values = upload.info[key]
        if not isinstance(values, list) or len(values) != length:
            return f"{key!r} is not a list of {length} numbers"
        if not all(_is_bounded(value, signed=expected_upload.signed) for value in values):
            sign = "" if expected_upload.signed else " and non-negative"
            return f"{key!r} must be finite{sign}, and at most {LARGEST_NUMBER:g}"
    return None


def _is_bounded(value: object, *, signed: bool) -> bool:
    """Whether a value is a plain number that can be added and multiplied without surprises. True is not one."""
    least = -LARGEST_NUMBER if signed else 0
    return isinstance(value, int | float) and type(value) is not bool and least <= value <= LARGEST_NUMBER


def _refused_scores(reply: Reply) -> str | None:
    if len(reply.scores) > MOST_SCORES:
        return f"it has {len(reply.scores)} scores; at most {MOST_SCORES} are expected"
    if any(not score.metric.isprintable() or not 0 < len(score.metric) <= 64 for score in reply.scores):
        return "it has a score with an invalid name"
    if len({score[:4] for score in reply.scores}) != len(reply.scores):
        return "it has the same score twice"
    return None


def _refused_values_of_scores(reply: Reply, job: Job) -> str | None:
    """Scores that cannot have been measured. A diverged model's loss is NaN or infinite, which does no harm; a loss far
    below all others would make its round the best of all."""
    for score in reply.scores:
        # What training minimises may have more terms than the task's loss.
        least = LEAST_OWN_LOSS if score.split == "train" else job.least_loss
        if score.metric == "loss" and score.value < least - _ROUNDING:
            return f"it has a loss of {score.value:g}, below {least:g}"
        if score.value == -math.inf:
            return "it has a score of minus infinity"
        declared = job.declared.metrics.get(score.metric)
        is_share = declared is not None and declared["unit"] == "share"
        if is_share and (score.value < -_ROUNDING or score.value > 1 + _ROUNDING):
            return f"its {score.metric} is {score.value:g}, which is not a share between 0 and 1"
    return None


def _misplaced_score(reply: Reply, request: Request, job: Job) -> str | None:
    """A score that the request did not ask for, or one that is missing beside others. In the tables, the first would
    take the place of another, or be one of a round that the job does not have; without the second, a site would have no
    score in the round that is reported. Nobody could read the results."""
    places = scored(request, job.experiment.evaluation, finishes=job.algorithm.finishes)
    for stage, round_, split, metric, _ in reply.scores:
        if (stage, round_, split) not in places or (split == "train" and metric != "loss"):
            return f"it has a score for a round that was not asked for, or of another kind: {stage}/{round_}/{split}"
    have_loss = {score[:3] for score in reply.scores if score.metric == "loss"}
    # A method that trains no model of its own has no training loss.
    missing = sorted(place for place in places - have_loss if place[2] != "train")
    if reply.scores and missing:
        stage, round_, split = missing[0]
        return f"it has scores, but not the loss of {stage}/{round_}/{split}; a site shares all scores or none"
    return None
