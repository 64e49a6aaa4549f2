"""JobState: everything the server learns while a job runs, which is exactly what a checkpoint holds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from playerfl.data.schema import Schema
from playerfl.errors import RunDirectoryError
from playerfl.federation.messages import SiteId
from playerfl.federation.server import Server
from playerfl.flower.server.job import Job
from playerfl.flower.wire.check_summary import CheckSummary, compared
from playerfl.layers.layer_map import LayerMap


@dataclass
class Contacts:
    """What the server last accepted from each site, and which sites are absent."""

    accepted: dict[SiteId, str] = field(default_factory=dict)
    """The key of each site's last accepted response."""
    fingerprints: dict[SiteId, str] = field(default_factory=dict)
    """The fingerprint of each site's finished model."""
    away: set[SiteId] = field(default_factory=set)
    """Sites that missed the last deadline."""
    schema: Schema | None = None
    """The columns and classes that all sites must have; asked for again after a restart."""


@dataclass
class JobState:
    """`layers` and `server` are None until the first site has introduced itself."""

    contacts: Contacts = field(default_factory=Contacts)
    examples: dict[SiteId, int] = field(default_factory=dict)
    stated_layers: dict[SiteId, LayerMap] = field(default_factory=dict)
    """The layers of each site by its own account. Not in the checkpoint: sites introduce themselves again."""
    stated_schemas: dict[SiteId, Schema] = field(default_factory=dict)
    """The columns and classes of each site that states them. Not in the checkpoint either."""
    stated_checks: dict[SiteId, CheckSummary] = field(default_factory=dict)
    """What sites share of their data checks. Not in the checkpoint either."""
    layers: LayerMap | None = None
    server: Server | None = None
    participation_bytes: int = 0
    """The length of participation.csv."""
    seconds: float = 0.0
    done: bool = False
    """Whether the last exchange is over; only result files may be missing."""

    def data_notes(self) -> list[str]:
        """What the sites' data checks say, as far as they share them."""
        return compared(self.stated_checks)

    def start(self, job: Job) -> Server:
        """The algorithm's server for the layers that sites have agreed on."""
        assert self.layers is not None
        experiment = job.experiment
        self.server = Server(job.initial, self.layers, job.deployment.sites, experiment.seed, experiment.merge.build())
        return self.server

    def checkpoint(self) -> dict[str, Any]:
        assert self.layers is not None and self.server is not None
        # The keys are those of version 0.1, whose jobs can be resumed.
        return {
            "server": self.server.state(),
            "accepted": self.contacts.accepted,
            "fingerprints": self.contacts.fingerprints,
            "away": sorted(self.contacts.away),
            "examples": self.examples,
            "layers": self.layers.to_json(),
            "notes": self.participation_bytes,
            "done": self.done,
            "seconds": self.seconds,
        }

    def restore(self, saved: Mapping[str, Any], job: Job) -> None:
        """The inverse of `checkpoint`."""
        try:
            self.contacts.accepted.update(saved["accepted"])
            self.contacts.fingerprints.update(saved["fingerprints"])
            self.contacts.away.update(saved["away"])
            self.examples.update(saved["examples"])
            self.layers = LayerMap.from_json(saved["layers"])
            self.start(job).restore(saved["server"])
            self.participation_bytes = int(saved["notes"])
            self.done, self.seconds = bool(saved["done"]), float(saved["seconds"])
        except (AttributeError, LookupError, TypeError, ValueError) as problem:
            raise RunDirectoryError(
                f"the checkpoint does not belong to job {job.deployment.job} ({problem!r}); "
                "restore the job's directory from a backup, or start the job under another name"
            ) from problem

    def readmit(self, sites: tuple[SiteId, ...]) -> None:
        """Forgets the history of sites that lost their state, so that they can start as new ones."""
        for site in sites:
            self.contacts.accepted.pop(site, None)
        if self.server is not None:
            self.server.initialised -= set(sites)
