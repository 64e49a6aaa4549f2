"""Site: one institution's side of a job. What it knows is in its own directory, written before an answer leaves."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from safetensors.torch import save

from playerfl.data.download.directory import use_data_directory
from playerfl.engine.handle import EvaluationPlan, handle
from playerfl.engine.scheduler import drive
from playerfl.errors import ConfigError, DataError, LayerError, RunDirectoryError
from playerfl.federation.client import Client
from playerfl.federation.messages import Reply, Request, SiteId, Upload
from playerfl.flower.site.privacy import check_privacy, outside, private_upload, secret_generator
from playerfl.flower.site.stored_state import check_state, reply_as_tree, reply_from_tree
from playerfl.flower.wire.envelopes import Answer, Code, Letter, check_job
from playerfl.runs.api import limited_threads
from playerfl.runs.experiment import Experiment
from playerfl.runs.setup import Setup, prepare_setup
from playerfl.storage import tensor_tree
from playerfl.storage.atomic_files import fsync_dir, write_atomically
from playerfl.tasks.load import load_task
from playerfl.tasks.task import Task
from playerfl.version import __version__
from playerfl.weights import digest

log = logging.getLogger("playerfl.flower.site")

TEMPLATE = "template"
"""A made-up table that shows all columns and classes, so that parties with different data build the same model."""

GENERATIONS = 2
"""States kept besides the latest: a coordinator that dies may have forgotten its last two exchanges."""

FindSetup = Callable[[Experiment, SiteId], Setup]


class RefusedError(Exception):
    """What the coordinator is told, as a code; the details stay in the site's log."""

    def __init__(self, code: Code, detail: str) -> None:
        super().__init__(detail)
        self.code: Code = code


@dataclass(frozen=True)
class Site:
    """A site: its name, its directory, and where its data are."""

    name: SiteId
    home: Path
    find_setup: FindSetup

    def answer(self, letter: Letter) -> Answer:
        """Does what a letter asks. Never raises for what can go wrong at a site: the answer then is a code."""
        try:
            self._check(letter)
            with self._locked(letter.job):
                return self._hello(letter) if letter.request is None else self._work(letter, letter.request)
        except RefusedError as refused:
            log.warning("%s, %s: %s (%s)", letter.job[:64], letter.key[:64], refused.code, refused)
            return Answer(self.name, letter.key, code=refused.code)
        except Exception as problem:
            log.exception("%s, %s: could not be done", letter.job[:64], letter.key[:64])
            return Answer(self.name, letter.key, code=_code_of(problem))

    def _check(self, letter: Letter) -> None:
        check_job(letter.job)
        if letter.site not in ("", self.name):
            raise RefusedError("name", f"the letter is to {letter.site!r}, this is {self.name!r}")
        if letter.version != __version__:
            raise RefusedError("version", f"the coordinator has {letter.version!r}, this is {__version__!r}")

    def _bench(self, letter: Letter) -> _Bench:
        experiment = Experiment.from_resolved(letter.experiment)
        with limited_threads(experiment.threads):
            bench = _Bench(experiment, self.name, self.find_setup(experiment, self.name))
        if bench.fingerprint != letter.model:
            raise RefusedError("model", f"the coordinator's model is {letter.model}, this one {bench.fingerprint}")
        layers = bench.setup.learner.layers
        check_privacy(letter.privacy, statistics_travel=layers.statistics == "follow" and bool(layers.buffers))
        return bench

    def _hello(self, letter: Letter) -> Answer:
        bench = self._bench(letter)
        stored = self._load(letter.job)
        if letter.after and stored is None:
            raise RefusedError("state_lost", f"{self.home} holds nothing of this job, of which it did {letter.after}")
        return Answer(self.name, letter.key, about=bench.about())

    def _work(self, letter: Letter, request: Request) -> Answer:
        stored = self._load(letter.job)
        asked = letter.digest()
        if stored and (stored["key"], stored["asked"]) == (letter.key, asked):
            log.info("%s, %s: answered again from what was stored", letter.job, letter.key)
            return self._answer_from(letter, stored)
        history = self._starting_point(letter, stored)
        bench = self._bench(letter)
        if letter.initial:
            request = replace(request, download=replace(request.download, weights=bench.initial))
        client = bench.client(history[-1]["state"])
        with limited_threads(bench.experiment.threads):
            reply = drive(handle_request(bench, client, request))
        privacy = letter.privacy
        if privacy.clip or privacy.sensitivity_noise:
            known = {**bench.setup.initial, **request.download.weights}
            reply = replace(reply, upload=private_upload(reply.upload, known, privacy, secret_generator()))
        if privacy.secure_range and (name := outside(reply.upload.weights, privacy.secure_range)):
            raise RefusedError("privacy", f"{name} has values beyond {privacy.secure_range}, which would be cut off")
        kept = client.kept.weights if client.kept else {}
        now = {
            "history": history[-GENERATIONS:],
            "key": letter.key,
            "asked": asked,
            "state": client.state(),
            "reply": reply_as_tree(reply),
            "secure": bool(privacy.secure_range),
            "fingerprint": digest(kept) if "finish" in request.verbs else "",
        }
        if "finish" in request.verbs:
            contiguous = {name: entry.contiguous() for name, entry in kept.items()}
            write_atomically(self._folder(letter.job) / "model.safetensors", save(contiguous))
        write_atomically(self._folder(letter.job) / "experiment.toml", letter.experiment.encode())
        write_atomically(self._state_file(letter.job), tensor_tree.pieces(now))
        fsync_dir(self._folder(letter.job))
        log.info("%s, %s: done", letter.job, letter.key)
        return self._answer_from(letter, now)

    def adopt(self, job: str, key: str, state: Mapping[str, Any]) -> None:
        """Takes over a state that was kept elsewhere, as that after the answer `key`."""
        self._folder(job).mkdir(parents=True, exist_ok=True)
        reply = reply_as_tree(Reply(Upload(0)))
        now: dict[str, Any] = {"history": [], "key": key, "asked": "", "state": state, "reply": reply}
        now |= {"secure": False, "fingerprint": ""}
        write_atomically(self._state_file(job), tensor_tree.encode(now))

    def state(self, job: str) -> dict[str, Any]:
        """What this site knows after its last answer."""
        stored = self._load(job)
        if stored is None:
            raise RunDirectoryError(f"{self.home} holds nothing of {job}")
        found: dict[str, Any] = stored["state"]
        return found

    def _starting_point(self, letter: Letter, stored: Mapping[str, Any] | None) -> list[dict[str, Any]]:
        """The states up to the last answer that was accepted: what was not accepted has not happened."""
        if stored is None:
            if letter.after:
                raise RefusedError("state_lost", f"{self.home} holds nothing, but {letter.after} was done here")
            return [{"key": "", "state": None}]
        history = [*stored["history"], {"key": stored["key"], "state": stored["state"]}]
        keys = [past["key"] for past in history]
        if letter.after not in keys:
            raise RefusedError(
                "state_differs",
                f"the last answers here are {', '.join(key or 'none' for key in keys)}, "
                f"the last one accepted is {letter.after or 'none'}",
            )
        found = keys.index(letter.after)
        for key in keys[found + 1 :]:
            log.warning("%s: %s was not accepted and is taken back", letter.job, key)
        return history[: found + 1]

    def _answer_from(self, letter: Letter, stored: Mapping[str, Any]) -> Answer:
        reply = reply_from_tree(stored["reply"])
        if letter.privacy.secure_range:
            # The weights are fetched masked, by `held`.
            reply = replace(reply, upload=replace(reply.upload, weights={}))
        return Answer(self.name, letter.key, reply, fingerprint=stored["fingerprint"])

    def held(self, job: str, key: str) -> Upload:
        """The upload of the last answer, for secure aggregation."""
        stored = self._load(check_job(job))
        if stored is None or stored["key"] != key or not stored["secure"]:
            raise RefusedError("state_differs", f"there is no upload of {key!r} to be masked")
        return reply_from_tree(stored["reply"]).upload

    def _folder(self, job: str) -> Path:
        return self.home / job

    def _state_file(self, job: str) -> Path:
        return self._folder(job) / "state.safetensors"

    def _load(self, job: str) -> dict[str, Any] | None:
        file = self._state_file(job)
        if not file.exists():
            return None
        try:
            return check_state(tensor_tree.read(file))
        except RunDirectoryError as problem:
            raise RefusedError("state_lost", str(problem)) from problem

    @contextmanager
    def _locked(self, job: str) -> Iterator[None]:
        """One at a time: after a restart, the process of before may still be writing."""
        folder = self._folder(job)
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as problem:
            raise RefusedError("storage", f"{folder}: {problem}") from problem
        try:
            import fcntl
        except ImportError:  # Windows
            yield
            return
        handle = os.open(folder, os.O_RDONLY)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX)
            yield
        finally:
            os.close(handle)


@dataclass(frozen=True)
class _Bench:
    """An experiment at this site."""

    experiment: Experiment
    name: SiteId
    setup: Setup

    @property
    def fingerprint(self) -> str:
        return digest(self.setup.initial)

    @property
    def initial(self) -> dict[str, Any]:
        return self.setup.learner.layers.travelling(self.setup.initial)

    def client(self, state: dict[str, Any] | None) -> Client:
        plan = self.experiment.training.plan(self.experiment.rounds)
        client = Client(self.name, self.setup.sites[self.name], self.setup.learner, plan, self.setup.initial)
        if state is not None:
            # A copy: the state before is stored again, beside the one after.
            client.restore(tensor_tree.decode(tensor_tree.encode(state)))
        return client

    def about(self) -> dict[str, Any]:
        """How the layers are cut, how many examples there are, and what decides the last bits; nothing else."""
        import torch

        layers = self.setup.learner.layers
        return {
            "examples": len(self.setup.sites[self.name].train),
            "layers": {
                "entries": {name: list(own) for name, own in layers.entries.items()},
                "num_parameters": dict(layers.num_parameters),
                "frozen": sorted(layers.frozen),
                "buffers": sorted(layers.buffers),
                "tied": {name: list(own) for name, own in layers.tied.items()},
                "statistics": layers.statistics,
            },
            "torch": str(torch.__version__),
            "device": self.experiment.device,
        }


def handle_request(bench: _Bench, client: Client, request: Request) -> Any:
    experiment = bench.experiment
    evaluation = EvaluationPlan(experiment.eval_point, experiment.selection)
    return handle(experiment.build_algorithm(), client, request, experiment.seed, evaluation)


def _code_of(problem: Exception) -> Code:
    if isinstance(problem, RunDirectoryError | OSError):
        return "storage"
    if isinstance(problem, DataError | ConfigError | LayerError):
        return "data"
    return "failed"


def own_setup(task: str | None = None, data_dir: Path | None = None, device: str | None = None) -> FindSetup:
    """A site's own data for an experiment: those of its task, or of one the site names itself."""

    def find(experiment: Experiment, name: SiteId) -> Setup:
        return _setup(experiment.to_toml(), name, task, data_dir, device)

    return find


@lru_cache(maxsize=4)
def _setup(toml: str, name: SiteId, task: str | None, data_dir: Path | None, device: str | None) -> Setup:
    """Kept for the next letter, where a process lives that long."""
    experiment = Experiment.from_resolved(toml)
    if device is not None:
        experiment = experiment.model_copy(update={"device": device})
    with use_data_directory(data_dir):
        return site_setup(experiment, load_task(task or experiment.task), name)


def site_setup(experiment: Experiment, task: Task, name: SiteId) -> Setup:
    """What an experiment stands on at one site: the model, and this site's data alone."""
    options = experiment.data_options(task)
    adapted = task.for_options(options)

    def load_sites(_: Any) -> dict[str, Any]:
        found = {site: data for site, data in adapted.load_sites(options).items() if site != TEMPLATE}
        if name in found:
            return {name: found[name]}
        if len(found) == 1:
            return {name: next(iter(found.values()))}
        raise DataError(f"there are no data of {name!r}; there are those of {', '.join(sorted(found)) or 'nobody'}")

    alone = replace(adapted, load_sites=load_sites, adapt=None)
    return prepare_setup(experiment, alone)
