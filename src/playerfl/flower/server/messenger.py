"""Messenger: delivers envelopes to sites, over Flower's push and pull, until all have responded or time is up."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, TypeVar

import httpx
from flwr.app import Message

from playerfl.errors import PlayerflError
from playerfl.federation.messages import SiteId
from playerfl.flower.deployment import Deployment
from playerfl.flower.server.exchange import Exchange, MessageId, NodeId
from playerfl.flower.server.job_status import AT_WORK
from playerfl.flower.server.state import Contacts
from playerfl.flower.wire.codec import CodecError, decode_response, encode_envelope
from playerfl.flower.wire.envelopes import SENTENCES, WAIT, Envelope, Response
from playerfl.flower.wire.introduction import Introduction

UNREACHABLE_SECONDS = 300.0
"""How long the SuperLink may answer with errors, as it does under load, before the job gives up."""
SITES_PER_POLL = 8
"""With more messages in flight, responses are polled less often: each poll costs the SuperLink a query."""

STOPPED = "the job was stopped; playerfl flower run continues it"

Answer = TypeVar("Answer")


class StoppedJobError(PlayerflError):
    """An operator asked the job to stop."""


class Grid(Protocol):
    """The part of Flower's Grid that is used."""

    def get_nodes(self) -> Iterable[Any]: ...
    def push_messages(self, messages: Iterable[Message]) -> Iterable[MessageId]: ...
    def pull_messages(self, message_ids: Iterable[MessageId]) -> Iterable[Message]: ...


@dataclass(frozen=True)
class Missing:
    """A site that the job waits for."""

    since: float
    """Unix time of the first message that it has not responded to."""
    asked: int
    why: str


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
    name_of: Callable[[Any], SiteId | None] = lambda node: str(node.name or "")
    """The name that a node's key is registered under; "": the node may state its own name; None: it takes no part."""
    stopping: Callable[[], bool] = lambda: False
    on_missing: Callable[[Mapping[SiteId, Missing]], None] = lambda _: None
    """Called with the sites the job waits for, whenever they change."""
    wall_clock: Callable[[], float] = time.time
    _introduced: set[SiteId] = field(default_factory=set)
    _named: dict[NodeId, SiteId] = field(default_factory=dict)
    """Names that nodes without a registered key have given."""
    _nodes: list[tuple[NodeId, SiteId]] = field(default_factory=list)
    """The nodes that were online at the last check; the name is "" where it is not known yet."""
    _missing_since: dict[SiteId, float] = field(default_factory=dict)
    _shown: dict[SiteId, Missing] = field(default_factory=dict)
    _trouble_since: float | None = None
    _told: set[SiteId] = field(default_factory=set)
    """Sites that know the columns and classes of the others."""

    def deliver(self, envelopes: Mapping[SiteId, Envelope]) -> Exchange:
        """Sends, waits, and asks again, until all have responded or time is up.

        A site that has asked for more time, because a person has to approve the job, does not run into the
        deadline as long as the job cannot continue without it.
        """
        now, deadline = self.clock(), self.deployment.deadline
        exchange = Exchange(envelopes, now, now + deadline, min(self.deployment.ask_again, deadline / 5))
        while exchange.waiting:
            if self.stopping():
                raise StoppedJobError(STOPPED)
            self._look()
            self._skip_absent(exchange)
            self._push(exchange)
            self._pull(exchange)
            self._tell_missing(exchange)
            if not exchange.waiting or self._time_is_up(exchange):
                break
            self.sleep(pause_seconds(self.deployment.poll, len(exchange.in_flight)))
        self._give_up(exchange)
        return exchange

    def nodes(self) -> dict[SiteId, NodeId]:
        """The node of each site that is online."""
        self._look()
        return self._online()

    def forget(self, site: SiteId) -> None:
        """Makes a site introduce itself again before it is asked for work."""
        self._introduced.discard(site)

    def _look(self) -> None:
        online = self._tried(lambda: list(self.grid.get_nodes()), "which nodes are online")
        if online is not None:
            named = ((int(node.node_id), self.name_of(node)) for node in online)
            self._nodes = sorted((node, name) for node, name in named if name is not None)

    def _online(self) -> dict[SiteId, NodeId]:
        online: dict[SiteId, NodeId] = {}
        for node, registered in self._nodes:
            # A node cannot choose the name its key is registered under; without keys, it states its own name.
            name = registered or self._named.get(node, "")
            if name in self.deployment.sites:
                online.setdefault(name, node)
        return online

    def _tried(self, ask: Callable[[], Answer], what: str) -> Answer | None:
        """The SuperLink's answer; None if it is too busy at the moment."""
        try:
            answer = ask()
        except (httpx.HTTPError, OSError) as problem:
            now = self.clock()
            self._trouble_since = now if self._trouble_since is None else self._trouble_since
            if now - self._trouble_since > UNREACHABLE_SECONDS:
                raise PlayerflError(
                    f"the SuperLink did not say {what} for {UNREACHABLE_SECONDS:g} s ({type(problem).__name__}); "
                    "see its log (its disk may be full), then submit the job again with playerfl flower run"
                ) from problem
            self.say(f"the SuperLink did not say {what} ({type(problem).__name__}); asking again")
            return None
        self._trouble_since = None
        return answer

    def _time_is_up(self, exchange: Exchange) -> bool:
        enough = len(exchange.responses) >= min(self.deployment.needed, len(exchange.envelopes))
        return self.clock() >= exchange.ends and (enough or not exchange.later)

    def _give_up(self, exchange: Exchange) -> None:
        online = self._online()
        for site in sorted(exchange.waiting):
            if site in exchange.later:
                exchange.fail(site, "late", exchange.later[site][1])
                continue
            self.contacts.away.add(site)
            if site in online:
                exchange.fail(site, "late", f"it did not respond within {self.deployment.deadline:g} s")
            else:
                exchange.fail(site, "offline", "its node is offline")
        self.contacts.away -= exchange.responses.keys()

    def _tell_missing(self, exchange: Exchange) -> None:
        online = self._online()
        for site in exchange.waiting:
            self._missing_since.setdefault(site, self.wall_clock())
        for site in exchange.responses:
            self._missing_since.pop(site, None)
        missing = {}
        for site in sorted(exchange.waiting):
            why = AT_WORK if site in online else "its node is offline"
            why = exchange.later[site][1] if site in exchange.later else why
            asked = exchange.asked.get(online[site], 0) if site in online else 0
            missing[site] = Missing(self._missing_since[site], asked, why)
        if missing != self._shown:
            self._shown = missing
            self.on_missing(missing)

    def _skip_absent(self, exchange: Exchange) -> None:
        """A site that missed a deadline is not waited for again until its node is online."""
        online = self._online()
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
            ttl = max(1.0, exchange.ends - now) if exchange.ends > now else self.deployment.deadline
            number = self._sent(envelope, node, ttl)
            if number is None:
                exchange.retry(node, now)
                continue
            exchange.sent(number, envelope.site, node, now)
            if exchange.asked[node] > 1:
                self.say(f"{envelope.site or node}: asked again ({exchange.asked[node]} times so far)")

    def _sent(self, envelope: Envelope, node: NodeId, ttl: float) -> MessageId | None:
        """The message's number; None if the SuperLink did not take it. Nothing of a message that is gone is kept."""
        round_ = envelope.request.download.round if envelope.request else 0
        message = Message(encode_envelope(envelope), node, _message_type(envelope), group_id=str(round_), ttl=ttl)
        numbers = self._tried(lambda: list(self.grid.push_messages([message])), "that it took a message")
        return next(iter(numbers or ()), None)

    def _to_send(self, exchange: Exchange) -> list[tuple[Envelope, NodeId]]:
        """A site must introduce itself before it is asked for work; an unknown node is first asked for its name."""
        pending = []
        for site, node in self._online().items():
            if site in exchange.waiting:
                envelope = exchange.envelopes[site]
                schema = self.contacts.schema.to_text() if self.contacts.schema else ""
                hello = replace(envelope, request=None, initial=False, schema=schema)
                pending.append((envelope if site in self._introduced else hello, node))
        unknown = [node for node, name in self._nodes if not name and node not in self._named]
        return pending + [(replace(self.header, site="", request=None), node) for node in unknown]

    def _pull(self, exchange: Exchange) -> None:
        # One at a time, so that large responses are spooled one by one, and a broken one is recognised.
        for number, (site, node) in list(exchange.in_flight.items()):
            if number not in exchange.in_flight:
                continue
            self._pull_one(exchange, number, site, node)

    def _pull_one(self, exchange: Exchange, number: MessageId, site: SiteId, node: NodeId) -> None:
        try:
            messages = self._tried(lambda: list(self.grid.pull_messages([number])), "what arrived")
        except PlayerflError:
            raise
        except Exception as problem:
            # Flower could not put the response together. It is gone, so the site is asked again.
            self._unreadable(exchange, number, site, node, type(problem).__name__)
            return
        for message in messages or ():
            self._receive(exchange, number, site, node, message)

    def _receive(self, exchange: Exchange, number: MessageId, site: SiteId, node: NodeId, message: Message) -> None:
        exchange.in_flight.pop(number, None)
        # A node may have given its name since it was asked: then this is its answer to an earlier question.
        site = site or self._named.get(node, "")
        try:
            if message.has_error():
                # Node gone, app died, message expired: all may be temporary. The error's text may quote data.
                exchange.retry(node, self.clock())
                code = message.error.code
                self.say(f"{site or node}: no response (Flower error {code}); retrying until the deadline")
                return
            exchange.heard(node)
            reason = self._read(exchange, site, node, message)
        except PlayerflError:
            raise
        except Exception as problem:
            # Whatever a site sends, the job continues.
            self._unreadable(exchange, number, site, node, type(problem).__name__)
            return
        if reason:
            site = site or self._named.get(node, "")
            self.say(f"{site or f'node {node}'}: {reason}")
            if site:
                exchange.fail(site, "refused", reason)
            else:
                exchange.not_before[node] = float("inf")

    def _unreadable(self, exchange: Exchange, number: MessageId, site: SiteId, node: NodeId, why: str) -> None:
        exchange.in_flight.pop(number, None)
        self.say(f"{site or f'node {node}'}: its response cannot be read ({why})")
        if not site:
            exchange.not_before[node] = float("inf")
            return
        exchange.retry(node, self.clock())
        if exchange.unusable(site):
            exchange.fail(site, "refused", f"its response cannot be read ({why})")

    def _read(self, exchange: Exchange, site: SiteId, node: NodeId, message: Message) -> str | None:
        """Accepts a response, or returns why it cannot be used."""
        try:
            response = decode_response(message.content)
        except CodecError as problem:
            return f"its response cannot be read: {problem}; does it run the same version of playerfl?"
        if not site:
            if response.site not in self.deployment.sites or response.site in self._online():
                return f"{response.site[:63]!r} is not a site of this job"
            self._named[node] = site = response.site
        if response.code in WAIT:
            assert response.code is not None
            if site in exchange.waiting:
                if site not in exchange.later:
                    self.say(f"{site}: {SENTENCES[response.code]}")
                exchange.ask_later(site, node, SENTENCES[response.code], self.clock())
            return None
        if response.code is not None:
            return (
                exchange.differing.get(site, SENTENCES[response.code])
                if response.code == "schema"
                else SENTENCES[response.code]
            )
        if response.site != site:
            return f"it responds as {response.site[:63]!r}"
        return self._accept(exchange, site, response)

    def _accept(self, exchange: Exchange, site: SiteId, response: Response) -> str | None:
        if response.key == "hello":
            introduction = response.introduction
            if introduction is None:
                return "it did not introduce itself"
            if site in self._introduced and exchange.unusable(site):
                # A late copy of its introduction is harmless, but after each one the site is asked again at once.
                return "it introduces itself again and again instead of responding"
            if reason := self.admit(site, introduction):
                if self.contacts.schema and site not in self._told and introduction.schema:
                    # Asked again with the schema of the others, the site can say in its own log what differs.
                    self._told.add(site)
                    exchange.differing[site] = reason
                    return None
                return reason
            self._introduced.add(site)
            torch = ascii(introduction.torch)[1:-1]
            self.say(f"{site}: ready, {introduction.examples} training examples, torch {torch}")
        if site in exchange.waiting and response.key == exchange.envelopes[site].key:
            if exchange.envelopes[site].request is not None and response.reply is None:
                return "its response holds neither a reply nor a reason"
            exchange.succeed(site, response)
        elif response.key != "hello" and site in exchange.waiting:
            return "its response is to a different request"
        return None


def pause_seconds(poll: float, in_flight: int) -> float:
    """Between two polls for responses.

    >>> pause_seconds(1.0, 3), pause_seconds(1.0, 40)
    (1.0, 5.0)
    """
    return poll * max(1.0, in_flight / SITES_PER_POLL)


def _message_type(envelope: Envelope) -> str:
    if envelope.request is None:
        return "query.hello"
    return "query.prepare" if "prepare" in envelope.request.verbs else "train.round"
