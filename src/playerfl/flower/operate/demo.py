"""A whole federation on one machine: certificates, keys, a server, sites, a job, and a check of its result."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tomli_w

from playerfl.errors import ConfigError
from playerfl.flower.deployment import Deployment
from playerfl.flower.operate.app_folder import write_app_folder
from playerfl.flower.operate.enrolment import enrol, site_statuses
from playerfl.flower.operate.job_monitor import FlowerRun, follow, submit
from playerfl.flower.operate.keys import write_key_pair
from playerfl.flower.operate.launch import ServerHome, safe_environment
from playerfl.flower.operate.processes import (
    LOOPBACK,
    FlowerError,
    Running,
    ending_on_signals,
    free_port,
    wait_for_port,
)
from playerfl.flower.server.files import SITES as SITES_FILE
from playerfl.flower.server.job import checked_experiment
from playerfl.flower.server.job_status import JobStatus
from playerfl.flower.site.setup import TEMPLATE, experiment_sites
from playerfl.runs.api import run_experiments
from playerfl.runs.experiment import Experiment
from playerfl.runs.settings_table import read_toml, with_settings
from playerfl.storage.atomic_files import make_directory, write_atomically
from playerfl.tasks import TASKS
from playerfl.tasks.folder.listing import sites_in
from playerfl.tasks.folder.options import FolderOptions
from playerfl.tasks.load import load_task
from playerfl.weights import digest

JOB = "demo"
SERVER, APP = "server", "app"
"""Folders next to those of the sites."""
DIGITS: dict[str, Any] = {"task": "digits", "rounds": 2, "data": {"sites": 3}}
"""What is run unless a task or an experiment is given."""


@dataclass(frozen=True)
class DemoSite:
    """A site of the demo: where its files are, and what its data are."""

    name: str
    folder: Path
    task: str

    @property
    def state(self) -> Path:
        return self.folder / "state"


@dataclass(frozen=True)
class DemoResult:
    """The fingerprint of every site's model, over Flower and in one process."""

    run: FlowerRun
    folder: Path
    sites: Sequence[DemoSite]
    over_flower: dict[str, str]
    in_process: dict[str, str]
    incomparable: str | None
    """Why a run in one process would differ; `in_process` is then empty."""
    seconds: float

    @property
    def equal(self) -> bool | None:
        """None if they cannot be compared."""
        return None if self.incomparable else self.over_flower == self.in_process


def demo_experiment(
    task: str | None, rounds: int | None, settings: Sequence[str] = (), config: Path | None = None
) -> Experiment:
    """The experiment of a file or on a task (default: digits); paths are absolute, as each party has its own folder."""
    given = DIGITS if config is None else read_toml(config)
    if task is not None:
        given = {**({} if config is None else given), "task": task}
    chosen = {} if rounds is None else {"rounds": rounds}
    table = with_settings({"device": "cpu", **given, **chosen}, settings)
    table |= {name: _absolute(table[name]) for name in ("task", "model") if isinstance(table.get(name), str)}
    return Experiment.resolve(table)


def _absolute(task: str) -> str:
    """
    >>> _absolute("digits")
    'digits'
    >>> _absolute("/home/me/task.py:mine")
    '/home/me/task.py:mine'
    """
    place, _, name = task.rpartition(":")
    if place.endswith(".py"):
        return f"{Path(place).resolve()}:{name}"
    return str(Path(task).resolve()) if _is_folder(task) else task


def _is_folder(task: str) -> bool:
    return task not in TASKS and Path(task).is_dir()


def demonstrate(
    folder: Path,
    experiment: Experiment,
    say: Callable[[str], None],
    on_change: Callable[[JobStatus], None],
    ask: Callable[[DemoSite], None] | None = None,
) -> DemoResult:
    """Sets everything up in `folder`, runs the job, shuts everything down, and compares.

    `ask` is called for each site about once a second; it decides about a job that waits for approval there. Without
    it, jobs start at once.
    """
    started = time.monotonic()
    names = tuple(name for name in experiment_sites(experiment) if name != TEMPLATE)
    for name in names:
        if name in (SERVER, APP):
            raise ConfigError(f"a site of the demo cannot be called {name!r}; rename its file or folder")
    deployment = Deployment(JOB, names, experiment.to_toml(), min_sites=len(names), deadline=600.0)
    checked_experiment(deployment)
    sites = [DemoSite(name, folder / name, own_data(experiment, name, folder / name / "data")) for name in names]
    with ending_on_signals(), ExitStack() as stack:
        home, run = _over_flower(folder, experiment, deployment, sites, stack, say, on_change, ask)
    if not run.completed:
        raise FlowerError(f"the job failed: {run.detail}; logs are in {folder}")
    say("everything is shut down")
    in_process: dict[str, str] = {}
    different = incomparable(experiment)
    if different is None:
        say("running the same experiment in one process")
        [result] = run_experiments([experiment], [None])
        in_process = {site: digest(weights) for site, weights in result.weights.items()}
    directory = home.jobs / JOB
    over_flower = json.loads((directory / SITES_FILE).read_text(encoding="utf-8"))["models"]
    return DemoResult(run, directory, sites, over_flower, in_process, different, time.monotonic() - started)


def own_data(experiment: Experiment, site: str, place: Path) -> str:
    """The data of one site: of a folder with a file per site, a folder with links to everything but the others' files.

    Links, so that no second copy of patients' data is left behind. Other tasks find a site's data by its name.
    """
    if not _is_folder(experiment.task):
        return experiment.task
    options = experiment.data_options(load_task(experiment.task))
    assert isinstance(options, FolderOptions)
    source = Path(experiment.task)
    files, folders = sites_in(source, options)
    others = {path.name for name, path in {**files, **folders}.items() if name not in (site, TEMPLATE)}
    make_directory(place)
    for path in source.iterdir():
        if path.name not in others:
            (place / path.name).symlink_to(path)
    return str(place)


def incomparable(experiment: Experiment) -> str | None:
    """Why the experiment gives other numbers if one process sees all sites' rows."""
    if not _is_folder(experiment.task):
        return None
    task = load_task(experiment.task)
    options = experiment.data_options(task)
    assert isinstance(options, FolderOptions)
    if TEMPLATE in experiment_sites(experiment):
        return f"in one process, the {TEMPLATE} would be a site"
    if not task.for_options(options).classification:
        return "in one process, a target that is a number is scaled with the rows of all sites"
    if options.groups_span_sites:
        return "in one process, a group that several sites have is kept together"
    return None


def start_site(
    name: str,
    key: Path,
    server: str,
    home: ServerHome,
    folder: Path,
    experiment: Experiment,
    task: str | None = None,
    approval: str = "automatic",
) -> Running:
    """Starts a site as its administrator would. Its policy accepts this experiment, with as few rows as its task has.

    `task`: its own data (default: the experiment's task).
    """
    policy = folder / name / "site.toml"
    jobs = {"algorithms": [experiment.algorithm["name"]], "least_rows": 0, "least_scored_rows": 0, "least_sites": 1}
    accepted: dict[str, Any] = {"approval": approval, "task": task or experiment.task, "jobs": jobs}
    if experiment.model is not None:
        accepted["model"] = experiment.model
    write_atomically(policy, tomli_w.dumps(accepted).encode())
    command = [
        *(sys.executable, "-m", "playerfl", "flower", "site", "--name", name),
        *("--key", str(key), "--ca", str(home.authority), "--server", server, "--policy", str(policy)),
        *("--state", str(folder / name / "state"), "--port", str(free_port())),
    ]
    return Running(command, safe_environment(folder / name / "flwr"), folder / f"{name}.log")


def _over_flower(
    folder: Path,
    experiment: Experiment,
    deployment: Deployment,
    sites: Sequence[DemoSite],
    stack: ExitStack,
    say: Callable[[str], None],
    on_change: Callable[[JobStatus], None],
    ask: Callable[[DemoSite], None] | None,
) -> tuple[ServerHome, FlowerRun]:
    home = ServerHome(folder / SERVER)
    port = free_port()
    home.prepare((), port)
    say(f"certificates created; starting the SuperLink on {LOOPBACK}:{port} with TLS and node authentication")
    link = stack.enter_context(Running(home.superlink(port), home.environment(), folder / "superlink.log"))
    wait_for_port(port, link)
    approval = "automatic" if ask is None else "person"
    for site in sites:
        private, public = write_key_pair(site.name, site.folder)
        enrol(home, public, site.name)
        server = f"{LOOPBACK}:{port}"
        stack.enter_context(start_site(site.name, private, server, home, folder, experiment, site.task, approval))
        say(f"{site.name}: key created and registered, site started")
    app = folder / APP
    write_app_folder(app, deployment)
    run_id = submit(home, app)
    say(f"job submitted; {sum(site.status == 'online' for site in site_statuses(home))} sites are online")

    def look() -> None:
        if ask is not None:
            for site in sites:
                ask(site)

    return home, follow(home, JOB, run_id, on_change, look)
