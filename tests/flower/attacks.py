"""Envelopes that no honest server sends, delivered to a site's agent as the relay would."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch

from flower.jobs import Job
from playerfl.federation.messages import Download, Request
from playerfl.flower.site.files.audit import AuditLog
from playerfl.flower.wire.codec import decode_envelope, decode_response, envelope_parcel
from playerfl.flower.wire.envelopes import Envelope, Response

SITE = "site-1"


def asked(job: Job, key: str, site: str = SITE) -> Envelope:
    """The envelope with this key that the server sent."""
    sent = (decode_envelope(message.content) for name, message in job.grid.requests if name == site)
    return next(envelope for envelope in sent if envelope.key == key)


def audit(job: Job, event: str, site: str = SITE) -> list[dict[str, Any]]:
    """The lines of a site's audit log about an event."""
    return [entry for entry in AuditLog(job.home / site / "audit.jsonl").entries() if entry["event"] == event]


def ask(job: Job, envelope: Envelope, site: str = SITE) -> Response:
    return decode_response(job.agent(site).answer(envelope_parcel(envelope)))


def step(
    envelope: Envelope,
    *verbs: Any,
    round_: int,
    after: str | None = None,
    weights: Mapping[str, torch.Tensor] | None = None,
    **info: Any,
) -> Envelope:
    """The same job, another request."""
    download = Download(round_, dict(weights or {}), info)
    changes: dict[str, Any] = {} if after is None else {"after": after}
    return replace(envelope, request=Request(tuple(verbs), download), initial=False, **changes)


def with_settings(envelope: Envelope, old: str, new: str) -> Envelope:
    assert old in envelope.experiment
    return replace(envelope, experiment=envelope.experiment.replace(old, new))
