"""Run: one experiment under way, recorded so that it can be resumed."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from playerfl.algorithms import Algorithm
from playerfl.engine.handle import failing_at
from playerfl.engine.loop import Measurements, run_rounds
from playerfl.engine.transport import InProcess, Traffic, Transport
from playerfl.errors import ConfigError, RunDirectoryError, one_of
from playerfl.federation.client import Client, Snapshot
from playerfl.federation.messages import ConfusionKey, Score, SiteId
from playerfl.federation.server import Server
from playerfl.layers.layer_map import some
from playerfl.layers.sensitivity import ProfileRecord
from playerfl.learning.confusion import Matrix
from playerfl.runs.confusions import ConfusionLog, Confusions
from playerfl.runs.environment import environment
from playerfl.runs.experiment import Experiment
from playerfl.runs.files import DataFile, LayersFile
from playerfl.runs.measures.outcomes import Outcomes, outcomes_of
from playerfl.runs.result import Row, RunResult
from playerfl.runs.setup import Setup


@dataclass(frozen=True)
class Progress:
    """A run's progress."""

    algorithm: str
    round: int
    rounds: int
    train_loss: float
    validation_loss: float
    seconds: float
    done: bool
    experiment: Experiment
    scores: Mapping[SiteId, tuple[Score, ...]]
    """What the sites reported in this exchange."""
    num_examples: Mapping[SiteId, int]
    layers: LayersFile


Listener = Callable[[Progress], None]
"""Called after every exchange, once it is recorded. To stop the run, it raises `StopRun`."""


class StopRun(Exception):  # noqa: N818 it is a request, like StopIteration, not an error
    """Raised by a listener to stop a run after the exchange it was told about.

    With `finish`, no further round is trained (but at least one): the last merge is scored, sites tune if the method
    does so at the end, and the result says why it stopped. Otherwise `playerfl.run` raises it to its caller; a run with
    a directory can be resumed, and then gives the same bits as one that was never stopped.
    """

    def __init__(self, reason: str, *, finish: bool = False) -> None:
        super().__init__(reason)
        self.finish = finish


def score_rows(scores: Mapping[SiteId, tuple[Score, ...]]) -> list[Row]:
    """The sites' scores of one exchange as rows of scores.csv."""
    return [(s.stage, s.round, site, s.split, s.metric, s.value) for site in sorted(scores) for s in scores[site]]


def found_layers(server: Server, profiles: Mapping[SiteId, ProfileRecord]) -> LayersFile:
    """What is known about the layers so far."""
    layers = server.layers
    return {
        "layers": [
            {"name": name, "entries": list(layers.entries[name]), "parameters": layers.num_parameters[name]}
            for name in layers.names
        ],
        "decision": server.memory.get("decision"),
        "profiles": dict(profiles),
        "common_rounds": list(server.common_rounds),
    }


@dataclass(frozen=True)
class Resumed:
    """Where an interrupted run continues: the state after its last recorded exchange, and everything up to then."""

    state: Mapping[str, Any]
    score_rows: list[Row]
    traffic_rows: list[Row]
    confusions: Confusions = field(default_factory=Confusions.none)


class Record(Protocol):
    """Where a run is saved, while it runs and when it has ended."""

    keeps_outcomes: bool
    """Whether the outcomes of test rows are saved with it."""

    def resume(self, description: DataFile) -> Resumed | None:
        """The saved part of the run; None if it starts now."""
        ...

    def exchanged(
        self,
        scores: list[Row],
        traffic: list[Row],
        confusions: Mapping[ConfusionKey, Matrix],
        state: Callable[[], dict[str, Any]],
    ) -> None:
        """Adds rows and matrices; calls `state` only if a checkpoint is due."""
        ...

    def finish(self, result: RunResult) -> RunResult:
        """Saves a finished run; returns it as it was saved."""
        ...


def check_unseen(experiment: Experiment, setup: Setup) -> None:
    """Refuses unseen sites that the task does not have, and a run without any other sites."""
    for name in experiment.unseen:
        if name not in setup.sites:
            raise ConfigError(one_of(name, setup.sites, "site in unseen"))
    if len(set(experiment.unseen)) == len(setup.sites):
        raise ConfigError(f"all {len(setup.sites)} sites are unseen, so none would train; leave at least one out")


class Run:
    """One experiment under way: sets it up, resumes it from its record, and records every exchange."""

    def __init__(
        self,
        experiment: Experiment,
        setup: Setup,
        record: Record | None = None,
        listener: Listener | None = None,
        *,
        algorithm: Algorithm | None = None,
        beside: int = 1,
    ) -> None:
        """Without a `record`, nothing is written. `algorithm`: an instance to use instead of the experiment's.
        `beside`: how many runs share this process, since they share its wall time."""
        self.experiment = experiment
        self.setup = setup
        self.record = record
        self.listener = listener
        self.algorithm = algorithm or experiment.build_algorithm()
        self.evaluation = experiment.evaluation
        check_unseen(experiment, setup)
        plan = experiment.training.plan(experiment.rounds)
        everyone = {
            name: Client(name, data, setup.learner, plan, setup.initial) for name, data in sorted(setup.sites.items())
        }
        self.joining = {name: client for name, client in everyone.items() if name in experiment.unseen}
        """The sites that join after the last round."""
        self.clients = {name: client for name, client in everyone.items() if name not in self.joining}
        self.server = Server(
            setup.initial, setup.learner.layers, self.clients, experiment.seed, experiment.merge.build()
        )
        self.score_rows: list[Row] = []
        self.traffic_rows: list[Row] = []
        self._confusions = ConfusionLog()
        self._beside = beside
        self._done = False
        self._seconds = 0.0
        self._clock = time.perf_counter()
        notes = self.algorithm.notes(setup.learner.layers, experiment.training.learning_rate)
        self.description: DataFile = {**setup.description, "notes": [*setup.description["notes"], *notes]}
        if self.joining:
            described = setup.description["sites"]
            self.description["sites"] = {name: described[name] for name in self.clients}
            self.description["unseen"] = {name: described[name] for name in self.joining}
        resumed = record.resume(self.description) if record else None
        if resumed is not None:
            self.score_rows, self.traffic_rows = resumed.score_rows, resumed.traffic_rows
            self._confusions = ConfusionLog(resumed.confusions)
            self._restore(resumed.state)

    def _restore(self, saved: Mapping[str, Any]) -> None:
        try:
            self._check_same_layers(saved)
            self.server.restore(saved["server"])
            for name, client in self.clients.items():
                client.restore(saved["clients"][name])
            for name, client in self.joining.items():
                client.restore(saved["joining"][name])
            self._done = bool(saved["done"])
            self._seconds = float(saved["seconds"])
        except (AttributeError, LookupError, TypeError, ValueError) as problem:
            raise RunDirectoryError(
                f"the checkpoint does not belong to this run ({problem!r}); it was changed by hand, so start a new run"
            ) from problem

    def _check_same_layers(self, saved: Mapping[str, Any]) -> None:
        """A run continues with the layers it began with: a later version may find others in the same model."""
        now = {name: list(entries) for name, entries in self.server.layers.entries.items()}
        begun = saved.get("layers")
        if begun is None:
            # Earlier versions stored only the names of the layers, with their scores.
            scored = [
                client["memory"]["profile"] for client in saved["clients"].values() if "profile" in client["memory"]
            ]
            begun = {name: now.get(name) for profile in scored[:1] for name in profile["layers"]} or now
        if list(begun.items()) == list(now.items()):
            return
        raise RunDirectoryError(
            f"the run was started with the layers {some(list(begun), 6)}, but this version of playerfl finds "
            f"{some(list(now), 6)}{', with other entries' if list(begun) == list(now) else ''}; resume it with the "
            "version that environment.json names, or start a new run"
        )

    def _state(self) -> dict[str, Any]:
        return {
            "layers": {name: list(entries) for name, entries in self.server.layers.entries.items()},
            "server": self.server.state(),
            "clients": {name: client.state() for name, client in self.clients.items()},
            **({"joining": {name: client.state() for name, client in self.joining.items()}} if self.joining else {}),
            "done": self._done,
            "seconds": self._seconds,
        }

    async def rounds(self, transport: Transport | None = None) -> RunResult:
        """Runs the remaining rounds and returns the result; in this process, unless a transport is given."""
        if not self._done:
            transport = transport or InProcess(self.algorithm, self.clients, self.experiment.seed, self.evaluation)
            await run_rounds(
                self.algorithm,
                self.server,
                transport,
                self.experiment.rounds,
                self,
                self.evaluation,
                self.experiment.participation,
            )
        await self._join()
        return self._result()

    async def _join(self) -> None:
        """Each unseen site gets the common part of the model, tunes it, and is scored. Not repeated if resumed."""
        joined = {row[2] for row in self.score_rows if row[0] == "unseen"}
        scores: dict[SiteId, tuple[Score, ...]] = {}
        traffic: list[Traffic] = []
        for name, client in self.joining.items():
            if name in joined:
                continue
            download = self.algorithm.server_join(self.server, name)
            client.begin(self.experiment.seed, self.server.round)
            client.optimizers.clear()
            with failing_at(self.algorithm, client, f"tuning the model of round {self.server.round}"):
                await self.algorithm.client_join(client, download, self.experiment.unseen_epochs)
                by_split = await client.evaluate()
            client.kept = Snapshot(self.server.round, by_split["validation"]["loss"], client.weights())
            client.end()
            scores[name] = tuple(
                Score("unseen", self.server.round, split, metric, value)
                for split, metrics in by_split.items()
                for metric, value in metrics.items()
            )
            traffic.append(Traffic(self.server.round, name, "join", download.num_bytes, 0))
        if scores:
            self.exchanged(Measurements(scores, traffic), done=True)

    def exchanged(self, measurements: Measurements, *, done: bool) -> None:
        """Records an exchange."""
        scores = measurements.scores
        now = time.perf_counter()
        self._seconds += now - self._clock
        self._clock = now
        self._done = done
        new_scores = score_rows(scores)
        new_traffic: list[Row] = list(measurements.traffic)
        self.score_rows += new_scores
        self.traffic_rows += new_traffic
        self._confusions.add(measurements.confusions)
        if self.record:
            self.record.exchanged(new_scores, new_traffic, measurements.confusions, self._state)
        if self.listener:
            self._tell(
                Progress(
                    self.experiment.algorithm["name"],
                    self.server.round,
                    self.experiment.rounds,
                    self._mean_loss(scores, "train"),
                    self._mean_loss(scores, "validation"),
                    self._seconds,
                    done,
                    self.experiment,
                    scores,
                    {name: client.num_examples for name, client in self.clients.items()},
                    self._found_layers(),
                )
            )

    def _tell(self, progress: Progress) -> None:
        assert self.listener is not None
        try:
            self.listener(progress)
        except StopRun as stop:
            if progress.done:
                return
            if not stop.finish:
                raise
            self.server.stopped = str(stop)
            note = f"a listener stopped the run after round {max(1, self.server.round)}: {stop}"
            self.description = {**self.description, "notes": [*self.description["notes"], note]}

    def _mean_loss(self, scores: Mapping[SiteId, tuple[Score, ...]], split: str) -> float:
        losses = [
            (score.value, {**self.clients, **self.joining}[site].num_examples)
            for site, site_scores in scores.items()
            for score in site_scores
            if (score.split, score.metric) == (split, "loss")
        ]
        return sum(v * n for v, n in losses) / sum(n for _, n in losses) if losses else float("nan")

    def _found_layers(self) -> LayersFile:
        return found_layers(
            self.server,
            {name: client.memory["profile"] for name, client in self.clients.items() if "profile" in client.memory},
        )

    def _outcomes(self) -> Outcomes:
        if self.experiment.outcomes == "never" or (self.record and not self.record.keeps_outcomes):
            return {}
        models = {name: client.kept.weights for name, client in self.clients.items() if client.kept}
        return outcomes_of(self.setup.learner, models, self.setup.sites, self.setup.test_groups)

    def _result(self) -> RunResult:
        result = RunResult(
            experiment=self.experiment.model_dump(mode="json"),
            environment=environment(self.experiment.device, self.experiment.threads),
            score_rows=self.score_rows,
            traffic_rows=self.traffic_rows,
            layers=self._found_layers(),
            data=self.description,
            weights={
                name: client.kept.weights for name, client in {**self.clients, **self.joining}.items() if client.kept
            },
            build_model=self.setup.build_model,
            timing={"wall_seconds": self._seconds, "runs_side_by_side": self._beside},
            confusions=self._confusions.so_far(),
            outcomes=self._outcomes(),
        )
        return self.record.finish(result) if self.record else result
