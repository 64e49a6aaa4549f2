"""FlowerTransport: the engine's transport across institutions. It reads and writes no files."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, NamedTuple, Protocol

from playerfl.errors import PlayerflError
from playerfl.federation.messages import Reply, Request, SiteId
from playerfl.flower.deployment import Deployment
from playerfl.flower.server.exchange import Exchange
from playerfl.flower.server.messenger import Grid, Messenger, Missing
from playerfl.flower.server.state import Contacts
from playerfl.flower.wire.envelopes import Envelope
from playerfl.flower.wire.introduction import Introduction
from playerfl.weights import Weights, digest


class TooFewSitesError(PlayerflError):
    """A round cannot be completed; running the same job again resumes it."""


class Participation(NamedTuple):
    """The outcome of one envelope to one site: a line of participation.csv."""

    round: int
    verbs: str
    site: SiteId
    outcome: str
    """answered, refused, late or offline."""
    reason: str
    seconds: float


class Checks(Protocol):
    """Decides which sites and replies are accepted; see `JobChecks`."""

    def admit(self, site: SiteId, introduction: Introduction) -> str | None: ...
    def settle(self) -> Mapping[SiteId, str]: ...
    def refused(self, requests: Mapping[SiteId, Request], replies: Mapping[SiteId, Reply]) -> Mapping[SiteId, str]: ...
    def weighted(self, replies: Mapping[SiteId, Reply]) -> dict[SiteId, Reply]: ...
    def expected_weights(self) -> Weights: ...


class FlowerTransport:
    """Puts requests into envelopes, and accepts the replies that pass the checks."""

    def __init__(
        self,
        grid: Grid,
        deployment: Deployment,
        header: Envelope,
        checks: Checks,
        contacts: Contacts,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
        say: Callable[[str], None] = lambda _: None,
        name_of: Callable[[Any], SiteId | None] | None = None,
        stopping: Callable[[], bool] = lambda: False,
        on_missing: Callable[[Mapping[SiteId, Missing]], None] = lambda _: None,
    ) -> None:
        """`contacts` are updated here and saved by the caller. The last three are as in `Messenger`."""
        self.grid = grid
        self.deployment = deployment
        self.header = header
        self.checks = checks
        self.contacts = contacts
        self._messenger = Messenger(
            grid,
            deployment,
            header,
            contacts,
            checks.admit,
            clock,
            sleep,
            say,
            stopping=stopping,
            on_missing=on_missing,
        )
        if name_of is not None:
            self._messenger.name_of = name_of
        self._clock, self._say = clock, say
        self._initial: str | None = None
        self._participation: list[Participation] = []

    def set_initial(self, weights: Weights) -> None:
        """The initial model is not sent: every site has built it, as its fingerprint shows."""
        self._initial = digest(weights)

    def take_participation(self) -> list[Participation]:
        """The outcomes since this was last called."""
        lines, self._participation = self._participation, []
        return lines

    def hello(self) -> None:
        """Asks every site whether it is ready, before anything trains."""
        exchange = self._messenger.deliver({site: self._envelope(site, None) for site in self.deployment.sites})
        for site, reason in self.checks.settle().items():
            self._say(f"{site}: {reason}")
            exchange.fail(site, "refused", reason)
            self._messenger.forget(site)
        self._note(exchange, 0, dict.fromkeys(exchange.envelopes, "hello"))
        self._require(len(exchange.responses), self.deployment.needed, exchange)

    async def call(self, requests: Mapping[SiteId, Request]) -> dict[SiteId, Reply]:
        envelopes = {site: self._envelope(site, request) for site, request in requests.items()}
        exchange = self._messenger.deliver(envelopes)
        replies = {site: response.reply for site, response in sorted(exchange.responses.items()) if response.reply}
        for site, reason in self.checks.refused(requests, replies).items():
            self._say(f"{site}: its upload is refused: {reason}")
            exchange.fail(site, "refused", reason)
            del replies[site]
        round_ = next(iter(requests.values())).download.round
        self._note(exchange, round_, {site: "+".join(request.verbs) for site, request in requests.items()})
        fitting = {site for site, request in requests.items() if "fit" in request.verbs}
        counted = fitting or set(requests)
        self._require(len(counted & replies.keys()), min(self.deployment.needed, len(counted)), exchange)
        if self.deployment.privacy.secure_range and fitting:
            replies |= self._unmasked(exchange, {site: replies[site] for site in sorted(fitting & replies.keys())})
        replies = self.checks.weighted(replies)
        for site in replies:
            response = exchange.responses[site]
            self.contacts.accepted[site] = response.key
            if response.fingerprint:
                self.contacts.fingerprints[site] = response.fingerprint
        return replies

    def _envelope(self, site: SiteId, request: Request | None) -> Envelope:
        initial = request is not None and digest(request.download.weights) == self._initial
        after = self.contacts.accepted.get(site, "")
        return replace(self.header, site=site, request=request, after=after, initial=initial)

    def _unmasked(self, exchange: Exchange, replies: dict[SiteId, Reply]) -> dict[SiteId, Reply]:
        """Gives every reply the mean of the weights that these sites hold: merging equal uploads returns that mean."""
        from playerfl.flower.server.secure_mean import secure_mean
        from playerfl.flower.wire.secure import LEAST_SITES

        nodes = {site: node for site, node in self._messenger.nodes().items() if site in replies}
        if len(nodes) < LEAST_SITES:
            raise TooFewSitesError(f"secure aggregation needs {LEAST_SITES} sites; only {', '.join(nodes)} trained")
        mean = secure_mean(
            self.grid,
            nodes,
            {site: reply.upload.num_examples for site, reply in replies.items()},
            self.checks.expected_weights(),
            job=self.deployment.job,
            key=exchange.responses[next(iter(nodes))].key,
            bound=self.deployment.privacy.secure_range,
            seconds=self.deployment.deadline,
            poll=self.deployment.poll,
            say=self._say,
            stopping=self._messenger.stopping,
        )
        if mean is None or mean.sites != nodes.keys():
            raise TooFewSitesError("a site was lost during secure aggregation; run the same job again")
        return {
            site: replace(reply, upload=replace(reply.upload, weights=mean.weights)) for site, reply in replies.items()
        }

    def _note(self, exchange: Exchange, round_: int, verbs: Mapping[SiteId, str]) -> None:
        seconds = round(self._clock() - exchange.started, 1)
        for site in sorted(exchange.envelopes):
            outcome, reason = exchange.failures.get(site, ("answered", ""))
            self._participation.append(Participation(round_, verbs[site], site, outcome, reason, seconds))

    def _require(self, responded: int, needed: int, exchange: Exchange) -> None:
        if responded < needed:
            missing = "; ".join(f"{site}: {reason}" for site, (_, reason) in sorted(exchange.failures.items()))
            raise TooFewSitesError(
                f"the round needs {needed} sites, but only {responded} responded ({missing}); "
                "nothing is lost: fix this and run the same job again"
            )
