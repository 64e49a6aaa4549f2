"""SiteAgent: opens parcels, lets the site respond, and records what leaves before it leaves."""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from playerfl.errors import ConfigError, PlayerflError
from playerfl.flower.site.attempts import Attempts
from playerfl.flower.site.site import Site
from playerfl.flower.wire.codec import CodecError, decode_envelope, response_parcel
from playerfl.flower.wire.envelopes import WAIT, Envelope, RefusedError, Response
from playerfl.flower.wire.parcel import Parcel

log = logging.getLogger("playerfl.flower.site")

_MOST_REFUSALS = 1000
"""How many different refusals of a day are in the audit log."""


@dataclass
class SiteAgent:
    """The only access to a site's data, private layers and state."""

    site: Site
    _one_at_a_time: threading.Lock = field(default_factory=threading.Lock)
    _refused: Attempts = field(default_factory=lambda: Attempts(_MOST_REFUSALS))
    """Refusals that are in the audit log: a server that keeps asking must not fill the disk."""
    _left: Counter[tuple[str, str, str]] = field(default_factory=Counter)
    """How often each answer left since the agent started: a server that keeps asking for it must not fill the disk."""
    _masking: dict[str, Any] = field(default_factory=dict)
    """What secure aggregation remembers; its module needs Flower, so it is imported only if it is used."""

    def answer(self, parcel: Parcel) -> Parcel:
        """The response to one parcel, whose arrays are freed once they are read. No part of an exception leaves the
        site."""
        with self._one_at_a_time:
            try:
                self.site.policy.check_server(parcel.server)
                return self._secure(parcel) if parcel.kind == "secure" else self._envelope(parcel)
            except RefusedError as refused:
                log.warning("refused: %s (%s)", refused.code, refused)
                return self._without_reply("", refused.code, str(refused))
            except ConfigError as problem:
                log.warning("refused: %s", problem)
                return self._without_reply("", "refused", str(problem))
            except Exception as problem:
                log.exception("a message could not be handled")
                return self._without_reply("", "failed", f"it could not be handled ({type(problem).__name__})")

    def _envelope(self, parcel: Parcel) -> Parcel:
        try:
            envelope = decode_envelope(parcel)
        except CodecError as problem:
            # Only playerfl writes to a site, so an unreadable envelope comes from another version of it.
            log.warning("the server's message could not be read: %s", problem)
            return self._without_reply("", "version", str(problem))
        parcel.drop_arrays()
        response = self.site.respond(envelope)
        if response.code is not None:
            self._note_refusal(envelope.job, envelope.key, response.code, response.detail)
            return response_parcel(response)
        leaving = response_parcel(response)
        try:
            self._record(self._facts(envelope, response, leaving))
        except PlayerflError:
            log.exception("%s, %s: the audit log cannot be written, so nothing leaves", envelope.job, envelope.key)
            return response_parcel(Response(self.site.name, envelope.key, code="storage"))
        return leaving

    def _record(self, facts: dict[str, Any]) -> None:
        """Adds what leaves to the audit log; the same bytes again only the 2nd, 4th, 8th … time, with that number."""
        answer = (facts["job"], facts["key"], facts["sha256"])
        times = self._left[answer] + 1
        if times.bit_count() == 1:
            self.site.audit.add("left", **facts, **({"times": times} if times > 1 else {}))
        self._left[answer] = times

    def _facts(self, envelope: Envelope, response: Response, leaving: Parcel) -> dict[str, Any]:
        request = envelope.request
        upload = response.reply.upload if response.reply else None
        noise = envelope.privacy.noise
        facts: dict[str, Any] = {
            "job": envelope.job,
            "key": envelope.key,
            "round": request.download.round if request else None,
            "verbs": list(request.verbs) if request else ["hello"],
            "entries": _shapes(leaving.arrays.get("weights", {})),
            "numbers": {name: len(v) if isinstance(v, list) else 1 for name, v in upload.info.items()}
            if upload
            else {},
            "scores": len(response.reply.scores) if response.reply else 0,
            "bytes": leaving.num_bytes,
            "sha256": leaving.sha256(),
            "epsilon": self.site.ledger.epsilon() if noise else None,
        }
        if noise and (uncounted := [*facts["numbers"], *(["scores"] if facts["scores"] else [])]):
            facts["uncounted"] = uncounted
        if envelope.privacy.secure_range:
            facts["masked"] = True
        if response.introduction:
            schema, check = response.introduction.schema, response.introduction.check
            facts["introduced"] = [
                *("layers", "rows"),
                *(["columns", "classes"] if schema else []),
                *(["data check"] if check else []),
            ]
        return facts

    def _secure(self, parcel: Parcel) -> Parcel:
        """One of the four stages of SecAgg+."""
        from playerfl.flower.wire.secure import StageMemory, names_its_job, respond_to_stage

        if not names_its_job(parcel) and not self.site.masks:
            raise RefusedError("privacy", "no approved job here uses secure aggregation")
        memory = self._masking.setdefault("memory", StageMemory())
        least_sites = self.site.policy.jobs.least_sites
        try:
            reply, stage = respond_to_stage(parcel, memory, self.site.held, self.site.unmask, least_sites)
        except ConfigError as problem:
            raise RefusedError("privacy", str(problem)) from problem
        self.site.audit.add(
            "left",
            job=stage.job,
            key=stage.key,
            round=None,
            verbs=[f"secure {stage.name}"],
            entries=stage.entries,
            masked=True,
            bytes=reply.num_bytes,
            sha256=reply.sha256(),
        )
        return reply

    def _without_reply(self, job: str, code: Any, detail: str) -> Parcel:
        self._note_refusal(job, "", code, detail)
        return response_parcel(Response(self.site.name if job else "", "", code=code))

    def _note_refusal(self, job: str, key: str, code: str, detail: str) -> None:
        facts = {"job": job[:64], "key": key[:64], "code": code, "detail": detail[:500]}
        if code in WAIT or self._refused.spent() or self._refused.known(repr(facts)):
            return
        self._refused.note(repr(facts))
        try:
            self.site.audit.add("refused", **facts)
            if self._refused.spent():
                rest = f"{self._refused.most} different refusals within a day; more of them are not recorded"
                self.site.audit.add("refused", job="", key="", code=code, detail=rest)
        except PlayerflError:
            log.exception("the audit log cannot be written")


def _shapes(arrays: Mapping[str, Any]) -> dict[str, list[Any]]:
    return {name: [array.dtype, list(array.shape)] for name, array in arrays.items()}
