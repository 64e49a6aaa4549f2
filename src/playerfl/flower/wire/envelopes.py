"""Envelope and Response: a request to a site and its reply, with everything needed to deliver them."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from playerfl.errors import ConfigError

if TYPE_CHECKING:
    # Commands that only read names and options do without torch.
    from playerfl.federation.messages import Reply, Request, SiteId
    from playerfl.flower.wire.introduction import Introduction

Code = Literal[
    "version", "model", "name", "data", "state_lost", "state_differs", "storage", "privacy", "failed",
    "waiting", "refused", "stopped", "finished", "pinned", "budget", "schema",
]  # fmt: skip

SENTENCES: dict[Code, str] = {
    "version": "the site has a different version of playerfl; install the same version everywhere",
    "model": "the site builds a different model from this experiment; check its task, columns and classes",
    "name": "the site was started under a different name; register its key under that name",
    "data": "the site's data cannot be used for this experiment; see its log",
    "state_lost": "the site has lost its state; restore it from a backup, or readmit the site as a new one",
    "state_differs": "the site's state is from a different point in the job; see its log",
    "storage": "the site cannot write its state; see its log",
    "privacy": "the site refuses to send what was asked for; see its log",
    "failed": "the site could not do what was asked; see its log",
    "waiting": "it is waiting for a person at the site to approve the job",
    "refused": "the site's policy or a person there refuses the job; ask the site",
    "stopped": "a person at the site has stopped its part in the job",
    "finished": "the site has finished this job and answers no more requests for it",
    "pinned": "the request differs from what the site agreed to when the job began; see the site's audit log",
    "budget": "the site's privacy budget is spent",
    "schema": "the site's columns or classes differ from the server's; see its log",
}
"""All that a site reveals when something goes wrong there: no path, no value, no exception text."""

WAIT: frozenset[Code] = frozenset({"waiting"})
"""Codes after which the server asks again later: the site may reply then without any change at the server."""

_JOB = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")
_SITE = re.compile(r"[^\s\"'\\,/\x00-\x1f][^\"'\\,/\x00-\x1f]{0,62}")

SMALLEST, LARGEST = 1e-9, 1e9
"""For a privacy option that is not off."""


@dataclass(frozen=True)
class Privacy:
    """What a site does to an upload before sending it; all off by default. See `playerfl.flower.site.privacy`."""

    clip: float = 0.0
    """The largest allowed norm of an update (upload minus what the site was sent); 0: off."""
    noise: float = 0.0
    """Standard deviation of the noise on every number, in units of `clip`; 0: off."""
    sensitivity_noise: float = 0.0
    """Standard deviation of the noise on the logarithm of each layer's importance; 0: off."""
    secure_range: float = 0.0
    """Weights are sent by SecAgg+, which can represent values between plus and minus this; 0: off."""

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            # Beyond these bounds, squares and products overflow, and ε cannot be computed.
            if value != 0 and not SMALLEST <= value <= LARGEST:
                raise ConfigError(f"{name} must be 0 (off), or between {SMALLEST:g} and {LARGEST:g}, not {value}")
        if self.noise and not self.clip:
            raise ConfigError("noise is in units of the clipping bound; set clip too")


@dataclass(frozen=True)
class Envelope:
    """Server to one site: the recipient, the job and its experiment, and what to do."""

    job: str
    site: SiteId
    experiment: str
    """The resolved experiment file."""
    version: str
    model: str
    """Fingerprint of the seeded initial model, which every party builds itself."""
    after: str = ""
    """The key of this site's last accepted response; the site continues from its state after that."""
    request: Request | None = None
    """None in the first envelope, which only asks whether the site is ready."""
    initial: bool = False
    """Whether the download is the initial model: the site has it, so no weights are sent."""
    privacy: Privacy = field(default_factory=Privacy)
    merge_sites: int = 0
    """How many sites the server says it merges at least; 0: it does not say."""
    schema: str = ""
    """The schema (JSON) that all sites must have, once the server knows one."""

    @property
    def key(self) -> str:
        """Identifies an exchange of a job: a request that is sent again keeps its key."""
        if self.request is None:
            return "hello"
        return f"{self.request.download.round}:{'+'.join(self.request.verbs)}"

    @property
    def steps(self) -> list[str]:
        """Round and verb of everything that is asked for, as in "3:fit"."""
        request = self.request
        return [f"{request.download.round}:{verb}" for verb in request.verbs] if request else []

    def digest(self) -> str:
        """A fingerprint of everything the response depends on."""
        from playerfl.storage import tensor_tree

        request = self.request
        asked: list[Any] = [self.job, self.site, self.experiment, self.model, self.after, self.initial]
        asked.append(vars(self.privacy))
        if request is not None:
            download = request.download
            asked += [request.verbs, request.best_round, download.round, download.weights, dict(download.info)]
            asked += ["common"] if request.common else []
        return tensor_tree.digest({"asked": asked})


@dataclass(frozen=True)
class Response:
    """One site to the server: the reply, or why there is none."""

    site: SiteId
    key: str
    reply: Reply | None = None
    code: Code | None = None
    introduction: Introduction | None = None
    """In response to the first envelope."""
    fingerprint: str = ""
    """The fingerprint of the finished model; the model itself stays at the site."""
    detail: str = field(default="", compare=False)
    """Why there is no reply, for the site's own audit log. It is never sent."""


class RefusedError(Exception):
    """A site does not do what an envelope asks. The server receives the code; the details stay in the site's logs."""

    def __init__(self, code: Code, detail: str) -> None:
        super().__init__(detail)
        self.code: Code = code


def check_job(name: str) -> str:
    """A job's name, which becomes a directory at every party.

    >>> check_job("heart-2026.1")
    'heart-2026.1'
    """
    if not _JOB.fullmatch(name):
        raise ConfigError(
            f"{name!r} is not a valid job name; use up to 64 letters, digits, dots, dashes and underscores"
        )
    return name


def check_site(name: str) -> str:
    """A site's name, which the key's registration, the site's command and the experiment must agree on."""
    # Characters that do not show could make two sites look like one.
    if not _SITE.fullmatch(name) or not name.isprintable() or name != name.strip():
        raise ConfigError(
            f"{name!r} is not a valid site name; use up to 63 visible characters without quotes, commas and slashes"
        )
    return name
