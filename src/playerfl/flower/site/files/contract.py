"""Contract: the terms a site agreed to when a job began, and its responses since; a file next to the job's state."""

from __future__ import annotations

import getpass
import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any, Literal, TypeVar

from pydantic import TypeAdapter, ValidationError

from playerfl.errors import RunDirectoryError
from playerfl.flower.site.files.names import CONTRACT, DECISION
from playerfl.flower.wire.envelopes import Code, Envelope, Privacy, RefusedError
from playerfl.storage.atomic_files import RERUN_HINT, fsync_dir, write_atomically
from playerfl.wording import counted

Kept = TypeVar("Kept")
Choice = Literal["approved", "refused", "stopped"]
Status = Literal["waiting", "approved", "refused", "stopped", "finished"]


@dataclass(frozen=True)
class Terms:
    """The terms that every envelope of a job must repeat."""

    job: str
    experiment: str
    model: str
    """Fingerprint of the initial model."""
    privacy: dict[str, float]
    merge_sites: int

    @classmethod
    def of(cls, envelope: Envelope) -> Terms:
        privacy = {name: float(value) for name, value in asdict(envelope.privacy).items()}
        return cls(envelope.job, envelope.experiment, envelope.model, privacy, envelope.merge_sites)

    def digest(self) -> str:
        """The fingerprint that a person's decision refers to."""
        return hashlib.sha256(json.dumps(asdict(self), sort_keys=True).encode()).hexdigest()

    def difference(self, asked: Terms) -> str | None:
        """What an envelope asks for that was not agreed to; more sites per merge than agreed does no harm."""
        for name in ("job", "experiment", "model", "privacy"):
            if getattr(self, name) != getattr(asked, name):
                return f"the envelope's {name} differs from the one this site agreed to"
        if asked.merge_sites < self.merge_sites:
            return (
                f"the server now merges {counted(asked.merge_sites, 'site')}, but promised at least {self.merge_sites}"
            )
        return None


@dataclass(frozen=True)
class Answered:
    """An answer that has left, or may have."""

    key: str
    asked: str
    """Fingerprint of the envelope."""


@dataclass(frozen=True)
class Contract:
    """The terms, the model's layers for people to read, the cut once it is known, and every answer given."""

    terms: Terms
    since: str
    layers: dict[str, list[str]]
    """The entries of each layer, from input to output."""
    rows: int
    cut: int | None = None
    """How many layers are shared; None until the server has said so."""
    kept_back: list[str] = field(default_factory=list)
    """Entries that stay here even if their layer is shared: what is frozen, and what the algorithm keeps."""
    tied: dict[str, list[str]] = field(default_factory=dict)
    """Entries that more than one layer uses, with those layers."""
    answers: dict[str, Answered] = field(default_factory=dict)
    """By round and verb, as in "3:fit"."""
    questions: dict[str, str] = field(default_factory=dict)
    """By round and verb: the fingerprint of the envelope whose answer was computed, whether or not it left."""
    replies: dict[str, str] = field(default_factory=dict)
    """By the fingerprint of an envelope: that of its reply. Also kept when the site starts again without its state."""
    opened: dict[str, list[int]] = field(default_factory=dict)
    """By exchange: the nodes over which a securely aggregated sum was opened."""
    weighed: dict[str, float] = field(default_factory=dict)
    """By exchange: the number of examples that counted as a weight of 1 in that sum."""
    numbers_at_start: dict[str, int] = field(default_factory=dict)
    """Lists of numbers that are uploaded besides weights, once: name and length."""
    numbers_per_round: dict[str, int] = field(default_factory=dict)
    """The same, with every fit."""

    @classmethod
    def begin(cls, envelope: Envelope, layers: Mapping[str, tuple[str, ...]], rows: int, **known: Any) -> Contract:
        entries = {layer: list(members) for layer, members in layers.items()}
        return cls(Terms.of(envelope), _now(), entries, rows, **known)

    def used_by(self, layer: str) -> set[str]:
        """The entries that a layer uses, also those that count as another layer's."""
        return {*self.layers.get(layer, ()), *(entry for entry, users in self.tied.items() if layer in users)}

    @property
    def privacy(self) -> Privacy:
        return Privacy(**self.terms.privacy)

    @property
    def finished(self) -> bool:
        return any(key.endswith(":finish") for key in self.answers)

    @property
    def latest_round(self) -> int:
        return max((int(key.partition(":")[0]) for key in self.answers), default=-1)

    def asking(self, envelope: Envelope, asked: str) -> Contract:
        """The contract once an answer is being computed: it may be refused, and a refusal reveals something."""
        assert envelope.request is not None
        new = dict.fromkeys(envelope.steps, asked)
        return replace(self, questions={**self.questions, **new})

    def answering(self, envelope: Envelope, asked: str, reply: str) -> Contract:
        """The contract after answering; each round and verb is answered once, and a question always in the same way."""
        assert envelope.request is not None
        if self.replies.get(asked, reply) != reply:
            raise RefusedError(
                "pinned",
                f"{envelope.key} would be answered differently than before: the data or the programs have changed",
            )
        new = dict.fromkeys(envelope.steps, Answered(envelope.key, asked))
        return replace(self, answers={**self.answers, **new}, replies={**self.replies, asked: reply})

    def write(self, folder: Path) -> None:
        write_atomically(folder / CONTRACT, (json.dumps(asdict(self), indent=1) + "\n").encode(), RERUN_HINT)
        fsync_dir(folder)

    @classmethod
    def read(cls, folder: Path) -> Contract | None:
        """None if the job is new. A damaged contract is an error: without it, nothing may leave."""
        return _read(folder / CONTRACT, _contract_reader())


@dataclass(frozen=True)
class Decision:
    """A person's decision about a job."""

    choice: Choice
    terms: str
    """The digest of the terms that the person saw."""
    by: str
    time: str
    most_layers: int | None = None
    """Maximum number of shared layers."""

    @classmethod
    def read(cls, folder: Path) -> Decision | None:
        return _read(folder / DECISION, _decision_reader())


# Kept, because making them takes far longer than reading a file with them.
@cache
def _contract_reader() -> TypeAdapter[Contract]:
    return TypeAdapter(Contract)


@cache
def _decision_reader() -> TypeAdapter[Decision]:
    return TypeAdapter(Decision)


def _read(file: Path, reader: TypeAdapter[Kept]) -> Kept | None:
    try:
        return reader.validate_json(file.read_bytes(), strict=True)
    except FileNotFoundError:
        return None
    except (OSError, ValidationError) as problem:
        raise RunDirectoryError(f"{file} cannot be read, so nothing leaves the site for this job") from problem


def decide(
    folder: Path,
    contract: Contract,
    choice: Choice,
    most_layers: int | None = None,
    record: Callable[[Decision], None] = lambda _: None,
) -> Decision:
    """Writes a person's decision. It needs no lock, so a job can be stopped while it trains.

    `record` notes it in the audit log: an approval that cannot be noted does not count, a stop counts in any case.
    """
    before = Decision.read(folder)
    if most_layers is None and before is not None:
        most_layers = before.most_layers
    decision = Decision(choice, contract.terms.digest(), _user(), _now(), most_layers)
    if choice == "approved":
        record(decision)
    write_atomically(folder / DECISION, (json.dumps(asdict(decision), indent=1) + "\n").encode(), RERUN_HINT)
    fsync_dir(folder)
    if choice != "approved":
        record(decision)
    return decision


def status(contract: Contract, decision: Decision | None, *, automatic: bool) -> Status:
    """Where a job stands at this site."""
    if decision is not None and decision.terms == contract.terms.digest() and decision.choice != "approved":
        return decision.choice
    if contract.finished:
        return "finished"
    if decision is not None and decision.terms == contract.terms.digest():
        return "approved"
    return "approved" if automatic else "waiting"


_CODES: dict[Status, Code] = {"waiting": "waiting", "refused": "refused", "stopped": "stopped"}


def check_status(contract: Contract, decision: Decision | None, *, automatic: bool) -> None:
    """Refuses work for a job that waits for approval, was refused or was stopped."""
    now = status(contract, decision, automatic=automatic)
    if now in _CODES:
        by = f" by {decision.by}, {decision.time}" if decision else ""
        raise RefusedError(_CODES[now], f"the job is {now}{by}")


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return "unknown"


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
