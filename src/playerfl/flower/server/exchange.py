"""Exchange: one envelope per site, the responses so far, and when each site is asked again."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from playerfl.engine.spool import Spool
from playerfl.federation.messages import SiteId
from playerfl.flower.wire.envelopes import Envelope, Response

NodeId = int
MessageId = str

RETRY_SECONDS = 5.0
"""Before an unreachable site is tried again: its node takes a few seconds to come back."""
LATER_SECONDS = 15.0
"""Before a site that asked for more time is asked again, for the first time; doubles up to the next value."""
LATEST_SECONDS = 300.0
MOST_UNUSABLE = 3
"""Responses that nobody can use before a site is given up for this exchange."""


@dataclass
class Exchange:
    """One envelope per site, and the responses so far."""

    envelopes: Mapping[SiteId, Envelope]
    started: float
    ends: float
    ask_again: float
    """Seconds before an unanswered message is sent again, for the first time."""
    waiting: set[SiteId] = field(init=False)
    responses: dict[SiteId, Response] = field(default_factory=dict)
    failures: dict[SiteId, tuple[str, str]] = field(default_factory=dict)
    """Sites without a usable response: outcome (refused, late or offline) and reason."""
    in_flight: dict[MessageId, tuple[SiteId, NodeId]] = field(default_factory=dict)
    """The site is "" where only the node is known."""
    not_before: dict[NodeId, float] = field(default_factory=dict)
    asked: dict[NodeId, int] = field(default_factory=dict)
    """How often a node was asked since it last responded."""
    later: dict[SiteId, tuple[int, str]] = field(default_factory=dict)
    """Sites that asked for more time: how often, and why."""
    differing: dict[SiteId, str] = field(default_factory=dict)
    """How a site's columns or classes differ; it is asked once more, so that its own log says so too."""
    _unusable: dict[SiteId, int] = field(default_factory=dict)
    spool: Spool = field(default_factory=Spool)

    def __post_init__(self) -> None:
        self.waiting = set(self.envelopes)

    def succeed(self, site: SiteId, response: Response) -> None:
        self._close(site)
        self.responses[site] = replace(response, reply=response.reply and self.spool.keep(response.reply))

    def fail(self, site: SiteId, outcome: str, reason: str) -> None:
        self._close(site)
        self.responses.pop(site, None)
        self.failures[site] = (outcome, reason)

    def _close(self, site: SiteId) -> None:
        self.waiting.discard(site)
        self.later.pop(site, None)
        # Copies of its message need no second response.
        self.in_flight = {number: sent for number, sent in self.in_flight.items() if sent[0] != site}

    def may_send(self, node: NodeId, now: float) -> bool:
        return now >= self.not_before.get(node, 0.0)

    def sent(self, message: MessageId, site: SiteId, node: NodeId, now: float) -> None:
        """Notes a message, which is sent again after a while: a response can get lost after the site has sent it."""
        times = self.asked.get(node, 0)
        self.in_flight[message] = (site, node)
        self.asked[node] = times + 1
        self.not_before[node] = now + self.ask_again * 2**times

    def heard(self, node: NodeId) -> None:
        """Notes a response: the next message need not wait."""
        self.asked.pop(node, None)
        self.not_before.pop(node, None)

    def unusable(self, site: SiteId) -> bool:
        """Counts a response that cannot be used; whether there were too many of them."""
        self._unusable[site] = self._unusable.get(site, 0) + 1
        return self._unusable[site] >= MOST_UNUSABLE

    def retry(self, node: NodeId, now: float) -> None:
        self.not_before[node] = now + RETRY_SECONDS

    def ask_later(self, site: SiteId, node: NodeId, why: str, now: float) -> None:
        times = self.later[site][0] if site in self.later else 0
        self.later[site] = (times + 1, why)
        self.not_before[node] = now + min(LATEST_SECONDS, LATER_SECONDS * 2 ** min(times, 10))
