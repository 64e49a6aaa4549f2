"""Messenger: delivers envelopes to sites, over Flower's push and pull, until all have responded or time is up."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from flwr.app import Message

from playerfl.engine.spool import Spool
from playerfl.federation.messages import SiteId
from playerfl.flower.deployment import Deployment
from playerfl.flower.server.state import Contacts
from playerfl.flower.wire.codec import CodecError, decode_response, encode_envelope
from playerfl.flower.wire.envelopes import SENTENCES, WAIT, Envelope, Response
from playerfl.flower.wire.introduction import Introduction

RETRY_SECONDS = 5.0
"""Before an unreachable site is tried again: its node takes a few seconds to come back."""
APPROVAL_SECONDS = 15.0
"""Before a site where a person must approve the job is asked again."""

NodeId = int
MessageId = str


class Grid(Protocol):
    """The part of Flower's Grid that is used."""

    def get_nodes(self) -> Iterable[Any]: ...
    def push_messages(self, messages: Iterable[Message]) -> Iterable[MessageId]: ...
    def pull_messages(self, message_ids: Iterable[MessageId]) -> Iterable[Message]: ...


@dataclass
class Exchange:
    """One envelope per site, and the responses so far."""

    envelopes: Mapping[SiteId, Envelope]
    started: float
    ends: float
    waiting: set[SiteId] = field(init=False)
    responses: dict[SiteId, Response] = field(default_factory=dict)
    failures: dict[SiteId, tuple[str, str]] = field(default_factory=dict)
    """Sites without a usable response: outcome (refused, late or offline) and reason."""
    in_flight: dict[MessageId, tuple[SiteId, NodeId]] = field(default_factory=dict)
    """The site is "" where only the node is known."""
    not_before: dict[NodeId, float] = field(default_factory=dict)
    pending: dict[SiteId, str] = field(default_factory=dict)
    """Why a site that is still waited for has not responded yet, if it says so."""
    spool: Spool = field(default_factory=Spool)

    def __post_init__(self) -> None:
        self.waiting = set(self.envelopes)

    def succeed(self, site: SiteId, response: Response) -> None:
        self.waiting.discard(site)
        self.responses[site] = replace(response, reply=response.reply and self.spool.keep(response.reply))

    def fail(self, site: SiteId, outcome: str, reason: str) -> None:
        self.waiting.discard(site)
        self.responses.pop(site, None)
        self.failures[site] = (outcome, reason)

    def may_send(self, node: NodeId, now: float) -> bool:
        busy = any(node == receiver for _, receiver in self.in_flight.values())
        return not busy and now >= self.not_before.get(node, 0.0)


@dataclass
class Messenger:
    """One message per site and exchange. Sites are identified by name, never by a node's number."""

    grid: Grid
    deployment: Deployment
    header: Envelope
    contacts: Contacts
    admit: Callable[[SiteId, Introduction], str | None]
    """Why a site that introduced itself cannot take part, or None."""
    clock: Callable[[], float]
    sleep: Callable[[float], None]
    say: Callable[[str], None]
    _introduced: set[SiteId] = field(default_factory=set)
    _named: dict[NodeId, SiteId] = field(default_factory=dict)
    """Names that nodes without a registered key have given."""
    _told: set[SiteId] = field(default_factory=set)
    """Sites that know what the others' columns and classes are."""

    def deliver(self, envelopes: Mapping[SiteId, Envelope]) -> Exchange:
        """Sends, waits, and sends again to sites that could not be reached, until all have responded or time is up."""
        now = self.clock()
        exchange = Exchange(envelopes, now, now + self.deployment.deadline)
        while exchange.waiting:
            self._skip_absent(exchange)
            self._push(exchange)
            self._pull(exchange)
            if not exchange.waiting or self.clock() >= exchange.ends:
                break
            self.sleep(self.deployment.poll)
        online = self.nodes()
        for site in sorted(exchange.waiting):
            self.contacts.away.add(site)
            if site in online:
                reason = exchange.pending.get(site, "it did not respond")
                exchange.fail(site, "late", f"{reason} within {self.deployment.deadline:g} s")
            else:
                exchange.fail(site, "offline", "its node is offline")
        self.contacts.away -= exchange.responses.keys()
        return exchange

    def nodes(self) -> dict[SiteId, NodeId]:
        """The node of each site that is online."""
        online: dict[SiteId, NodeId] = {}
        for node in sorted(self.grid.get_nodes(), key=lambda node: int(node.node_id)):
            # A node cannot choose the name its key is registered under; without keys, it states its own name.
            name = node.name or self._named.get(node.node_id, "")
            if name in self.deployment.sites:
                online.setdefault(name, node.node_id)
        return online

    def _skip_absent(self, exchange: Exchange) -> None:
        """A site that missed a deadline is not waited for again until its node is online."""
        online = self.nodes()
        absent = {site for site in exchange.waiting if site in self.contacts.away and site not in online}
        possible = len(exchange.responses) + len(exchange.waiting) - len(absent)
        if possible >= min(self.deployment.needed, len(exchange.envelopes)):
            for site in absent:
                exchange.fail(site, "offline", "its node is offline")

    def _push(self, exchange: Exchange) -> None:
        now = self.clock()
        for envelope, node in self._to_send(exchange):
            if not exchange.may_send(node, now):
                continue
            message = Message(
                encode_envelope(envelope),
                node,
                _message_type(envelope),
                group_id=str(envelope.request.download.round if envelope.request else 0),
                ttl=max(1.0, exchange.ends - now),
            )
            message_id = next(iter(self.grid.push_messages([message])), None)
            if message_id is None:
                exchange.not_before[node] = now + RETRY_SECONDS
            else:
                exchange.in_flight[message_id] = (envelope.site, node)

    def _to_send(self, exchange: Exchange) -> list[tuple[Envelope, NodeId]]:
        """A site must introduce itself before it is asked for work; an unknown node is first asked for its name."""
        pending = []
        for site, node in self.nodes().items():
            if site in exchange.waiting:
                envelope = exchange.envelopes[site]
                schema = self.contacts.schema[1].to_text() if self.contacts.schema else ""
                hello = replace(envelope, request=None, initial=False, schema=schema)
                pending.append((envelope if site in self._introduced else hello, node))
        unknown = [node.node_id for node in self.grid.get_nodes() if not node.name and node.node_id not in self._named]
        return pending + [(replace(self.header, site="", request=None), node) for node in unknown]

    def _pull(self, exchange: Exchange) -> None:
        # One at a time, so that large responses are spooled one by one.
        for message in (m for message_id in list(exchange.in_flight) for m in self.grid.pull_messages([message_id])):
            site, node = exchange.in_flight.pop(message.metadata.reply_to_message_id, ("", None))
            if node is None:
                continue
            if message.has_error():
                # Node gone, app died, message expired: all may be temporary. The error's text may quote data.
                exchange.not_before[node] = self.clock() + RETRY_SECONDS
                code = message.error.code
                self.say(f"{site or node}: no response (Flower error {code}); retrying until the deadline")
                continue
            if reason := self._read(exchange, site, node, message):
                site = site or self._named.get(node, "")
                self.say(f"{site or f'node {node}'}: {reason}")
                if site:
                    exchange.fail(site, "refused", reason)
                else:
                    exchange.not_before[node] = float("inf")

    def _read(self, exchange: Exchange, site: SiteId, node: NodeId, message: Message) -> str | None:
        """Accepts a response, or returns why it cannot be used."""
        try:
            response = decode_response(message.content)
        except CodecError as problem:
            return f"its response cannot be read: {problem}; does it run the same version of playerfl?"
        if not site:
            if response.site not in self.deployment.sites or response.site in self.nodes():
                return f"{response.site[:63]!r} is not a site of this job"
            self._named[node] = site = response.site
        if response.code in WAIT:
            exchange.not_before[node] = self.clock() + APPROVAL_SECONDS
            if site not in exchange.pending:
                self.say(f"{site}: {SENTENCES[response.code]}")
            exchange.pending[site] = f"{SENTENCES[response.code]}, which did not happen"
            return None
        if response.code is not None:
            return (
                exchange.pending.get(site, SENTENCES[response.code])
                if response.code == "schema"
                else SENTENCES[response.code]
            )
        if response.site != site:
            return f"it responds as {response.site[:63]!r}"
        if response.key == "hello":
            introduction = response.introduction
            if introduction is None:
                return "it did not introduce itself"
            if reason := self.admit(site, introduction):
                if self.contacts.schema and site not in self._told and introduction.schema:
                    # Asked again with the schema of the others, the site can say in its own log what differs.
                    self._told.add(site)
                    exchange.pending[site] = reason
                    return None
                return reason
            self._introduced.add(site)
            self.say(f"{site}: ready, {introduction.examples} training examples, torch {introduction.torch}")
        if site in exchange.waiting and response.key == exchange.envelopes[site].key:
            exchange.succeed(site, response)
        elif response.key != "hello":
            return "its response is to a different request"
        return None


def _message_type(envelope: Envelope) -> str:
    if envelope.request is None:
        return "query.hello"
    return "query.prepare" if "prepare" in envelope.request.verbs else "train.round"
