"""Policy: what a site agrees to, as a strict TOML file that only the site's administrator can write."""

from __future__ import annotations

from collections.abc import Mapping
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Literal

from pydantic import AliasChoices, BaseModel, ConfigDict, Field, field_validator, model_validator

from playerfl.algorithms import ALGORITHMS
from playerfl.errors import ConfigError, one_of
from playerfl.flower.wire.envelopes import Privacy
from playerfl.runs.experiment import Experiment
from playerfl.runs.settings_table import read_toml, validated
from playerfl.tasks.load import names_object
from playerfl.wording import counted

_STRICT = ConfigDict(strict=True, extra="forbid", frozen=True)


class AcceptedJobs(BaseModel):
    """The `[jobs]` table: which jobs are considered at all."""

    model_config = _STRICT

    names: list[str] = ["*"]
    """Patterns of job names, such as "heart-*"."""
    algorithms: list[str] = sorted(ALGORITHMS)
    """Algorithms by name; one of your own as FILE.py:NAME runs code from your disk, never from a message."""
    data: dict[str, Any] | None = None
    """If given, the experiment's [data] table must be exactly this: the target, the columns left out, the split."""
    least_rows: int = Field(20, ge=0)
    """Minimum number of training rows with which this site takes part."""
    least_scored_rows: int = Field(5, ge=0)
    """Minimum number of validation and test rows for sharing scores; a part without rows has none to share."""
    least_sites: int = Field(2, ge=0)
    """Minimum number of sites that the server may merge. Only secure aggregation proves that it does."""
    most_rounds: int = Field(1000, ge=1)
    most_local_epochs: int = Field(100, ge=1)
    """Also for each option of an algorithm whose name ends in "epochs" or "steps": they multiply a round's work."""
    most_threads: int = Field(64, ge=1)
    most_waiting: int = Field(20, ge=1)
    """How many jobs may wait for approval at the same time."""
    most_message_bytes: int = Field(2**31, ge=2**20)
    """The longest message that is read; a larger one could take all of the agent's memory."""

    @field_validator("algorithms")
    @classmethod
    def _known(cls, names: list[str]) -> list[str]:
        for name in names:
            if name not in ALGORITHMS and not names_object(name):
                raise ValueError(one_of(name, ALGORITHMS, "algorithm"))
        return names


class ProtectedLayers(BaseModel):
    """The `[layers]` table: what never leaves, whatever a job says."""

    model_config = _STRICT

    never_send: list[str] = []
    """Layers that never leave this site."""
    least_private: int = Field(0, ge=0)
    """Minimum number of private layers, counted from the output."""


class RequiredPrivacy(BaseModel):
    """The `[privacy]` table: what every job must do to uploads; a job may do more."""

    model_config = _STRICT

    most_clip: float = Field(0.0, ge=0, allow_inf_nan=False)
    """Updates must be clipped to at most this norm; 0: no clipping needed."""
    least_noise: float = Field(0.0, ge=0, allow_inf_nan=False)
    least_sensitivity_noise: float = Field(0.0, ge=0, allow_inf_nan=False)
    secure: bool = False
    """Whether uploads must be sent by secure aggregation."""


class PrivacyBudget(BaseModel):
    """The `[budget]` table: what all jobs together may reveal through uploads."""

    model_config = _STRICT

    epsilon: float | None = Field(None, gt=0, allow_inf_nan=False)
    """The largest ε over all uploads of all jobs; a job without noise is then refused. Default: no budget."""
    delta: float = Field(1e-5, gt=0, lt=1)
    uncounted: list[Literal["scores", "measurements"]] = []
    """What may leave a site with a budget although it has no ε, because no noise is added to it: scores, and what some
    methods measure on the rows before the first round (PLayer-FL: one number per layer; FedDBE: mean features)."""


class Sharing(BaseModel):
    """The `[sharing]` table: what the server learns besides uploads."""

    model_config = _STRICT

    column_names: bool = True
    """Whether names of columns and classes are sent for comparison; categories are only ever sent as fingerprints."""
    scores: bool = True
    """Whether validation and test scores are sent. Without them, the report leaves this site out."""
    data_check: Literal["none", "findings", "columns"] = "none"
    """What is sent of the data check: nothing, how many warnings there are by topic, or also rounded medians, 5th and
    95th percentiles and shares of missing values of columns of numbers, from which different units can be noticed."""


class Policy(BaseModel):
    """A site's policy (`site.toml`). Every key has a default; the defaults are strict."""

    model_config = _STRICT

    approval: Literal["person", "automatic"] = "person"
    """Whether a person must approve every new job with `playerfl flower approve`."""
    task: str | None = None
    """This site's data, like `--task`. A message never chooses it."""
    model: str | None = None
    """This site's own copy of the model for jobs that replace the task's, like `--model`. A message never chooses it:
    it only says whether the task's model is replaced, and the server's and the site's must then be equal."""
    servers: list[str] = Field([], validation_alias=AliasChoices("servers", "coordinators"))
    """Servers (NAME:PORT) whose messages this site answers; empty: the one given to `--server`."""
    jobs: AcceptedJobs = AcceptedJobs()
    layers: ProtectedLayers = ProtectedLayers()
    privacy: RequiredPrivacy = RequiredPrivacy()
    budget: PrivacyBudget = PrivacyBudget()
    sharing: Sharing = Sharing()
    units: dict[str, str] = {}
    """The units of columns, compared with those of other sites: `glucose = "mmol/l"`."""

    @field_validator("servers")
    @classmethod
    def _addresses(cls, servers: list[str]) -> list[str]:
        for server in servers:
            host, _, port = server.rpartition(":")
            if not host or "/" in host or not port.isdecimal():
                raise ValueError(f"servers are written as NAME:PORT, not {server!r}")
        return servers

    @model_validator(mode="after")
    def _without_contradiction(self) -> Policy:
        if self.sharing.data_check == "columns" and not self.sharing.column_names:
            raise ValueError(
                'data_check = "columns" shares names of columns, but column_names = false: set data_check = "findings"'
            )
        return self

    @model_validator(mode="after")
    def _countable(self) -> Policy:
        if self.budget.epsilon is not None and self.sharing.scores and "scores" not in self.budget.uncounted:
            raise ValueError(
                "a budget cannot count scores, which leave without noise: set scores = false in [sharing], or "
                'uncounted = ["scores"] in [budget] to send them all the same'
            )
        return self

    @classmethod
    def read(cls, path: Path) -> Policy:
        return cls.of(read_toml(path), str(path))

    @classmethod
    def of(cls, table: Mapping[str, Any], where: str = "site.toml") -> Policy:
        """A policy from a table.

        >>> Policy.of({"aproval": "automatic"})
        Traceback (most recent call last):
        playerfl.errors.ConfigError: unknown key 'aproval' in site.toml; did you mean 'approval'? allowed: \
approval, budget, jobs, layers, model, privacy, servers, sharing, task, units
        """
        return validated(cls, table, where)

    @classmethod
    def trusting(cls, model: str | None = None) -> Policy:
        """For a simulation or a test, where server and sites belong to one person: everything is accepted, and the
        model is the experiment's."""
        accepting = {"least_rows": 0, "least_scored_rows": 0, "least_sites": 0, "most_rounds": 10**9}
        return cls.of({"approval": "automatic", "model": model, "jobs": accepting})

    def check_server(self, server: str) -> None:
        if self.servers and server not in self.servers:
            raise ConfigError(f"the policy does not accept this server: {one_of(server, self.servers, 'server')}")

    def refusal(self, job: str, experiment: Experiment, privacy: Privacy, merge_sites: int) -> str | None:
        """Why this site takes no part in a job, judging by its envelope; None if it may."""
        jobs, training = self.jobs, experiment.training
        algorithm = experiment.algorithm.get("name")
        if not any(fnmatchcase(job, pattern) for pattern in jobs.names):
            return f"the policy accepts jobs called {', '.join(jobs.names) or 'nothing'}, not {job!r}"
        if algorithm not in jobs.algorithms:
            return f"the policy does not accept the algorithm {str(algorithm)[:80]!r}"
        if experiment.model is not None and self.model is None:
            return (
                f"the job replaces the task's model with {experiment.model[-80:]!r}; read that code, and give "
                "this site's copy of it with --model"
            )
        if jobs.data is not None and experiment.data != jobs.data:
            return f"the policy accepts only the data options {jobs.data}, not {experiment.data}"
        if jobs.data is None and experiment.data.get("group_pattern"):
            return "a regular expression from a message is not run; accept data.group_pattern with [jobs.data]"
        if merge_sites < jobs.least_sites:
            return (
                f"the server merges at least {counted(merge_sites, 'site')}, but the policy asks for {jobs.least_sites}"
            )
        for what, value, most in (
            ("rounds", experiment.rounds, jobs.most_rounds),
            ("training.local_epochs", training.local_epochs, jobs.most_local_epochs),
            ("threads", experiment.threads, jobs.most_threads),
            *(
                (f"algorithm.{name}", value, jobs.most_local_epochs)
                for name, value in experiment.algorithm.items()
                if name.endswith(("epochs", "steps"))
            ),
        ):
            # Types of an algorithm's options are checked later.
            if isinstance(value, int | float) and not value <= most:
                return f"{what} = {value}, but the policy accepts at most {most}"
        return self._unprotected(privacy)

    def too_few_rows(self, train: int, validation: int, test: int) -> str | None:
        """Why this site takes no part with this number of rows, or None."""
        if train < self.jobs.least_rows:
            return f"this site has {counted(train, 'training row')}, but the policy asks for {self.jobs.least_rows}"
        least = self.jobs.least_scored_rows if self.sharing.scores else 0
        for part, rows in (("validation", validation), ("test", test)):
            if 0 < rows < least:
                return f"scores of {counted(rows, f'{part} row')} would be shared, but the policy asks for {least}"
        return None

    def uncountable(self, measured: Mapping[str, int]) -> str | None:
        """Why a budget forbids a job that uploads these numbers (name and length) before the first round, or None."""
        if self.budget.epsilon is None or not measured or "measurements" in self.budget.uncounted:
            return None
        return (
            f"the job uploads {listed(measured)} without noise, which a budget cannot count; accept this with "
            'uncounted = ["measurements"] in [budget]'
        )

    def _unprotected(self, privacy: Privacy) -> str | None:
        required = self.privacy
        if required.most_clip and not 0 < privacy.clip <= required.most_clip:
            return f"clip = {privacy.clip:g}, but the policy asks for at most {required.most_clip:g}"
        if privacy.noise < required.least_noise:
            return f"noise = {privacy.noise:g}, but the policy asks for at least {required.least_noise:g}"
        if privacy.sensitivity_noise < required.least_sensitivity_noise:
            return (
                f"sensitivity_noise = {privacy.sensitivity_noise:g}, but the policy asks for at least "
                f"{required.least_sensitivity_noise:g}"
            )
        if required.secure and not privacy.secure_range:
            return "the job does not use secure aggregation, but the policy asks for it"
        if self.budget.epsilon is not None and not privacy.noise:
            return "this site has a privacy budget, so a job must add noise to what it uploads"
        return None


def listed(numbers: Mapping[str, int]) -> str:
    """Lists of numbers by name and length, in words.

    >>> listed({"importance": 4})
    '4 numbers (importance)'
    """
    return ", ".join(f"{counted(length, 'number')} ({name})" for name, length in numbers.items())
