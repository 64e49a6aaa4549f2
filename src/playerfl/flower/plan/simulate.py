"""simulate: rounds over Flower, message by message: who waits for whom, what is sent again, what is the limit.

The server asks, asks again and gives up by the same rules as a real job (`Exchange`), and nodes look for messages at
their real pace (`Pace`). Only the work itself is replaced by what it costs.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import count
from statistics import median
from typing import NamedTuple

from playerfl.flower.node.pace import Pace
from playerfl.flower.plan.costs import Costs, Size
from playerfl.flower.plan.events import Process, Resource, Simulation, Steps
from playerfl.flower.plan.federation import Federation
from playerfl.flower.server.exchange import Exchange
from playerfl.flower.server.messenger import pause_seconds
from playerfl.flower.wire.envelopes import Envelope, Response

RELAY_SECONDS = 0.2
"""A message waits at the node until the program next to it looks for one, at most this long."""
PIECES = 16
"""A message passes in this many pieces, so that messages on one line take turns."""
SLICE_SECONDS = 0.2
"""Programs on one machine take turns after this long."""
TRANSFERS = 2
"""Flower asks for this many objects of a message at a time."""
UNNOTICED_SECONDS = (36.0, 60.0)
"""Until Flower notices that a node is gone, two heartbeats of 30 s after the last one. It is not readmitted sooner."""
RESTART_SECONDS = (5.0, 25.0)
"""From then until the service manager has started the site again, and it has connected."""


@dataclass(frozen=True)
class Round:
    """What happened in one round."""

    seconds: float
    answered: int
    """Sites that responded before the deadline."""
    asked: int
    """Messages sent, those that were sent again included."""


@dataclass(frozen=True)
class Forecast:
    """Simulated rounds."""

    rounds: tuple[Round, ...]
    busy: Mapping[str, float]
    """How busy each part of the server was, as a share of the time."""
    bytes_out: float
    """What the server's line carries per round."""
    bytes_in: float

    @property
    def seconds(self) -> float:
        """The median round."""
        return median(one.seconds for one in self.rounds)

    @property
    def longest(self) -> float:
        return max(one.seconds for one in self.rounds)


def simulate(federation: Federation, costs: Costs, rounds: int = 5, seed: int = 0) -> Forecast:
    """Runs some rounds. The same arguments give the same result, and kills do not change what else is drawn."""
    return _Simulated(federation, costs, seed).forecast(rounds)


class _Waiting(NamedTuple):
    """A message that waits at the SuperLink for a node."""

    number: str
    round: int
    expires: float


@dataclass
class _Site:
    name: str
    node: int
    slowness: float
    pace: Pace
    pauses: list[float]
    """What the pace says."""
    inbox: deque[_Waiting] = field(default_factory=deque)
    answered: int = 0
    """The round whose response is stored at the site."""
    online: bool = True
    """As the SuperLink sees it."""
    process: Process | None = None


class _Simulated:
    def __init__(self, federation: Federation, costs: Costs, seed: int) -> None:
        self.federation = federation
        self.costs = costs
        self.seed = seed
        self.simulation = Simulation()
        self.parts = {name: Resource(self.simulation) for name in ("SuperLink", "job's process", "line out", "line in")}
        self.link, self.job, self.line_out, self.line_in = self.parts.values()
        self.cores = Resource(self.simulation, federation.cores) if federation.cores else None
        self.accidents = random.Random(f"{seed} accidents")
        self.numbers = count()
        self.exchange = Exchange({}, 0.0, 0.0, 0.0)
        self.responses: dict[str, bool] = {}
        """What waits at the SuperLink, by the number of the message; False: Flower's error, since the node is gone."""
        self.done: list[Round] = []
        self.bytes_out = self.bytes_in = 0.0
        self.sites = [self._site(i) for i in range(federation.sites)]

    def _site(self, number: int) -> _Site:
        pauses: list[float] = []
        pace = Pace(clock=lambda: self.now, wait=pauses.append)
        slowness = self.federation.slowness if number < self.federation.slow else 1.0
        return _Site(f"site-{number}", number, slowness, pace, pauses)

    @property
    def now(self) -> float:
        return self.simulation.now

    def forecast(self, rounds: int) -> Forecast:
        for site in self.sites:
            site.process = self.simulation.start(self._site_steps(site))
        self.simulation.start(self._server_steps(rounds))
        self.simulation.run(until=lambda: len(self.done) == rounds)
        busy = {name: part.busy / self.now for name, part in self.parts.items()}
        return Forecast(tuple(self.done), busy, self.bytes_out / rounds, self.bytes_in / rounds)

    def _server_steps(self, rounds: int) -> Steps:
        federation, absent = self.federation, set[str]()
        for number in range(1, rounds + 1):
            started, asked = self.now, 0
            exchange = self.exchange = self._exchange(absent)
            while exchange.waiting:
                for site in self.sites:
                    if site.name in exchange.waiting and site.online and exchange.may_send(site.node, self.now):
                        yield from self._push(site, number, first=not asked)
                        asked += 1
                for message, (_, node) in list(exchange.in_flight.items()):
                    yield from self._pull(message, self.sites[node])
                if not exchange.waiting or self.now >= exchange.ends:
                    break
                yield pause_seconds(federation.poll, len(exchange.in_flight))
            absent = set(exchange.waiting)
            answered = len(exchange.responses)
            yield from self._working(self.job, self.costs.merge * federation.parameters * answered)
            self.done.append(Round(self.now - started, answered, asked))

    def _exchange(self, absent: set[str]) -> Exchange:
        """Like a real job, does not wait again for a site that missed the last deadline and is offline."""
        federation = self.federation
        names = [site.name for site in self.sites if site.online or site.name not in absent]
        envelopes = {name: Envelope("plan", name, "", "", "") for name in names}
        return Exchange(envelopes, self.now, self.now + federation.deadline, federation.asks_after)

    def _push(self, site: _Site, round_: int, *, first: bool) -> Steps:
        size = self.federation.message
        yield from self._working(self.job, self.costs.job.of(size))
        # Objects are stored under the hash of their bytes, so the SuperLink gets the same weights only once.
        yield from self._working(self.link, self.costs.link.of(size if first else Size(0, size.objects)))
        number = str(next(self.numbers))
        self.exchange.sent(number, site.name, site.node, self.now)
        site.inbox.append(_Waiting(number, round_, self.exchange.ends))

    def _pull(self, message: str, site: _Site) -> Steps:
        exchange = self.exchange
        if message not in exchange.in_flight:
            return
        yield from self._working(self.link, self.costs.look)
        if message not in self.responses:
            return
        if not self.responses.pop(message):
            exchange.in_flight.pop(message)
            exchange.retry(site.node, self.now)
            return
        yield from self._working(self.link, self.costs.link.of(self.federation.message))
        yield from self._working(self.job, self.costs.job.of(self.federation.message))
        exchange.heard(site.node)
        exchange.succeed(site.name, Response(site.name, ""))

    def _site_steps(self, site: _Site) -> Steps:
        while True:
            yield from self._working(self.link, self.costs.look)
            yield self.federation.delay
            if site.inbox:
                waiting = site.inbox.popleft()
                if waiting.expires > self.now:
                    yield from self._respond(site, waiting.number, waiting.round)
            else:
                site.pace.sleep(3.0)
                yield site.pauses.pop()

    def _respond(self, site: _Site, message: str, round_: int) -> Steps:
        federation, size = self.federation, self.federation.message
        drawn = random.Random(f"{self.seed} {site.node} {round_}")
        training = federation.training * site.slowness * drawn.lognormvariate(0.0, federation.spread)
        again = site.answered == round_
        self._draw_accident(site, training)
        site.pace.message()
        yield from self._transfer(self.line_out)
        self.bytes_out += size.bytes
        yield drawn.random() * RELAY_SECONDS
        yield from _taking_turns(self.cores, self.costs.agent.of(size) + (0.0 if again else training))
        site.answered = round_
        site.pace.sleep(0.5)
        yield drawn.random() * site.pauses.pop()
        yield from self._transfer(self.line_in)
        self.bytes_in += size.bytes
        site.pace.message()
        self.responses[message] = True

    def _transfer(self, line: Resource) -> Steps:
        """A message between the SuperLink and a node."""
        federation, size = self.federation, self.federation.message
        yield from self._working(self.link, self.costs.link.of(Size(0, size.objects)))
        yield federation.delay * size.objects / TRANSFERS
        piece = size.bytes / PIECES
        for _ in range(PIECES):
            yield from self._working(self.link, self.costs.link.byte * piece)
            yield from line.used(piece / federation.server_bytes)
            yield piece / federation.site_bytes
        yield from _taking_turns(self.cores, self.costs.node.of(size))

    def _draw_accident(self, site: _Site, training: float) -> None:
        """A site is killed at a random moment of its own work."""
        happens, moment = self.accidents.random() < self.federation.kills, self.accidents.random()
        process = site.process
        if happens and process is not None:
            alone = training + 2 * self.federation.message.bytes / self.federation.site_bytes
            self.simulation.after(moment * alone, lambda: self._kill(site, process))

    def _kill(self, site: _Site, process: Process) -> None:
        if not process.alive:
            return
        process.kill()
        unnoticed = self.accidents.uniform(*UNNOTICED_SECONDS)
        self.simulation.after(unnoticed, lambda: self._notice(site))
        self.simulation.after(unnoticed + self.accidents.uniform(*RESTART_SECONDS), lambda: self._restart(site))

    def _notice(self, site: _Site) -> None:
        """Flower notices that the node is gone, and answers every message to it with an error."""
        site.online = False
        site.inbox.clear()
        for message, (_, node) in self.exchange.in_flight.items():
            if node == site.node:
                self.responses.setdefault(message, False)

    def _restart(self, site: _Site) -> None:
        site.online = True
        site.pace.message()
        site.process = self.simulation.start(self._site_steps(site))

    def _working(self, program: Resource, seconds: float) -> Steps:
        """Work of a program at the server, which does one thing at a time."""
        yield from program.held(_taking_turns(self.cores, seconds))


def _taking_turns(cores: Resource | None, seconds: float) -> Steps:
    """Work on a core of its own, or on a shared one, where others get a turn after each slice."""
    if cores is None:
        yield seconds
        return
    while seconds > 0:
        yield from cores.used(min(seconds, SLICE_SECONDS))
        seconds -= SLICE_SECONDS
