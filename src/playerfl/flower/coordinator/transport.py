"""FlowerTransport: requests to sites by name, over Flower's push and pull, until all have answered or time is up."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, Protocol

from flwr.app import Message

from playerfl.engine.spool import Spool
from playerfl.errors import PlayerflError
from playerfl.federation.messages import Reply, Request, SiteId
from playerfl.flower.deployment import Deployment
from playerfl.flower.wire.codec import CodecError, decode_response, encode_envelope
from playerfl.flower.wire.envelopes import SENTENCES, Envelope, Response
from playerfl.weights import Weights, digest

RETRY_SECONDS = 5.0
"""Before a site that could not be reached is tried again: its node needs seconds to come back."""


class Grid(Protocol):
    """The part of Flower's Grid that is used."""

    def get_nodes(self) -> Iterable[Any]: ...
    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]: ...
    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]: ...


class TooFewSitesError(PlayerflError):
    """A round cannot go on; submitting the same job again takes it up where it stands."""


class Participation(NamedTuple):
    """What became of one envelope to one site."""

    round: int
    verbs: str
    site: SiteId
    outcome: str
    """answered, refused, late or offline."""
    reason: str
    seconds: float


class Listener(Protocol):
    """Decides what is let in."""

    def met(self, site: SiteId, about: Mapping[str, Any]) -> str | None:
        """A site has said hello; gives the reason why it cannot take part, or None."""
        ...

    def refused(self, requests: Mapping[SiteId, Request], replies: Mapping[SiteId, Reply]) -> Mapping[SiteId, str]:
        """Of the replies to these requests, those that cannot be used, and why."""
        ...

    def awaited(self) -> Weights:
        """What a fit uploads now, for its names and shapes."""
        ...


@dataclass
class _Exchange:
    """One envelope to each of some sites, under way."""

    envelopes: Mapping[SiteId, Envelope]
    ends: float
    begun: float
    waiting: set[SiteId]
    responses: dict[SiteId, Response] = field(default_factory=dict)
    outcomes: dict[SiteId, tuple[str, str]] = field(default_factory=dict)
    """Of the others: outcome and reason."""
    outstanding: dict[str, tuple[SiteId, int]] = field(default_factory=dict)
    """Message to (site, node); the site is "" where only the node is known."""
    not_before: dict[int, float] = field(default_factory=dict)
    spool: Spool = field(default_factory=Spool)

    def close(self, site: SiteId, outcome: str, reason: str) -> None:
        self.waiting.discard(site)
        self.outcomes[site] = (outcome, reason)


class FlowerTransport:
    """One message per site and exchange; sites are known by name, never by a node's number."""

    def __init__(
        self,
        grid: Grid,
        deployment: Deployment,
        header: Envelope,
        listener: Listener,
        accepted: dict[SiteId, str],
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
        say: Callable[[str], None] = lambda _: None,
    ) -> None:
        """`accepted`: the key of each site's last accepted response; kept up to date here, saved by the caller."""
        self.grid = grid
        self.deployment = deployment
        self.header = header
        self.listener = listener
        self.accepted = accepted
        self.notes: list[Participation] = []
        self.fingerprints: dict[SiteId, str] = {}
        self._initial: str | None = None
        self._met: set[SiteId] = set()
        self.away: set[SiteId] = set()
        """Sites that missed the last deadline."""
        self._learned: dict[int, SiteId] = {}
        self._clock, self._sleep, self._say = clock, sleep, say

    def set_initial(self, weights: Weights) -> None:
        """What a new site is sent, so that it need not travel: every site has built it, as its fingerprint shows."""
        self._initial = digest(weights)

    def hello(self) -> None:
        """Asks every site whether it is ready, before anything trains."""
        envelopes = {site: self._envelope(site, None) for site in self.deployment.sites}
        exchange = self._deliver(envelopes)
        self._note(exchange, 0, "hello")
        ready = [site for site in envelopes if site in exchange.responses]
        self._enough(len(ready), self.deployment.needed, exchange)

    async def call(self, requests: Mapping[SiteId, Request]) -> dict[SiteId, Reply]:
        exchange = self._deliver({site: self._envelope(site, request) for site, request in requests.items()})
        replies = {site: response.reply for site, response in sorted(exchange.responses.items()) if response.reply}
        for site, reason in self.listener.refused(requests, replies).items():
            self._say(f"{site}: its upload is refused: {reason}")
            exchange.close(site, "refused", reason)
            del replies[site], exchange.responses[site]
        first = next(iter(requests.values()))
        self._note(exchange, first.download.round, lambda site: "+".join(requests[site].verbs))
        fitting = {site for site, request in requests.items() if "fit" in request.verbs} or set(requests)
        self._enough(len(fitting & replies.keys()), min(self.deployment.needed, len(fitting)), exchange)
        if self.deployment.privacy.secure_range and any("fit" in request.verbs for request in requests.values()):
            replies |= self._unmasked(exchange, {site: replies[site] for site in sorted(fitting & replies.keys())})
        for site in replies:
            self.accepted[site] = exchange.responses[site].key
            if exchange.responses[site].fingerprint:
                self.fingerprints[site] = exchange.responses[site].fingerprint
        return replies

    def _unmasked(self, exchange: _Exchange, replies: dict[SiteId, Reply]) -> dict[SiteId, Reply]:
        """Replies that all hold the mean of what these sites held back; merging equal uploads gives them back."""
        from playerfl.flower.wire.secure import LEAST_SITES, secure_mean

        nodes = {site: node for site, node in self._nodes().items() if site in replies}
        if len(nodes) < LEAST_SITES:
            raise TooFewSitesError(f"secure aggregation needs {LEAST_SITES} sites; {', '.join(nodes)} have trained")
        found = secure_mean(
            self.grid,
            nodes,
            {site: reply.upload.num_examples for site, reply in replies.items()},
            self.listener.awaited(),
            job=self.deployment.job,
            key=exchange.responses[next(iter(nodes))].key,
            bound=self.deployment.privacy.secure_range,
            seconds=self.deployment.deadline,
            poll=self.deployment.poll,
        )
        if found is None or found[1] != nodes.keys():
            raise TooFewSitesError("secure aggregation has lost a site on its way; run the same job again")
        return {site: replace(reply, upload=replace(reply.upload, weights=found[0])) for site, reply in replies.items()}

    def _envelope(self, site: SiteId, request: Request | None) -> Envelope:
        envelope = replace(self.header, site=site, request=request, after=self.accepted.get(site, ""))
        if request is None or digest(request.download.weights) != self._initial:
            return envelope
        return replace(envelope, initial=True)

    def _deliver(self, envelopes: Mapping[SiteId, Envelope]) -> _Exchange:
        """Sends, waits, sends again to who could not be reached, until all have answered or the deadline."""
        now = self._clock()
        exchange = _Exchange(envelopes, now + self.deployment.deadline, now, set(envelopes))
        while exchange.waiting:
            self._leave_out(exchange)
            self._push(exchange)
            self._pull(exchange)
            if not exchange.waiting or self._clock() >= exchange.ends:
                break
            self._sleep(self.deployment.poll)
        online = self._nodes()
        for site in sorted(exchange.waiting):
            if site in online:
                exchange.close(site, "late", f"it has not answered within {self.deployment.deadline:g} s")
            else:
                exchange.close(site, "offline", "its node is not on-line")
            self.away.add(site)
        self.away -= exchange.responses.keys()
        return exchange

    def _leave_out(self, exchange: _Exchange) -> None:
        """Nobody waits twice for a site that was away: until its node is on-line again it is not asked."""
        online = self._nodes()
        gone = {site for site in exchange.waiting if site in self.away and site not in online}
        possible = len(exchange.responses) + len(exchange.waiting) - len(gone)
        if possible >= min(self.deployment.needed, len(exchange.envelopes)):
            for site in gone:
                exchange.close(site, "offline", "its node is not on-line")

    def _nodes(self) -> dict[SiteId, int]:
        """The node of each site that is on-line."""
        found: dict[SiteId, int] = {}
        for node in sorted(self.grid.get_nodes(), key=lambda node: int(node.node_id)):
            # The name a key is registered under cannot be chosen by the node; without keys it says its name itself.
            name = node.name or self._learned.get(node.node_id, "")
            if name in self.deployment.sites:
                found.setdefault(name, node.node_id)
        return found

    def _strangers(self) -> list[int]:
        """Nodes that have no registered name and have not said one."""
        return [n.node_id for n in self.grid.get_nodes() if not n.name and n.node_id not in self._learned]

    def _push(self, exchange: _Exchange) -> None:
        now = self._clock()
        busy = {node for _, node in exchange.outstanding.values()}
        pending: list[tuple[Envelope, int]] = []
        for site, node in self._nodes().items():
            if site in exchange.waiting and node not in busy and now >= exchange.not_before.get(node, 0.0):
                envelope = exchange.envelopes[site]
                pending.append(
                    (envelope if site in self._met else replace(envelope, request=None, initial=False), node)
                )
        for node in self._strangers():
            if node not in busy and now >= exchange.not_before.get(node, 0.0):
                pending.append((replace(self.header, site="", request=None), node))
        seconds = max(1.0, exchange.ends - now)
        for envelope, node in pending:
            message = Message(
                encode_envelope(envelope),
                node,
                _kind(envelope),
                group_id=str(envelope.request.download.round if envelope.request else 0),
                ttl=seconds,
            )
            number = next(iter(self.grid.push_messages([message])), None)
            if number is None:
                exchange.not_before[node] = now + RETRY_SECONDS
            else:
                exchange.outstanding[number] = (envelope.site, node)

    def _pull(self, exchange: _Exchange) -> None:
        if not exchange.outstanding:
            return
        # One at a time: responses with large models are put aside one by one.
        for message in (m for number in list(exchange.outstanding) for m in self.grid.pull_messages([number])):
            site, node = exchange.outstanding.pop(message.metadata.reply_to_message_id, ("", -1))
            if node == -1:
                continue
            if message.has_error():
                # Node gone, app died, message expired: all of these may pass. Its text may quote data: dropped.
                exchange.not_before[node] = self._clock() + RETRY_SECONDS
                self._say(
                    f"{site or node}: no response (Flower's code {message.error.code}); tried again until the deadline"
                )
                continue
            self._take(exchange, site, node, message)

    def _take(self, exchange: _Exchange, site: SiteId, node: int, message: Message) -> None:
        try:
            response = decode_response(message.content)
        except CodecError as problem:
            return self._turn_away(
                exchange,
                site,
                node,
                f"its response cannot be read: {problem}; does it run the same version of playerfl?",
            )
        if not site:
            if response.site not in self.deployment.sites or response.site in self._nodes():
                return self._turn_away(exchange, "", node, f"{response.site[:63]!r} is not awaited")
            self._learned[node] = site = response.site
        if response.code is not None:
            return self._turn_away(exchange, site, node, SENTENCES[response.code])
        if response.site != site:
            return self._turn_away(exchange, site, node, f"it answers as {response.site[:63]!r}")
        if response.key == "hello":
            reason = self.listener.met(site, response.about)
            if reason:
                return self._turn_away(exchange, site, node, reason)
            self._met.add(site)
        if site in exchange.waiting and response.key == exchange.envelopes[site].key:
            exchange.waiting.discard(site)
            exchange.responses[site] = replace(response, reply=response.reply and exchange.spool.keep(response.reply))
        elif response.key != "hello":
            return self._turn_away(exchange, site, node, "it answers something else than it was asked")
        return None

    def _turn_away(self, exchange: _Exchange, site: SiteId, node: int, reason: str) -> None:
        self._say(f"{site or f'node {node}'}: {reason}")
        if site:
            exchange.close(site, "refused", reason)
        else:
            exchange.not_before[node] = float("inf")

    def _note(self, exchange: _Exchange, round_: int, verbs: str | Callable[[SiteId], str]) -> None:
        seconds = self._clock() - exchange.begun
        for site in sorted(exchange.envelopes):
            outcome, reason = exchange.outcomes.get(site, ("answered", ""))
            asked = verbs if isinstance(verbs, str) else verbs(site)
            self.notes.append(Participation(round_, asked, site, outcome, reason, round(seconds, 1)))

    def _enough(self, found: int, needed: int, exchange: _Exchange) -> None:
        if found < needed:
            missing = "; ".join(f"{site}: {reason}" for site, (_, reason) in sorted(exchange.outcomes.items()))
            raise TooFewSitesError(
                f"{found} of {needed} sites that a round needs have answered ({missing}); "
                "nothing is lost: mend that and run the same job again"
            )


def _kind(envelope: Envelope) -> str:
    if envelope.request is None:
        return "query.hello"
    return "query.prepare" if "prepare" in envelope.request.verbs else "train.round"
