"""What a federation will take: the simulated round, what it would be without each of its limits, memory and disk."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from playerfl.engine.spool import HELD_BYTES
from playerfl.flower.plan.costs import MEASURED, MEMORY, Costs, ProgramCost
from playerfl.flower.plan.federation import Federation
from playerfl.flower.plan.simulate import Forecast, simulate

LINES = 10.0


@dataclass(frozen=True)
class Needs:
    """Bytes. At a site, the model's private layers and its data come on top."""

    server_memory: float
    server_disk: float
    site_memory: float
    site_disk: float


@dataclass(frozen=True)
class Plan:
    """A forecast, and what would change it."""

    federation: Federation
    forecast: Forecast
    without: Mapping[str, float]
    """Seconds of a round without one of its costs at a time."""
    needs: Needs

    @property
    def sent_again(self) -> bool:
        """Whether sites are asked again before they could have answered, which costs them and the server a second
        message."""
        return any(one.asked > one.answered for one in self.forecast.rounds) and not self.federation.kills

    @property
    def complete(self) -> bool:
        """Whether every site answered in every round before the deadline."""
        return all(one.answered == self.federation.sites for one in self.forecast.rounds)


def plan(federation: Federation, costs: Costs = MEASURED, rounds: int = 5, seed: int = 0) -> Plan:
    """Simulates a federation, and again without each of its costs."""
    changed = {
        "if training took no time": (replace(federation, training=0.0), costs),
        f"with lines {LINES:g} times as fast": (_faster_lines(federation), costs),
        "if Flower's server cost nothing": (federation, replace(costs, link=ProgramCost(), look=0.0)),
    }
    if federation.slow:
        changed["without slow sites"] = (replace(federation, slow=0), costs)
    if federation.kills:
        changed["without kills"] = (replace(federation, kills=0.0), costs)
    without = {name: simulate(*world, rounds, seed).seconds for name, world in changed.items()}
    return Plan(federation, simulate(federation, costs, rounds, seed), without, needs(federation))


def needs(federation: Federation) -> Needs:
    """Memory at the peak, and disk: uploads wait in Flower's database, beyond 256 MB once more for the merge."""
    message = federation.message.bytes
    uploads = federation.sites * message
    waiting = uploads + message
    return Needs(
        MEMORY["link"].of(message) + MEMORY["job"].of(message),
        waiting + max(0.0, uploads - HELD_BYTES),
        MEMORY["node"].of(message) + MEMORY["agent"].of(message),
        MEMORY["state"].of(message),
    )


def _faster_lines(federation: Federation) -> Federation:
    return replace(
        federation,
        site_mbits=LINES * federation.site_mbits,
        server_mbits=LINES * federation.server_mbits,
        delay=federation.delay / LINES,
    )
