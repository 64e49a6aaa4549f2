"""Federation: what is known about a federation before it exists, as a plan needs it."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields

from playerfl.errors import ConfigError
from playerfl.flower.plan.costs import Size

BITS = 8.0
MEGA = 1e6
_POSITIVE = ("sites", "parameters", "tensors", "site_mbits", "server_mbits", "deadline", "ask_again", "poll")


@dataclass(frozen=True)
class Federation:
    """Sites, a model, lines, and what may go wrong. Times are in seconds."""

    sites: int
    parameters: int
    """Of the shared layers: private ones do not travel."""
    tensors: int = 50
    """How many tensors these parameters are in."""
    training: float = 60.0
    """What the median site takes to train and evaluate, per round."""
    spread: float = 0.2
    """How sites differ: the standard deviation of the logarithm of that time, drawn for each site and round."""
    slow: int = 0
    """How many sites take `slowness` times as long."""
    slowness: float = 4.0
    site_mbits: float = 100.0
    """The line of each site, in megabits per second, each way."""
    server_mbits: float = 1000.0
    """The server's line, each way."""
    delay: float = 0.03
    """From a request to the first byte of its answer, on the lines alone."""
    kills: float = 0.0
    """The probability that a site's machine or program is killed while it works on a round."""
    deadline: float = 3600.0
    ask_again: float = 30.0
    poll: float = 1.0
    """The last three are the options of `playerfl flower init` and `Deployment`."""
    cores: int = 0
    """If everything runs on one machine, as in a test: its cores; 0: every party has its own machine."""

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            least = "above 0" if field.name in _POSITIVE else "at least 0"
            if not math.isfinite(value) or value < 0 or (value == 0 and field.name in _POSITIVE):
                raise ConfigError(f"{field.name} must be {least}, not {value}")
        if self.slow > self.sites:
            raise ConfigError(f"{self.slow} slow sites are more than the {self.sites} sites")
        if self.kills > 1:
            raise ConfigError(f"kills is a probability, so it must be at most 1, not {self.kills}")
        if self.tensors > self.parameters:
            raise ConfigError(f"{self.tensors} tensors cannot have {self.parameters} parameters")

    @property
    def message(self) -> Size:
        """The model on its way down, and on its way up."""
        return Size.of(self.parameters, self.tensors)

    @property
    def site_bytes(self) -> float:
        """Bytes per second of a site's line."""
        return self.site_mbits * MEGA / BITS

    @property
    def server_bytes(self) -> float:
        """Bytes per second of the server's line."""
        return self.server_mbits * MEGA / BITS

    @property
    def asks_after(self) -> float:
        """Seconds before a site is asked again: a real job does so at least five times before the deadline."""
        return min(self.ask_again, self.deadline / 5)
