"""Deployment: how a job runs across institutions. The experiment alone decides its result."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from playerfl.errors import ConfigError, one_of
from playerfl.federation.messages import SiteId
from playerfl.flower.wire.envelopes import Privacy, check_job, check_site


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
    norm_bound: float = 20.0
    """Uploads that moved more than this many times the round's median are refused; 0: off."""
    poll: float = 1.0
    """Seconds between two looks for responses."""
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
        return {
            "job": self.job,
            "sites": ",".join(self.sites),
            "min-sites": self.min_sites,
            "deadline": float(self.deadline),
            "norm-bound": float(self.norm_bound),
            "poll": float(self.poll),
            "readmit": ",".join(self.readmit),
            "clip": float(self.privacy.clip),
            "noise": float(self.privacy.noise),
            "sensitivity-noise": float(self.privacy.sensitivity_noise),
            "secure-range": float(self.privacy.secure_range),
            "experiment": self.experiment,
        }

    @classmethod
    def from_run_config(cls, config: Mapping[str, Any]) -> Deployment:
        """What `to_run_config` gave.

        >>> deployment = Deployment("job", ("north", "south"), "rounds = 2")
        >>> Deployment.from_run_config(deployment.to_run_config()) == deployment, deployment.needed
        (True, 2)
        """
        try:
            return cls(
                job=str(config["job"]),
                sites=_names(config["sites"]),
                experiment=str(config["experiment"]),
                min_sites=int(config["min-sites"]),
                deadline=float(config["deadline"]),
                norm_bound=float(config["norm-bound"]),
                poll=float(config["poll"]),
                readmit=_names(config["readmit"]),
                privacy=Privacy(
                    float(config["clip"]),
                    float(config["noise"]),
                    float(config["sensitivity-noise"]),
                    float(config["secure-range"]),
                ),
            )
        except KeyError as problem:
            raise ConfigError(f"the app folder lacks {problem}; create it with playerfl flower init") from problem
        except (TypeError, ValueError, OverflowError) as problem:
            raise ConfigError(
                f"the app folder has an invalid value: {problem}; create it with playerfl flower init"
            ) from problem


def _names(text: Any) -> tuple[str, ...]:
    return tuple(name.strip() for name in str(text).split(",") if name.strip())
