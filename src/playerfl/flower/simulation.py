"""Runs on Flower's simulation engine (Ray): sites are jobs on a cluster, and results equal one process bit for bit."""

from __future__ import annotations

import logging
import os
import shutil
import threading
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypeVar, cast

from playerfl.data.download.directory import data_directory
from playerfl.errors import ConfigError
from playerfl.federation.messages import Reply, Request, SiteId
from playerfl.flower.deployment import Deployment
from playerfl.flower.server.messenger import Grid
from playerfl.flower.server.state import Contacts
from playerfl.flower.server.transport import FlowerTransport
from playerfl.flower.site.agent import SiteAgent
from playerfl.flower.site.files.job_folder import JobFolder
from playerfl.flower.site.policy import Policy
from playerfl.flower.site.setup import experiment_sites, setup_finder
from playerfl.flower.site.site import Site
from playerfl.flower.wire.envelopes import Envelope
from playerfl.flower.wire.introduction import Introduction
from playerfl.flower.wire.parcel import Parcel
from playerfl.runs.experiment import Experiment
from playerfl.runs.run import Run
from playerfl.storage import tensor_tree
from playerfl.version import __version__
from playerfl.weights import Weights, digest

Result = TypeVar("Result")
DEADLINE = 24 * 3600.0
POLL = 0.05


@dataclass
class Simulated:
    """A run's sites on Ray. Their states are copied back after every exchange, so that the run can be checkpointed."""

    run: Run
    grid: Grid
    home: Path
    job: str

    def __post_init__(self) -> None:
        run, text, everyone = self.run, self.run.experiment.to_toml(), len(self.run.clients)
        deployment = Deployment(
            self.job, run.server.sites, text, min_sites=everyone, deadline=DEADLINE, norm_bound=0.0, poll=POLL
        )
        header = Envelope(self.job, "", text, __version__, digest(run.setup.initial))
        contacts = Contacts()
        self._transport = FlowerTransport(self.grid, deployment, header, _NoChecks(), contacts)
        self._transport.set_initial(run.setup.learner.layers.travelling(run.setup.initial))
        if run.server.prepared:
            for name, client in run.clients.items():
                self._folder(name).adopt("resumed", client.state())
                contacts.accepted[name] = "resumed"

    async def call(self, requests: Mapping[SiteId, Request]) -> dict[SiteId, Reply]:
        replies = await self._transport.call(requests)
        for name in replies:
            stored = self._folder(name).state()
            assert stored is not None, "a site stores its state before it responds"
            self.run.clients[name].restore(tensor_tree.loaded(dict(stored.state)))
        return replies

    def _folder(self, name: SiteId) -> JobFolder:
        return JobFolder(self.home / name / self.job)


class _NoChecks:
    """All sites of a simulation run the same code on the same machine."""

    def admit(self, site: SiteId, introduction: Introduction) -> None:
        return None

    def settle(self) -> dict[SiteId, str]:
        return {}

    def weighted(self, replies: Mapping[SiteId, Reply]) -> dict[SiteId, Reply]:
        return dict(replies)

    def refused(self, requests: Mapping[SiteId, Request], replies: Mapping[SiteId, Reply]) -> dict[SiteId, str]:
        return {}

    def expected_weights(self) -> Weights:
        raise ConfigError("secure aggregation works in deployments only, not in simulations")


def simulate(experiments: Sequence[Experiment], home: Path, work: Callable[[Callable[[Run], Any]], Result]) -> Result:
    """Calls `work` with a factory of transports, one per run; all share one cluster, which `ray` finds or starts."""
    if find_spec("ray") is None or find_spec("flwr") is None:
        raise ConfigError("Flower's simulation engine is not installed; pip install 'playerfl[flower-simulation]'")
    names = sorted({name for experiment in experiments for name in experiment_sites(experiment)})
    sites = home / ".flower-sites"
    results: list[Result] = []
    ended = threading.Event()

    def serve(grid: Grid) -> None:
        numbers = iter(range(len(experiments)))
        until_the_end = cast(Grid, _GridUntil(grid, ended))
        results.append(work(lambda run: Simulated(run, until_the_end, sites, f"run-{next(numbers)}")))

    try:
        # All runs of a comparison have the same model.
        _on_ray(names, sites, Policy.trusting(experiments[0].model), serve)
    finally:
        ended.set()
        shutil.rmtree(sites, ignore_errors=True)
    return results[0]


@dataclass
class _GridUntil:
    """Flower's grid until the simulation has ended.

    Ctrl-C ends it in the main thread only; the server's thread would go on waiting for sites that are gone, for a day.
    """

    grid: Grid
    ended: threading.Event

    def __getattr__(self, name: str) -> Any:
        if self.ended.is_set():
            raise RuntimeError("the simulation has ended")
        return getattr(self.grid, name)


def _on_ray(names: Sequence[SiteId], sites: Path, policy: Policy, serve: Callable[[Grid], None]) -> None:
    os.environ.update(
        FLWR_TELEMETRY_ENABLED="0", FLWR_DISABLE_UPDATE_CHECK="1", RAY_USAGE_STATS_ENABLED="0", OMP_NUM_THREADS="1"
    )
    from flwr.app import Context
    from flwr.serverapp import ServerApp
    from flwr.simulation import run_simulation

    from playerfl.flower.client_app import make_app

    server = ServerApp()
    home, data_dir = sites.resolve(), data_directory()

    @server.main()
    def main(grid: Any, _: Context) -> None:
        serve(grid)

    def agent_of(context: Context) -> Callable[[Parcel], Parcel]:
        name = names[int(str(context.node_config["partition-id"]))]
        return SiteAgent(Site(name, home / name, setup_finder(data_dir=data_dir), policy)).answer

    logging.getLogger("flwr").setLevel(logging.ERROR)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        run_simulation(
            server,
            make_app(agent_of),
            num_supernodes=len(names),
            backend_config={"client_resources": {"num_cpus": 1, "num_gpus": 0.0}},
        )
