"""Site: one institution's side of a job. Its state is written to its directory before a response is sent."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from safetensors.torch import save

from playerfl.data.download.directory import use_data_directory
from playerfl.engine.handle import handle
from playerfl.engine.scheduler import Work, drive
from playerfl.errors import ConfigError, DataError, LayerError, RunDirectoryError
from playerfl.federation.client import Client
from playerfl.federation.messages import Reply, Request, SiteId, Upload
from playerfl.flower.site.privacy import check_privacy, outside, private_upload, secret_generator
from playerfl.flower.site.stored_state import ClientState, Generation, StoredState
from playerfl.flower.wire.envelopes import Code, Envelope, Privacy, Response, check_job
from playerfl.flower.wire.introduction import Introduction
from playerfl.runs.api import limited_threads
from playerfl.runs.experiment import Experiment
from playerfl.runs.setup import Setup, prepare_setup
from playerfl.storage import tensor_tree
from playerfl.storage.atomic_files import fsync_dir, storage_advice, write_atomically
from playerfl.storage.locking import locked
from playerfl.tasks.load import load_task
from playerfl.tasks.task import Task
from playerfl.version import __version__
from playerfl.weights import digest

log = logging.getLogger("playerfl.flower.site")

TEMPLATE = "template"
"""A synthetic table with all columns and classes, so that parties with different data build the same model."""

GENERATIONS = 2
"""Earlier states that are stored: a server that crashes may lose its last two exchanges."""

FindSetup = Callable[[Experiment, SiteId], Setup]


class RefusedError(Exception):
    """The server receives the code; the details stay in the site's log."""

    def __init__(self, code: Code, detail: str) -> None:
        super().__init__(detail)
        self.code: Code = code


@dataclass(frozen=True)
class Site:
    """A site: its name, its directory, and how it finds its data."""

    name: SiteId
    home: Path
    find_setup: FindSetup

    def respond(self, envelope: Envelope) -> Response:
        """Does what an envelope asks. If something goes wrong at the site, the response is a code, not an exception."""
        try:
            self._check(envelope)
            with self._locked(envelope.job), storage_advice("wait: the server asks again in the next round"):
                return self._hello(envelope) if envelope.request is None else self._work(envelope, envelope.request)
        except RefusedError as refused:
            log.warning("%s, %s: %s (%s)", envelope.job[:64], envelope.key[:64], refused.code, refused)
            return Response(self.name, envelope.key, code=refused.code)
        except Exception as problem:
            log.exception("%s, %s: failed", envelope.job[:64], envelope.key[:64])
            return Response(self.name, envelope.key, code=_code_of(problem))

    def _check(self, envelope: Envelope) -> None:
        check_job(envelope.job)
        if envelope.site not in ("", self.name):
            raise RefusedError("name", f"the envelope is addressed to {envelope.site!r}, but this is {self.name!r}")
        if envelope.version != __version__:
            raise RefusedError("version", f"the server has version {envelope.version!r}, but this is {__version__!r}")

    def _prepare(self, envelope: Envelope) -> _Workspace:
        experiment = Experiment.from_resolved(envelope.experiment)
        with limited_threads(experiment.threads):
            workspace = _Workspace(experiment, self.name, self.find_setup(experiment, self.name))
        fingerprint = digest(workspace.setup.initial)
        if fingerprint != envelope.model:
            raise RefusedError("model", f"the server's model is {envelope.model}, but this one is {fingerprint}")
        layers = workspace.setup.learner.layers
        check_privacy(envelope.privacy, statistics_travel=layers.statistics == "follow" and bool(layers.buffers))
        return workspace

    def _hello(self, envelope: Envelope) -> Response:
        workspace = self._prepare(envelope)
        if envelope.after and self._load(envelope.job) is None:
            raise self._lost(envelope)
        return Response(self.name, envelope.key, introduction=workspace.introduction())

    def _work(self, envelope: Envelope, request: Request) -> Response:
        stored = self._load(envelope.job)
        asked = envelope.digest()
        if stored and (stored.key, stored.asked) == (envelope.key, asked):
            log.info("%s, %s: responded again with the stored reply", envelope.job, envelope.key)
            return self._stored_response(envelope, stored)
        history = self._accepted_history(envelope, stored)
        workspace = self._prepare(envelope)
        if envelope.initial:
            initial = workspace.setup.learner.layers.travelling(workspace.setup.initial)
            request = replace(request, download=replace(request.download, weights=initial))
        client = workspace.client(history[-1].state)
        with limited_threads(workspace.experiment.threads):
            reply = drive(workspace.handle(client, request))
        reply = self._private(reply, request, envelope.privacy, workspace)
        finished = "finish" in request.verbs
        model = client.kept.weights if client.kept else {}
        now = StoredState(
            history[-GENERATIONS:],
            envelope.key,
            asked,
            client.state(),
            reply,
            secure=bool(envelope.privacy.secure_range),
            fingerprint=digest(model) if finished else "",
        )
        folder = self._folder(envelope.job)
        if finished:
            contiguous = {name: entry.contiguous() for name, entry in model.items()}
            write_atomically(folder / "model.safetensors", save(contiguous))
        write_atomically(folder / "experiment.toml", envelope.experiment.encode())
        write_atomically(self._state_file(envelope.job), tensor_tree.pieces(now.to_tree()))
        fsync_dir(folder)
        log.info("%s, %s: done", envelope.job, envelope.key)
        return self._stored_response(envelope, now)

    def _private(self, reply: Reply, request: Request, privacy: Privacy, workspace: _Workspace) -> Reply:
        """The reply as it may leave the site."""
        if privacy.clip or privacy.sensitivity_noise:
            known = {**workspace.setup.initial, **request.download.weights}
            reply = replace(reply, upload=private_upload(reply.upload, known, privacy, secret_generator()))
        if privacy.secure_range and (name := outside(reply.upload.weights, privacy.secure_range)):
            raise RefusedError("privacy", f"{name} has values beyond ±{privacy.secure_range}, which would be clipped")
        return reply

    def adopt(self, job: str, key: str, state: ClientState) -> None:
        """Stores a state that was computed elsewhere as the client's state after the response `key`."""
        self._folder(job).mkdir(parents=True, exist_ok=True)
        adopted = StoredState((), key, "", state, Reply(Upload(0)))
        write_atomically(self._state_file(job), tensor_tree.encode(adopted.to_tree()))

    def state(self, job: str) -> dict[str, Any]:
        """The client's state after the last response."""
        stored = self._load(job)
        if stored is None:
            raise RunDirectoryError(f"{self.home} holds no state for job {job}")
        return dict(stored.state)

    def _accepted_history(self, envelope: Envelope, stored: StoredState | None) -> tuple[Generation, ...]:
        """The generations up to the last accepted response; later ones are undone."""
        if stored is None:
            if envelope.after:
                raise self._lost(envelope)
            return (Generation("", None),)
        keys = [past.key for past in stored.generations]
        if envelope.after not in keys:
            raise RefusedError(
                "state_differs",
                f"the last responses of this site are {', '.join(key or 'none' for key in keys)}, "
                f"but the last one accepted is {envelope.after or 'none'}",
            )
        accepted = keys.index(envelope.after)
        for key in keys[accepted + 1 :]:
            log.warning("%s: %s was not accepted and is undone", envelope.job, key)
        return stored.generations[: accepted + 1]

    def _lost(self, envelope: Envelope) -> RefusedError:
        return RefusedError("state_lost", f"{self.home} has no state for this job, but {envelope.after} was accepted")

    def _stored_response(self, envelope: Envelope, stored: StoredState) -> Response:
        reply = stored.reply
        if envelope.privacy.secure_range:
            # The weights are fetched masked, by `held`.
            reply = replace(reply, upload=replace(reply.upload, weights={}))
        return Response(self.name, envelope.key, reply, fingerprint=stored.fingerprint)

    def held(self, job: str, key: str) -> Upload:
        """The upload of the last response, for secure aggregation."""
        stored = self._load(check_job(job))
        if stored is None or stored.key != key or not stored.secure:
            raise RefusedError("state_differs", f"there is no upload for {key!r} to mask")
        return stored.reply.upload

    def _folder(self, job: str) -> Path:
        return self.home / job

    def _state_file(self, job: str) -> Path:
        return self._folder(job) / "state.safetensors"

    def _load(self, job: str) -> StoredState | None:
        file = self._state_file(job)
        if not file.exists():
            return None
        try:
            return StoredState.from_tree(tensor_tree.read(file))
        except RunDirectoryError as problem:
            raise RefusedError("state_lost", str(problem)) from problem

    @contextmanager
    def _locked(self, job: str) -> Iterator[None]:
        """One process at a time: after a restart, the previous process may still be writing."""
        folder = self._folder(job)
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as problem:
            raise RefusedError("storage", f"{folder}: {problem}") from problem
        with locked(folder, wait=True):
            yield


@dataclass(frozen=True)
class _Workspace:
    """An experiment with this site's data and model."""

    experiment: Experiment
    name: SiteId
    setup: Setup

    def client(self, state: ClientState | None) -> Client:
        plan = self.experiment.training.plan(self.experiment.rounds)
        client = Client(self.name, self.setup.sites[self.name], self.setup.learner, plan, self.setup.initial)
        if state is not None:
            # A copy: training changes it, and the earlier state is stored again as history.
            client.restore(tensor_tree.decode(tensor_tree.encode(dict(state))))
        return client

    def handle(self, client: Client, request: Request) -> Work[Reply]:
        experiment = self.experiment
        return handle(experiment.build_algorithm(), client, request, experiment.seed, experiment.evaluation)

    def introduction(self) -> Introduction:
        import torch

        examples = len(self.setup.sites[self.name].train)
        return Introduction(examples, self.setup.learner.layers, str(torch.__version__), self.experiment.device)


def _code_of(problem: Exception) -> Code:
    if isinstance(problem, RunDirectoryError | OSError):
        return "storage"
    if isinstance(problem, DataError | ConfigError | LayerError):
        return "data"
    return "failed"


def setup_finder(task: str | None = None, data_dir: Path | None = None, device: str | None = None) -> FindSetup:
    """Finds a site's data: that of `task`, or by default of the experiment's task."""

    def find(experiment: Experiment, name: SiteId) -> Setup:
        return _setup(experiment.to_toml(), name, task, data_dir, device)

    return find


# Cached for the next envelope, in case the process lives that long.
@lru_cache(maxsize=4)
def _setup(toml: str, name: SiteId, task: str | None, data_dir: Path | None, device: str | None) -> Setup:
    experiment = Experiment.from_resolved(toml)
    if device is not None:
        experiment = experiment.model_copy(update={"device": device})
    with use_data_directory(data_dir):
        return site_setup(experiment, load_task(task or experiment.task), name)


def site_setup(experiment: Experiment, task: Task, name: SiteId) -> Setup:
    """The setup of an experiment at one site: the model, and the data of this site only."""
    options = experiment.data_options(task)
    adapted = task.for_options(options)

    def load_sites(_: Any) -> dict[str, Any]:
        sites = {site: data for site, data in adapted.load_sites(options).items() if site != TEMPLATE}
        if name in sites:
            return {name: sites[name]}
        if len(sites) == 1:
            return {name: next(iter(sites.values()))}
        raise DataError(f"the task has no data for {name!r}; it has data for: {', '.join(sorted(sites)) or 'no site'}")

    return prepare_setup(experiment, replace(adapted, load_sites=load_sites, adapt=None))


def experiment_sites(experiment: Experiment) -> list[SiteId]:
    """The sites of the experiment's task, including the template."""
    task = load_task(experiment.task)
    options = experiment.data_options(task)
    return sorted(task.for_options(options).load_sites(options))
