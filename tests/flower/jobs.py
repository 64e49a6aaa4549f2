"""Jobs over a loop-back grid: small federations, with a directory for each site and one for the server."""

from __future__ import annotations

import csv
import json
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from federations import settings_of, task
from flower.accidents import Accident, StoppedError, stop
from flower.loop_grid import Change, Clock, LoopGrid
from playerfl.algorithms import Algorithm
from playerfl.engine.scheduler import drive
from playerfl.flower.client_app import make_app
from playerfl.flower.deployment import Deployment
from playerfl.flower.server.run_job import run_job
from playerfl.flower.site.agent import SiteAgent
from playerfl.flower.site.policy import Policy
from playerfl.flower.site.setup import SiteSetup
from playerfl.flower.site.setup import site_setup as prepare_site
from playerfl.flower.site.site import Site
from playerfl.runs.directory import SCORE_COLUMNS, TRAFFIC_COLUMNS, RunDirectory
from playerfl.runs.experiment import Experiment
from playerfl.runs.run import Run
from playerfl.runs.setup import prepare_setup
from playerfl.tasks.task import Task
from playerfl.weights import digest

SITES = ("site-0", "site-1", "site-2")
_SETUPS: dict[tuple[str, int, str], tuple[Task, SiteSetup]] = {}


def site_setup(experiment: Experiment, a_task: Task, name: str) -> SiteSetup:
    """Prepared once for all jobs with this experiment, as at a site: preparing takes a sixth of a job's time."""
    key = (experiment.to_toml(), id(a_task), name)
    if key not in _SETUPS:
        _SETUPS[key] = (a_task, prepare_site(experiment, a_task, name))
    return _SETUPS[key][1]


class Job:
    """A job with a grid, clock and sites that tests can tamper with."""

    def __init__(
        self,
        home: Path,
        algorithm: str | Algorithm,
        a_task: Task | None = None,
        rounds: int = 3,
        sites: tuple[str, ...] = SITES,
        policy: Policy | None = None,
        **settings: Any,
    ) -> None:
        self.home = home
        self.policy = policy or Policy.of({"approval": "automatic", "jobs": {"least_sites": 1}})
        self.task = a_task or task()
        self.experiment = Experiment.resolve(settings_of(algorithm, {"rounds": rounds, **settings}), self.task)
        self.deployment = Deployment("job", sites, self.experiment.to_toml(), deadline=6.0)
        self.clock = Clock()
        self.said: list[str] = []
        self.sites = {name: self.site(name) for name in sites}
        self.agents: dict[str, SiteAgent] = {}
        self.grid = LoopGrid({name: make_app(lambda _, name=name: self.agent(name).answer) for name in sites})

    def site(self, name: str) -> Site:
        # Data and model are read once; a site's state is read from its directory for every envelope.
        find = cache(lambda model: site_setup(self.experiment.model_copy(update={"model": model}), self.task, name))
        return Site(name, self.home / name, lambda experiment, _: find(experiment.model), self.policy)

    def agent(self, name: str) -> SiteAgent:
        """The agent of a site, also if a test has replaced the site."""
        if name not in self.agents or self.agents[name].site is not self.sites[name]:
            self.agents[name] = SiteAgent(self.sites[name])
        return self.agents[name]

    def tamper(self, change: Change | None) -> None:
        self.grid.change = change

    def run(self, jobs: Path | None = None, **changes: Any) -> None:
        run_job(
            self.grid,
            replace(self.deployment, **changes),
            jobs or self.home / "jobs",
            task=self.task,
            say=self.said.append,
            clock=self.clock,
            sleep=self.clock.sleep,
        )

    def interrupt(self, site: str, key: str, **changes: Any) -> None:
        """Stops the server when the site has responded to this key."""
        self.tamper(Accident(site, [key], stop))
        with pytest.raises(StoppedError):
            self.run(**changes)
        self.tamper(None)

    def wait_in_vain(self, seconds: float = 60.0) -> None:
        """Runs the job until the server has waited this long by the job's clock, and stops it."""
        advance, ends = self.clock.sleep, self.clock.now + seconds

        def sleep(duration: float) -> None:
            advance(duration)
            if self.clock.now > ends:
                raise StoppedError

        self.clock.sleep = sleep  # type: ignore[method-assign]
        with pytest.raises(StoppedError):
            self.run()
        self.clock.sleep = advance  # type: ignore[method-assign]

    @property
    def folder(self) -> Path:
        return self.home / "jobs" / self.deployment.job

    @property
    def fingerprints(self) -> dict[str, str]:
        """The fingerprints of the sites' models, as stored by the server."""
        return json.loads((self.folder / "sites.json").read_text())["models"]  # type: ignore[no-any-return]

    @property
    def common(self) -> dict[str, torch.Tensor]:
        """The shared layers, as stored by the server."""
        return load_file(self.folder / "common.safetensors")

    def participation(self, outcome: str | None = None) -> list[dict[str, str]]:
        with (self.folder / "participation.csv").open(newline="") as table:
            return [row for row in csv.DictReader(table) if outcome in (None, row["outcome"])]

    def in_process(self) -> Run:
        return Run(self.experiment, prepare_setup(self.experiment, self.task))

    def assert_equals_in_process(self) -> None:
        """The same models at the sites, the same common model, the same scores and traffic, bit for bit."""
        run = self.in_process()
        result = drive(run.rounds())
        assert self.fingerprints == {site: digest(weights) for site, weights in result.weights.items()}
        common = {**run.setup.initial, **self.common}
        for entry, tensor in run.server.weights.items():
            assert torch.equal(tensor, common[entry]), entry
        directory = RunDirectory(self.folder)
        rows = directory.read_table("scores.csv", SCORE_COLUMNS)
        assert sorted(map(tuple, rows)) == sorted(tuple(row) for row in result.score_rows)
        assert list(map(tuple, directory.read_table("traffic.csv", TRAFFIC_COLUMNS))) == list(result.traffic_rows)
        # Matrices stay at the sites.
        assert result.confusions and not directory.confusions()
