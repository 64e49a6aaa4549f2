"""Jobs over a loop-back grid: small federations, a directory for each site, one for the coordinator."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from federations import settings_of, task
from flower.loop_grid import Change, Clock, LoopGrid
from playerfl.algorithms import Algorithm
from playerfl.flower.client_app import make_app
from playerfl.flower.coordinator.coordinator import Coordinator
from playerfl.flower.deployment import Deployment
from playerfl.flower.site.site import Site, site_setup
from playerfl.runs.experiment import Experiment
from playerfl.runs.run import Run
from playerfl.runs.setup import prepare_setup
from playerfl.tasks.task import Task

SITES = ("site-0", "site-1", "site-2")


class Job:
    """One job, with everything that may go wrong in reach."""

    def __init__(
        self,
        home: Path,
        algorithm: str | Algorithm,
        a_task: Task | None = None,
        rounds: int = 3,
        sites: tuple[str, ...] = SITES,
        **settings: Any,
    ) -> None:
        self.home = home
        self.task = a_task or task()
        self.experiment = Experiment.resolve(settings_of(algorithm, {"rounds": rounds, **settings}), self.task)
        self.deployment = Deployment("job", sites, self.experiment.to_toml(), deadline=6.0)
        self.clock = Clock()
        self.said: list[str] = []
        self.sites = {name: self.site(name) for name in sites}
        self.grid = LoopGrid({name: make_app(lambda _, name=name: self.sites[name]) for name in sites})

    def site(self, name: str) -> Site:
        # Data and model are read once; what a site knows is read from its directory for every envelope.
        find = cache(lambda _: site_setup(self.experiment, self.task, name))
        return Site(name, self.home / name, lambda _, n: find(n))

    def tamper(self, change: Change | None) -> None:
        self.grid.change = change

    def coordinator(self, **changes: Any) -> Coordinator:
        return Coordinator(
            self.grid,
            replace(self.deployment, **changes),
            self.home / "jobs",
            task=self.task,
            say=self.said.append,
            clock=self.clock,
            sleep=self.clock.sleep,
        )

    def run(self, **changes: Any) -> Coordinator:
        coordinator = self.coordinator(**changes)
        coordinator.run()
        return coordinator

    @property
    def folder(self) -> Path:
        return self.home / "jobs" / "job"

    def in_process(self) -> Run:
        return Run(self.experiment, prepare_setup(self.experiment, self.task))
