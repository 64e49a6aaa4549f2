"""Jobs over a loop-back grid: small federations, a directory for each site and one for the server."""

from __future__ import annotations

import csv
import json
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

from federations import settings_of, task
from flower.loop_grid import Change, Clock, LoopGrid
from playerfl.algorithms import Algorithm
from playerfl.flower.client_app import make_app
from playerfl.flower.deployment import Deployment
from playerfl.flower.server.run_job import run_job
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

    @property
    def folder(self) -> Path:
        return self.home / "jobs" / "job"

    @property
    def fingerprints(self) -> dict[str, str]:
        """Of the sites' models, as the server wrote them down."""
        return json.loads((self.folder / "sites.json").read_text())["models"]  # type: ignore[no-any-return]

    @property
    def common(self) -> dict[str, torch.Tensor]:
        """The layers that sites have trained together, as the server wrote them down."""
        return load_file(self.folder / "common.safetensors")

    def participation(self, outcome: str | None = None) -> list[dict[str, str]]:
        with (self.folder / "participation.csv").open(newline="") as table:
            return [row for row in csv.DictReader(table) if outcome in (None, row["outcome"])]

    def in_process(self) -> Run:
        return Run(self.experiment, prepare_setup(self.experiment, self.task))
