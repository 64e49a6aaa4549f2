"""Deployment: how a job runs across institutions, beyond what its experiment says."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import TYPE_CHECKING, Any

from playerfl.errors import ConfigError, one_of
from playerfl.flower.wire.envelopes import Privacy, check_job, check_site

if TYPE_CHECKING:
    from playerfl.federation.messages import SiteId

MAX_WEIGHT = 0.75
"""No site counts for more than three times as much as all the others together. Real federations stay below this (the
largest site of the bundled heart data has 193 of 472 training rows, that of the HAM10000 images of ISIC 2019 has 2,477
of 6,017: 41 % each), so that honest results do not change; a site that invents its number of examples stops here."""

_NUMBERS = ("deadline", "norm_bound", "max_weight", "ask_again", "poll")


@dataclass(frozen=True)
class Deployment:
    """Which sites take part in a job, and what happens when some are missing."""

    job: str
    sites: tuple[SiteId, ...]
    experiment: str
    """The resolved experiment file."""
    min_sites: int = 0
    """Minimum sites per round; 0: more than half."""
    deadline: float = 3600.0
    """Seconds a round waits for its sites; also how long a message stays valid."""
    norm_bound: float = 6.0
    """Uploads that changed by more than this many times the round's median are refused (up to twice as many for a site
    with more examples than the median site); 0: off. Honest sites were seen to reach 3.3."""
    max_weight: float = MAX_WEIGHT
    """The largest share of the mean that one site can have, however many examples it claims; 1: no cap."""
    ask_again: float = 30.0
    """Seconds before a site that has not responded is asked again; doubles each time. Responses are stored at the
    site, so a lost one is sent again without training again."""
    poll: float = 1.0
    """Seconds between two checks for responses."""
    readmit: tuple[SiteId, ...] = ()
    """Sites that lost their state and may rejoin as new ones."""
    privacy: Privacy = field(default_factory=Privacy)

    def __post_init__(self) -> None:
        check_job(self.job)
        for site in self.sites:
            check_site(site)
        if len(set(self.sites)) != len(self.sites) or not self.sites:
            raise ConfigError(f"each site must be listed once, not {', '.join(self.sites) or 'none at all'}")
        if not 0 <= self.min_sites <= len(self.sites):
            raise ConfigError(
                f"min_sites must be between 1 and the number of sites ({len(self.sites)}), not {self.min_sites}"
            )
        if self.deadline <= 0 or self.poll <= 0:
            raise ConfigError(f"deadline and poll must be above 0, not {self.deadline} and {self.poll}")
        if not 0 < self.max_weight <= 1:
            raise ConfigError(f"max_weight must be above 0 and at most 1, not {self.max_weight}")
        if not 0 < self.ask_again < math.inf:
            raise ConfigError(f"ask_again must be above 0, not {self.ask_again}")
        if self.norm_bound < 0 or 0 < self.norm_bound < 1:
            raise ConfigError(f"norm_bound must be at least 1, or 0 to switch it off, not {self.norm_bound}")
        for site in self.readmit:
            if site not in self.sites:
                raise ConfigError(one_of(site, self.sites, "site"))

    @property
    def needed(self) -> int:
        """Minimum sites per round."""
        return self.min_sites or len(self.sites) // 2 + 1

    def to_run_config(self) -> dict[str, Any]:
        """As Flower's run config: plain keys and values."""
        numbers = {name: float(getattr(self, name)) for name in _NUMBERS}
        privacy = {name: float(value) for name, value in asdict(self.privacy).items()}
        settings = {
            "job": self.job,
            "sites": ",".join(self.sites),
            "min_sites": self.min_sites,
            **numbers,
            "readmit": ",".join(self.readmit),
            **privacy,
            "experiment": self.experiment,
        }
        return {name.replace("_", "-"): value for name, value in settings.items()}

    @classmethod
    def from_run_config(cls, config: Mapping[str, Any]) -> Deployment:
        """The inverse of `to_run_config`.

        >>> deployment = Deployment("job", ("north", "south"), "rounds = 2")
        >>> Deployment.from_run_config(deployment.to_run_config()) == deployment, deployment.needed
        (True, 2)
        """

        def number(name: str) -> float:
            # An app folder of version 0.1 has no max-weight and no ask-again.
            added = {"max_weight": cls.max_weight, "ask_again": cls.ask_again}
            key = name.replace("_", "-")
            return float(config.get(key, added[name]) if name in added else config[key])

        try:
            return cls(
                job=str(config["job"]),
                sites=_names(config["sites"]),
                experiment=str(config["experiment"]),
                min_sites=int(config["min-sites"]),
                readmit=_names(config["readmit"]),
                privacy=Privacy(**{field.name: number(field.name) for field in fields(Privacy)}),
                **{name: number(name) for name in _NUMBERS},
            )
        except KeyError as problem:
            raise ConfigError(f"the app folder lacks {problem}; create it with playerfl flower init") from problem
        except (TypeError, ValueError, OverflowError) as problem:
            raise ConfigError(
                f"the app folder has an invalid value: {problem}; create it with playerfl flower init"
            ) from problem


def _names(text: Any) -> tuple[str, ...]:
    return tuple(name.strip() for name in str(text).split(",") if name.strip())
