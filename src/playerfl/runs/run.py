"""Run: one experiment under way, recorded so that it can be taken up again."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from torch import nn

from playerfl.algorithms import Algorithm
from playerfl.engine.handle import EvaluationPlan
from playerfl.engine.loop import run_rounds
from playerfl.engine.transport import InProcess, Traffic, Transport
from playerfl.errors import RunDirectoryError
from playerfl.federation.client import Client
from playerfl.federation.messages import Score, SiteId
from playerfl.federation.server import Server
from playerfl.runs.environment import environment
from playerfl.runs.experiment import Experiment
from playerfl.runs.result import Row, RunResult
from playerfl.runs.setup import Setup
from playerfl.weights import Weights


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
    experiment: Experiment
    scores: Mapping[SiteId, tuple[Score, ...]]
    """What the sites told in this exchange."""
    num_examples: Mapping[SiteId, int]
    layers: Mapping[str, Any]
    """As in `RunResult.layers`: sizes, the cut once it is decided, and every site's profile."""


Listener = Callable[[Progress], None]


def score_rows(scores: Mapping[SiteId, tuple[Score, ...]]) -> list[Row]:
    """What sites scored in an exchange, as rows of the table of scores."""
    return [(s.stage, s.round, site, s.split, s.metric, s.value) for site in sorted(scores) for s in scores[site]]


def found_layers(server: Server, profiles: Mapping[SiteId, Any]) -> dict[str, Any]:
    """What `RunResult.layers` holds: the sizes, the cut once it is decided, and the profiles that are known."""
    layers = server.layers
    return {
        "layers": [
            {"name": name, "entries": list(layers.entries[name]), "parameters": layers.num_parameters[name]}
            for name in layers.names
        ],
        "decision": server.memory.get("decision"),
        "profiles": dict(profiles),
    }


class Record(Protocol):
    """Where a run is kept while it goes on and when it has ended."""

    def resume(self, description: Mapping[str, Any]) -> Any | None:
        """The last state that was kept, if the run has begun; `description` is of its data and model."""
        ...

    def exchanged(self, scores: list[Row], traffic: list[Row], state: Callable[[], dict[str, Any]]) -> None:
        """Adds rows; the state that goes with them is asked for only if it is to be kept."""
        ...

    def finish(
        self,
        weights: Mapping[str, Weights],
        layers: Mapping[str, Any],
        timing: Mapping[str, Any],
        build_model: Callable[[], nn.Module],
    ) -> RunResult:
        """Keeps what the run ended with, and gives all of it."""
        ...


class InMemory:
    """A record that leaves no files."""

    def __init__(self, experiment: Experiment, made_with: Mapping[str, Any] | None = None) -> None:
        self.experiment = experiment
        self.made_with = made_with or environment(experiment.device, experiment.threads)
        self.data: Mapping[str, Any] = {}
        self.score_rows: list[Row] = []
        self.traffic_rows: list[Row] = []

    def resume(self, description: Mapping[str, Any]) -> Any | None:
        self.data = description
        return None

    def exchanged(self, scores: list[Row], traffic: list[Row], state: Callable[[], dict[str, Any]]) -> None:
        self.score_rows += scores
        self.traffic_rows += traffic

    def finish(
        self,
        weights: Mapping[str, Weights],
        layers: Mapping[str, Any],
        timing: Mapping[str, Any],
        build_model: Callable[[], nn.Module],
    ) -> RunResult:
        return RunResult(
            experiment=self.experiment.model_dump(mode="json"),
            environment=self.made_with,
            score_rows=self.score_rows,
            traffic_rows=self.traffic_rows,
            layers=layers,
            data=self.data,
            weights=weights,
            build_model=build_model,
            timing=timing,
        )


class Run:
    """One experiment under way: builds it, takes it up where its record left it, records what happens."""

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
        """`record`: where it is kept; in memory if not given. `algorithm`: one that is in no table, in place of the
        experiment's. `beside`: how many runs share this process, since the wall time is theirs together."""
        self.experiment = experiment
        self.setup = setup
        self.record = record or InMemory(experiment)
        self.listener = listener
        self.algorithm = algorithm or experiment.build_algorithm()
        self.evaluation = EvaluationPlan(experiment.eval_point, experiment.selection)
        self.server = Server(setup.initial, setup.learner.layers, setup.sites, experiment.seed)
        plan = experiment.training.plan(experiment.rounds)
        self.clients = {
            name: Client(name, data, setup.learner, plan, setup.initial) for name, data in sorted(setup.sites.items())
        }
        self._beside = beside
        self._done = False
        self._seconds = 0.0
        self._clock = time.perf_counter()
        notes = self.algorithm.training_notes(experiment.training.learning_rate)
        saved = self.record.resume({**setup.description, "notes": [*setup.description["notes"], *notes]})
        if saved is not None:
            self._restore(saved)

    def _restore(self, saved: Mapping[str, Any]) -> None:
        try:
            self.server.restore(saved["server"])
            for name, client in self.clients.items():
                client.restore(saved["clients"][name])
            self._done = bool(saved["done"])
            self._seconds = float(saved["seconds"])
        except (AttributeError, LookupError, TypeError, ValueError) as problem:
            raise RunDirectoryError(
                f"the checkpoint is not one of this run ({problem!r}); it was changed by hand, so start a new run"
            ) from problem

    def _state(self) -> dict[str, Any]:
        return {
            "server": self.server.state(),
            "clients": {name: client.state() for name, client in self.clients.items()},
            "done": self._done,
            "seconds": self._seconds,
        }

    async def rounds(self, transport: Transport | None = None) -> RunResult:
        """All rounds that are left, and the result; in this process, unless a transport brings requests elsewhere."""
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
        return self._result()

    def exchanged(self, scores: Mapping[SiteId, tuple[Score, ...]], traffic: list[Traffic], *, done: bool) -> None:
        """Records an exchange."""
        now = time.perf_counter()
        self._seconds += now - self._clock
        self._clock = now
        self._done = done
        self.record.exchanged(score_rows(scores), list(traffic), self._state)
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
                    self.experiment,
                    scores,
                    {name: client.num_examples for name, client in self.clients.items()},
                    self._found_layers(),
                )
            )

    def _mean_loss(self, scores: Mapping[SiteId, tuple[Score, ...]], split: str) -> float:
        found = [
            (s.value, self.clients[client].num_examples)
            for client, own in scores.items()
            for s in own
            if (s.split, s.metric) == (split, "loss")
        ]
        return sum(v * n for v, n in found) / sum(n for _, n in found) if found else float("nan")

    def _found_layers(self) -> dict[str, Any]:
        return found_layers(
            self.server,
            {name: client.memory["profile"] for name, client in self.clients.items() if "profile" in client.memory},
        )

    def _result(self) -> RunResult:
        found = self._found_layers()
        weights = {name: client.kept.weights for name, client in self.clients.items() if client.kept}
        timing = {"wall_seconds": self._seconds, "runs_side_by_side": self._beside}
        return self.record.finish(weights, found, timing, self.setup.build_model)
