"""Run: one experiment under way, recorded so that it can be taken up again."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from playerfl.algorithms import Algorithm
from playerfl.engine import worker
from playerfl.engine.loop import run_rounds
from playerfl.engine.transport import InProcess, Traffic, Transport
from playerfl.environment import environment
from playerfl.errors import RunDirectoryError
from playerfl.experiment import Experiment
from playerfl.federation.client import Client
from playerfl.federation.messages import ClientId, Score
from playerfl.federation.server import Server
from playerfl.ground import Ground
from playerfl.results import RunResult, digest_of, read_result
from playerfl.run_directory import Row, RunDirectory


@dataclass(frozen=True)
class Progress:
    """How far a run is."""

    algorithm: str
    round: int
    rounds: int
    train_loss: float
    validation_loss: float
    seconds: float
    done: bool


Listener = Callable[[Progress], None]


class Run:
    """One experiment under way: builds it, takes it up where its directory left it, records what happens."""

    def __init__(
        self,
        experiment: Experiment,
        ground: Ground,
        directory: RunDirectory | None = None,
        listener: Listener | None = None,
        *,
        algorithm: Algorithm | None = None,
        beside: int = 1,
    ) -> None:
        """`algorithm`: one that is in no table, in place of the experiment's. `beside`: how many runs share this
        process, since the wall time is theirs together."""
        self.experiment = experiment
        self.ground = ground
        self.directory = directory
        self.listener = listener
        self.algorithm = algorithm or experiment.build_algorithm()
        self.protocol = worker.Protocol(experiment.eval_point, experiment.selection)
        self.server = Server(ground.initial, ground.learner.layers, ground.sites, experiment.seed)
        plan = experiment.training.plan()
        self.clients = {
            name: Client(name, data, ground.learner, plan, ground.initial)
            for name, data in sorted(ground.sites.items())
        }
        self._beside = beside
        self._done = False
        self._score_rows: list[Row] = []
        self._traffic_rows: list[Row] = []
        self._seconds = 0.0
        self._clock = time.perf_counter()
        if directory:
            self._take_up(directory)

    def _take_up(self, directory: RunDirectory) -> None:
        self._same_ground(directory)
        saved = directory.load_checkpoint()
        directory.start_tables(saved and saved["tables"])
        if saved is None:
            return
        self.server.restore(saved["server"])
        for name, client in self.clients.items():
            client.restore(saved["clients"][name])
        self._done = saved["done"]
        self._seconds = saved["seconds"]

    def _same_ground(self, directory: RunDirectory) -> None:
        """A run goes on with the data and the model it was started with, or not at all."""
        if not directory.has("data.json"):
            directory.write_json("data.json", self.ground.description)
            return
        begun = directory.read_json("data.json")
        for key, what in (("partition_hash", "data"), ("model", "model")):
            if begun.get(key) != self.ground.description[key]:
                raise RunDirectoryError(
                    f"{directory.path} was started with other {what}; resume it with those, or start a new run"
                )

    async def rounds(self, transport: Transport | None = None) -> RunResult:
        """All rounds that are left, and the result; in this process, unless a transport brings requests elsewhere."""
        if not self._done:
            transport = transport or InProcess(self.algorithm, self.clients, self.experiment.seed, self.protocol)
            await run_rounds(
                self.algorithm,
                self.server,
                transport,
                self.experiment.rounds,
                self,
                self.protocol,
                self.experiment.participation,
            )
        return self._result()

    def exchanged(self, scores: Mapping[ClientId, tuple[Score, ...]], traffic: list[Traffic], *, done: bool) -> None:
        """Records an exchange: rows first, then the checkpoint that counts them."""
        rows: list[Row] = [
            (s.stage, s.round, client, s.split, s.metric, s.value) for client in sorted(scores) for s in scores[client]
        ]
        now = time.perf_counter()
        self._seconds += now - self._clock
        self._clock = now
        self._done = done
        if self.directory:
            tables = self.directory.append(rows, traffic)
            self.directory.save_checkpoint(
                {
                    "server": self.server.state(),
                    "clients": {name: client.state() for name, client in self.clients.items()},
                    "tables": tables,
                    "done": done,
                    "seconds": self._seconds,
                }
            )
        else:
            self._score_rows += rows
            self._traffic_rows += traffic
        if self.listener:
            self.listener(
                Progress(
                    self.experiment.algorithm["name"],
                    self.server.round,
                    self.experiment.rounds,
                    self._mean_loss(scores, "train"),
                    self._mean_loss(scores, "validation"),
                    self._seconds,
                    done,
                )
            )

    def _mean_loss(self, scores: Mapping[ClientId, tuple[Score, ...]], split: str) -> float:
        found = [
            (s.value, self.clients[client].num_examples)
            for client, own in scores.items()
            for s in own
            if (s.split, s.metric) == (split, "loss")
        ]
        return sum(v * n for v, n in found) / sum(n for _, n in found) if found else float("nan")

    def _result(self) -> RunResult:
        layers = self.ground.learner.layers
        found = {
            "layers": [
                {
                    "name": name,
                    "entries": list(layers.entries[name]),
                    "parameters": layers.num_parameters[name],
                }
                for name in layers.names
            ],
            "decision": self.server.memory.get("decision"),
            "profiles": {
                name: client.memory["profile"] for name, client in self.clients.items() if "profile" in client.memory
            },
        }
        weights = {name: client.kept.weights for name, client in self.clients.items() if client.kept}
        timing = {"wall_seconds": self._seconds, "runs_side_by_side": self._beside}
        if self.directory:
            self.directory.finish(weights, found, timing, digest_of(weights))
            return read_result(self.directory, self.ground.build_model)
        return RunResult(
            experiment=self.experiment.model_dump(mode="json"),
            environment=environment(self.experiment.device, self.experiment.threads),
            score_rows=self._score_rows,
            traffic_rows=self._traffic_rows,
            layers=found,
            data=self.ground.description,
            weights=weights,
            build_model=self.ground.build_model,
            timing=timing,
        )
