"""How a site finds its data, and what it needs to work on a job: its own task, with the job's model and settings."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from playerfl.data.check.result import DataCheck
from playerfl.data.download.directory import use_data_directory
from playerfl.data.schema import Schema
from playerfl.engine.handle import handle
from playerfl.engine.scheduler import Work
from playerfl.errors import DataError
from playerfl.federation.client import Client
from playerfl.federation.messages import Reply, Request, SiteId
from playerfl.flower.site.data_check import shared_summary
from playerfl.flower.site.files.stored_state import ClientState
from playerfl.flower.site.pinning import Pinned
from playerfl.flower.site.policy import Policy, Sharing
from playerfl.flower.wire.introduction import Introduction
from playerfl.runs.experiment import Experiment
from playerfl.runs.setup import Setup, prepare_setup
from playerfl.storage import tensor_tree
from playerfl.tasks.check import check_task
from playerfl.tasks.folder.options import FolderOptions
from playerfl.tasks.load import load_task
from playerfl.tasks.task import Task

TEMPLATE = "template"
"""A synthetic table with all columns and classes, so that parties with different data build the same model."""


class SiteSetup(NamedTuple):
    """The setup of an experiment at one site, and what its columns and classes are called, if that is known."""

    setup: Setup
    schema: Schema | None
    check: Callable[[], DataCheck]
    """Checks this site's data."""


FindSetup = Callable[[Experiment, SiteId], SiteSetup]


def setup_finder(task: str | None = None, data_dir: Path | None = None, device: str | None = None) -> FindSetup:
    """Finds a site's data: that of `task`.

    Without one, the experiment chooses it, which is right only where server and sites belong to one person.
    """

    def find(experiment: Experiment, name: SiteId) -> SiteSetup:
        return _setup(experiment.to_toml(), name, task, data_dir, device)

    return find


# Kept for the next envelope; only two, since each holds the site's data.
@lru_cache(maxsize=2)
def _setup(toml: str, name: SiteId, task: str | None, data_dir: Path | None, device: str | None) -> SiteSetup:
    experiment = Experiment.from_resolved(toml)
    if device is not None:
        experiment = experiment.model_copy(update={"device": device})
    with use_data_directory(data_dir):
        return site_setup(experiment, load_task(task or experiment.task), name)


def site_setup(experiment: Experiment, task: Task, name: SiteId) -> SiteSetup:
    """The setup of an experiment at one site: the model, and the data of this site only."""
    options = experiment.data_options(task)
    adapted = task.for_options(options)

    def own_name(sites: Collection[SiteId]) -> SiteId:
        own = [site for site in sites if site == name] or [site for site in sites if site != TEMPLATE]
        if len(own) != 1:
            raise DataError(f"the task has no data for {name!r}; it has data for: {', '.join(own) or 'no site'}")
        return own[0]

    def load_sites(_: Any) -> dict[str, Any]:
        sites = adapted.load_sites(options)
        return {name: sites[own_name(sites)]}

    def check() -> DataCheck:
        if task.check is None or not isinstance(options, FolderOptions):
            return check_task(replace(own, check=None), options, experiment.training.batch_size)
        sites = adapted.load_sites(options)
        others = tuple(site for site in sites if site != own_name(sites))
        alone = options.model_copy(update={"skip_sites": (*options.skip_sites, *others)})
        return check_task(task, alone, experiment.training.batch_size)

    own = replace(adapted, load_sites=load_sites, adapt=None)
    return SiteSetup(prepare_setup(experiment, own), adapted.schema, check)


@dataclass(frozen=True)
class Workspace:
    """An experiment with this site's data and model."""

    experiment: Experiment
    name: SiteId
    setup: Setup
    schema: Schema | None
    check: Callable[[], DataCheck]

    def pinned(self, policy: Policy) -> Pinned:
        learner = self.setup.learner
        return Pinned(self.experiment.build_algorithm(), learner.layers, self.setup.initial, policy.layers)

    def client(self, state: ClientState | None) -> Client:
        plan = self.experiment.training.plan(self.experiment.rounds)
        client = Client(self.name, self.setup.sites[self.name], self.setup.learner, plan, self.setup.initial)
        if state is not None:
            # Read anew: training changes it, and the earlier state is stored again as history.
            client.restore(tensor_tree.loaded(dict(state)))
        return client

    def handle(self, client: Client, request: Request) -> Work[Reply]:
        experiment = self.experiment
        return handle(experiment.build_algorithm(), client, request, experiment.seed, experiment.evaluation)

    def introduction(self, schema: Schema | None, sharing: Sharing) -> Introduction:
        import torch

        return Introduction(
            len(self.setup.sites[self.name].train),
            self.setup.learner.layers,
            str(torch.__version__),
            self.experiment.device,
            schema if sharing.column_names else None,
            shared_summary(self.check, sharing),
        )


def experiment_sites(experiment: Experiment) -> list[SiteId]:
    """The sites of the experiment's task, including the template."""
    task = load_task(experiment.task)
    options = experiment.data_options(task)
    return sorted(task.for_options(options).load_sites(options))
