"""Coordinator: the server's side of a job, recorded so that the same job submitted again goes on where it stood."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save
from torch import nn

from playerfl.engine.loop import run_rounds
from playerfl.engine.scheduler import drive
from playerfl.engine.transport import Traffic
from playerfl.engine.worker import EvaluationPlan
from playerfl.errors import ConfigError, LayerError, RunDirectoryError, StorageError
from playerfl.federation.messages import Reply, Request, Score, SiteId
from playerfl.federation.server import Server
from playerfl.flower.coordinator.checks import far_away, refused_reply
from playerfl.flower.coordinator.transport import FlowerTransport, Grid, Participation
from playerfl.flower.deployment import Deployment
from playerfl.flower.site.privacy import check_privacy
from playerfl.flower.wire.envelopes import Letter, Privacy
from playerfl.flower.wire.secure import check_secure
from playerfl.layers.layer_map import LayerMap, state_entries
from playerfl.runs.api import limited_threads
from playerfl.runs.directory import ROSTER, RunDirectory
from playerfl.runs.environment import environment
from playerfl.runs.experiment import Experiment
from playerfl.runs.result import SCORE_COLUMNS, reported_stage
from playerfl.runs.run import found_layers, score_rows
from playerfl.runs.setup import seeded_model
from playerfl.storage.atomic_files import RERUN_HINT, fsync_dir, storage_error, write_atomically
from playerfl.storage.csv_table import csv_text
from playerfl.tasks.load import load_task
from playerfl.tasks.task import Task
from playerfl.version import __version__
from playerfl.weights import Weights, digest

STATUS = "status.json"


class Coordinator:
    """One job under way: the server's workbench, who takes part, and the files of the run."""

    def __init__(
        self,
        grid: Grid,
        deployment: Deployment,
        jobs: Path,
        *,
        task: Task | None = None,
        say: Callable[[str], None] = lambda _: None,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.deployment = deployment
        self.experiment = experiment_of(deployment)
        self.algorithm = self.experiment.build_algorithm()
        self._build_model = _builder(self.experiment, task or load_task(self.experiment.task))
        self.initial = _initial(self._build_model(), self.experiment, deployment.privacy)
        self.directory = _open(jobs / deployment.job, self.experiment, deployment)
        self.layers: LayerMap | None = None
        self._told_layers: Mapping[str, Any] = {}
        self._done = False
        self.server: Server | None = None
        self.examples: dict[SiteId, int] = {}
        self.accepted: dict[SiteId, str] = {}
        self._say = say
        self._clock = clock
        self._seconds = 0.0
        self._since = clock()
        self._begun_round: tuple[int, float] | None = None
        self._notes_length = 0
        letterhead = Letter(
            deployment.job, "", deployment.experiment, __version__, digest(self.initial), privacy=deployment.privacy
        )
        self.transport = FlowerTransport(
            grid, deployment, letterhead, self, self.accepted, clock=clock, sleep=sleep, say=say
        )

    def run(self) -> None:
        """All rounds that are left."""
        if self.directory.is_finished:
            self.directory.drop_checkpoint()
            self.directory.write_json(STATUS, {**read_status(self.directory.path), "state": "finished", "detail": ""})
            self._say(f"job {self.deployment.job} is finished already; see {self.directory.path}")
            return
        self.directory.lock()
        try:
            self._status("waiting for sites")
            resumed = self.directory.resume(self._description())
            saved = resumed and resumed.state
            self._take_up(saved)
            if not self._done:
                self.transport.hello()
            server = self._set_out(saved)
            if not self._done:
                self._run_rounds(server)
            self._write_notes()
            self._finish(server)
        except BaseException as problem:
            # Where nothing can be written, the first thing that could not be is what is told.
            with suppress(StorageError):
                self._status("failed", str(problem) or type(problem).__name__)
                self._write_notes()
            raise
        finally:
            self.directory.unlock()

    def _run_rounds(self, server: Server) -> None:
        experiment = self.experiment
        evaluation = EvaluationPlan(experiment.eval_point, experiment.selection)
        with limited_threads(experiment.threads):
            drive(
                run_rounds(
                    self.algorithm,
                    server,
                    self.transport,
                    experiment.rounds,
                    self,
                    evaluation,
                    experiment.participation,
                )
            )

    def met(self, site: SiteId, about: Mapping[str, Any]) -> str | None:
        """A site has said hello: its layers must be those of the others, and of the model."""
        try:
            layers = _layers(about["layers"], self.initial)
            examples = about["examples"]
        except (KeyError, TypeError, ValueError, AttributeError, LayerError) as problem:
            return f"what it says about its layers cannot be used ({type(problem).__name__})"
        if type(examples) is not int or examples < 1:
            return "it has no examples"
        if self.layers is None:
            self.layers, self._told_layers = layers, about["layers"]
            self.algorithm.check_layers(layers)
        elif self.layers != layers:
            return "it cuts the model into other layers than the others do; declare them with layer_groups()"
        self.examples[site] = examples
        self._say(f"{site}: ready, {examples} training examples, torch {str(about.get('torch'))[:20]}")
        return None

    def refused(self, requests: Mapping[SiteId, Request], replies: Mapping[SiteId, Reply]) -> dict[SiteId, str]:
        server = self._server()
        found = {}
        for site, reply in replies.items():
            awaited = self.algorithm.server_expects(server, requests[site].verbs)
            if self.deployment.privacy.secure_range:
                awaited = replace(awaited, layers=())
            reason = refused_reply(reply, requests[site], awaited, server.layers, self.initial, self.examples[site])
            if reason:
                found[site] = reason
        fine = {site: reply.upload.weights for site, reply in replies.items() if site not in found}
        return {**found, **far_away(fine, server.weights, self.deployment.norm_bound)}

    def awaited(self) -> Weights:
        server = self._server()
        return server.layers.travelling(self.initial, self.algorithm.server_expects(server, ("fit",)).layers)

    def exchanged(self, scores: Mapping[SiteId, tuple[Score, ...]], traffic: list[Traffic], *, done: bool) -> None:
        """Records an exchange."""
        now = self._clock()
        self._seconds += now - self._since
        self._since = now
        self._done = done
        self._write_notes()
        self.directory.exchanged(score_rows(scores), traffic, self._state)
        # Sites go on from what was accepted here, so it may not be forgotten again.
        fsync_dir(self.directory.path)
        self._status("running")
        losses = [s.value for own in scores.values() for s in own if (s.split, s.metric) == ("validation", "loss")]
        mean = f", validation loss {sum(losses) / len(losses):.4f}" if losses else ""
        self._say(f"round {self._server().round}/{self.experiment.rounds}{mean}{self._left()}")

    def _state(self) -> dict[str, Any]:
        return {
            "server": self._server().state(),
            "accepted": self.accepted,
            "fingerprints": self.transport.fingerprints,
            "away": sorted(self.transport.away),
            "examples": self.examples,
            "layers": self._told_layers,
            "notes": self._notes_length,
            "done": self._done,
            "seconds": self._seconds,
        }

    def _server(self) -> Server:
        assert self.server is not None
        return self.server

    def _take_up(self, saved: Mapping[str, Any] | None) -> None:
        notes = self.directory.path / "participation.csv"
        if saved is None:
            write_atomically(notes, csv_text([Participation._fields]).encode())
            self._notes_length = notes.stat().st_size
            return
        try:
            os.truncate(notes, saved["notes"])
        except OSError as problem:
            raise storage_error(notes, problem, RERUN_HINT) from problem
        self._notes_length = saved["notes"]
        self._seconds, self._done = saved["seconds"], saved["done"]
        self._told_layers = saved["layers"]
        self.layers = _layers(self._told_layers, self.initial)
        self.accepted.update(saved["accepted"])
        self.transport.fingerprints.update(saved["fingerprints"])
        self.transport.away.update(saved["away"])
        self.examples.update(saved["examples"])
        for site in self.deployment.readmit:
            self.accepted.pop(site, None)
        self._say(f"job {self.deployment.job} goes on after round {saved['server']['round']}")

    def _description(self) -> dict[str, Any]:
        """As `Setup.description`, as far as it is known without any data."""
        return {
            "notes": [],
            "sites": {},
            "partition_hash": None,
            "paper": None,
            "model": {name: list(entry.shape) for name, entry in self.initial.items()},
            # What was asked for: every site finds out for itself whether it can be had.
            "trainer": self.experiment.trainer,
        }

    def _set_out(self, saved: Mapping[str, Any] | None) -> Server:
        assert self.layers is not None
        server = Server(self.initial, self.layers, self.deployment.sites, self.experiment.seed)
        self.transport.set_initial(server.weights)
        if saved is not None:
            server.restore(saved["server"])
            server.initialised -= set(self.deployment.readmit)
        self.server = server
        return server

    def _write_notes(self) -> None:
        if not self.transport.notes:
            return
        notes = self.directory.path / "participation.csv"
        try:
            with notes.open("ab") as table:
                table.write(csv_text(self.transport.notes).encode())
                self._notes_length = table.tell()
        except OSError as problem:
            raise storage_error(notes, problem, RERUN_HINT) from problem
        self.transport.notes.clear()

    def _left(self) -> str:
        round_ = self._server().round
        if self._begun_round is None:
            self._begun_round = (round_, self._clock())
            return ""
        begun, since = self._begun_round
        if round_ == begun:
            return ""
        seconds = (self._clock() - since) / (round_ - begun) * (self.experiment.rounds - round_)
        return f", about {seconds:.0f} s left"

    def _status(self, state: str, detail: str = "") -> None:
        status = {
            "job": self.deployment.job,
            "state": state,
            "detail": detail,
            "round": self.server.round if self.server else None,
            "rounds": self.experiment.rounds,
            "algorithm": self.experiment.algorithm["name"],
            "sites": {site: self.accepted.get(site, "") for site in self.deployment.sites},
            "seconds": round(self._seconds, 1),
            "updated": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        }
        self.directory.write_json(STATUS, status)

    def _finish(self, server: Server) -> None:
        # What the sites have made together: personal layers stand in the server's model as they were at first.
        common: Weights = {n: w for n, w in server.weights.items() if not torch.equal(w, self.initial[n])}
        path = self.directory.path
        write_atomically(path / "common.safetensors", save({name: w.contiguous() for name, w in common.items()}))
        rows = self.directory.read_table("scores.csv", SCORE_COLUMNS)
        stage = reported_stage(rows)
        scored = {row[2] for row in rows if (row[0], row[3]) == (stage, "validation")}
        found = {
            "notes": [
                f"{site} has no scores to report, see participation.csv"
                for site in sorted(self.deployment.sites)
                if site not in scored
            ],
            "sites": {site: {"train": {"examples": n}} for site, n in sorted(self.examples.items()) if site in scored},
        }
        self.directory.write_json("data.json", {**self._description(), **found})
        self.directory.write_json(
            "sites.json", {"models": dict(sorted(self.transport.fingerprints.items())), "common": digest(common)}
        )
        timing = {"wall_seconds": self._seconds, "runs_side_by_side": 1}
        self.directory.write_ending({}, found_layers(server, {}), timing)
        self._status("finished")
        self._say(f"job {self.deployment.job} is finished; results: {path}")


def experiment_of(deployment: Deployment) -> Experiment:
    """What a job runs, once it has been found to go with how it is to be run."""
    experiment = Experiment.from_resolved(deployment.experiment)
    if deployment.privacy.secure_range:
        check_secure(experiment.build_algorithm(), deployment.needed)
    if experiment.selection == "round_best" and deployment.needed < len(deployment.sites):
        raise ConfigError(
            f'selection = "round_best" compares rounds over all sites; give --min-sites {len(deployment.sites)} too, '
            'or choose selection = "client_best"'
        )
    return experiment


def _open(path: Path, experiment: Experiment, deployment: Deployment) -> RunDirectory:
    if not (path / "experiment.toml").exists():
        made_with = environment(experiment.device, experiment.threads)
        directory = RunDirectory.create(path, deployment.experiment, made_with)
        directory.unlock()
    else:
        directory = RunDirectory.open(path)
        if (path / "experiment.toml").read_text(encoding="utf-8") != deployment.experiment:
            raise ConfigError(f"job {deployment.job} was started with another experiment; give this one another name")
    if not directory.has(ROSTER):
        directory.write_json(ROSTER, {"sites": sorted(deployment.sites)})
    elif directory.read_json(ROSTER)["sites"] != sorted(deployment.sites):
        raise ConfigError(f"job {deployment.job} was started with other sites; give this one another name")
    return directory


def _builder(experiment: Experiment, task: Task) -> Callable[[], nn.Module]:
    """Makes the seeded model, without any data: sites check that theirs is the same."""
    options = experiment.data_options(task)
    return partial(seeded_model, experiment.seed, task.for_options(options), options)


def _initial(model: nn.Module, experiment: Experiment, privacy: Privacy) -> Weights:
    entries = state_entries(model)
    buffers = entries.keys() - dict(model.named_parameters()).keys()
    check_privacy(privacy, statistics_travel=experiment.bn_stats == "follow" and bool(buffers))
    return {name: entry.detach().clone() for name, entry in entries.items()}


def _layers(told: Mapping[str, Any], initial: Mapping[str, Any]) -> LayerMap:
    entries = {str(name): tuple(map(str, own)) for name, own in told["entries"].items()}
    if sorted(entry for own in entries.values() for entry in own) != sorted(initial):
        raise ValueError("the layers are not those of the model")
    sizes = {str(name): int(size) for name, size in told["num_parameters"].items()}
    if sizes.keys() != entries.keys() or told["statistics"] not in ("follow", "local"):
        raise ValueError("sizes or statistics do not fit")
    return LayerMap(
        entries,
        sizes,
        frozenset(map(str, told["frozen"])),
        frozenset(map(str, told["buffers"])),
        {str(name): tuple(map(str, users)) for name, users in told["tied"].items()},
        told["statistics"],
    )


def read_status(directory: Path) -> dict[str, Any]:
    """What a job says about itself; {} where it has not begun."""
    file = directory / STATUS
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, RecursionError) as problem:
        raise RunDirectoryError(f"{file} cannot be read: {problem}") from problem
    return found if isinstance(found, dict) else {}
