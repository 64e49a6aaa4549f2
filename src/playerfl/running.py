"""run and resume: from an experiment to its result, one or several side by side."""

from __future__ import annotations

import json
import time
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from playerfl.algorithms import ALGORITHMS, Algorithm
from playerfl.data.checks import check_sites, check_targets
from playerfl.data.directory import use_data_directory
from playerfl.data.examples import SiteData
from playerfl.data.sites import describe
from playerfl.engine import worker
from playerfl.engine.checkpoint import storage_error, write_atomically
from playerfl.engine.loop import run_rounds
from playerfl.engine.scheduler import drive, gather
from playerfl.engine.transport import InProcess, Traffic
from playerfl.environment import environment
from playerfl.errors import ConfigError, DataError, RunDirectoryError
from playerfl.experiment import Experiment, find_task, parse_setting, read_toml, with_setting
from playerfl.federation.client import Client
from playerfl.federation.messages import ClientId, Score
from playerfl.federation.server import Server
from playerfl.layers.derive import call_model
from playerfl.layers.layer_map import LayerMap, state_entries
from playerfl.learning.losses import logits_of
from playerfl.learning.training import Learner
from playerfl.results import SCORE_COLUMNS, TRAFFIC_COLUMNS, Row, RunDirectory, RunResult
from playerfl.seeding import own_randomness, seed_for
from playerfl.tasks.task import DataOptions, Task
from playerfl.weights import Weights, digest


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
COMPARISON = "comparison.json"


@dataclass(frozen=True)
class Ground:
    """What runs that differ only in the algorithm share: sites, scratch model, initial weights."""

    sites: Mapping[ClientId, SiteData]
    learner: Learner
    initial: Weights
    build_model: Callable[[], nn.Module]
    description: Mapping[str, Any]
    """Sizes, class counts, fingerprint and notes of the data."""


def prepare_ground(experiment: Experiment, task: Task) -> Ground:
    """Loads and checks the data, builds the seeded model and its layers."""
    options = experiment.data_options(task)
    task = task.for_options(options)
    sites = task.load_sites(options)
    check_sites(
        sites,
        batch_size=experiment.training.batch_size,
        classification=task.classification,
        accept_small_sites=options.accept_small_sites,
    )
    model = _seeded_model(experiment.seed, task, options)
    inputs, _ = next(iter(sites[min(sites)].train.batches(2)))
    _check_outputs(model, inputs, task, sites)
    if experiment.training.batch_size == 1 and any(isinstance(m, _BatchNorm) for m in model.modules()):
        raise ConfigError("training.batch_size = 1 does not go with batch norm; use at least 2")
    layers = LayerMap.of(model, inputs, tie_policy=experiment.tie_policy, statistics=experiment.bn_stats)
    initial = {name: entry.detach().clone() for name, entry in state_entries(model).items()}
    learner = Learner(model, layers, task.loss, task.metrics, experiment.device)
    placed = {name: learner.place(site) for name, site in sites.items()}
    return Ground(
        placed,
        learner,
        initial,
        lambda: _seeded_model(experiment.seed, task, options),
        {
            **describe(sites, classification=task.classification),
            "paper": task.paper,
            "model": {name: list(entry.shape) for name, entry in initial.items()},
        },
    )


def _seeded_model(seed: int, task: Task, options: DataOptions) -> nn.Module:
    with own_randomness(seed_for(seed, "init")):
        model = task.build_model(options)
    if not isinstance(model, nn.Module):
        raise ConfigError(f"the model of task {task.name!r} must be an nn.Module, not {type(model).__name__}")
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise ConfigError(f"{type(model).__name__} has no parameters to train; unfreeze some of its layers")
    return model


def _check_outputs(model: nn.Module, inputs: Any, task: Task, sites: Mapping[ClientId, SiteData]) -> None:
    model.eval()
    try:
        with torch.no_grad():
            output = call_model(model, inputs)
    except (RuntimeError, TypeError, ValueError) as problem:
        reason = str(problem).strip().splitlines()[0]
        raise DataError(f"the model cannot read the sites' inputs: {reason}") from problem
    if task.classification:
        logits = logits_of(output)
        if logits.dim() != 2:
            raise DataError(
                f"the model's output has the shape {tuple(logits.shape)}; (rows, classes) is needed for class targets"
            )
        check_targets(sites, logits.shape[1])


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

    async def rounds(self) -> RunResult:
        """All rounds that are left, and the result."""
        if not self._done:
            transport = InProcess(self.algorithm, self.clients, self.experiment.seed, self.protocol)
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
            self.directory.finish(weights, found, timing, _digest_of(weights))
            return replace(read_result(self.directory), build_model=self.ground.build_model)
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


def read_result(directory: RunDirectory, task: Task | None = None) -> RunResult:
    """A finished run, read from its directory; `task` is needed for the models of a task of your own."""
    if not directory.is_finished:
        raise RunDirectoryError(f"{directory.path} is not finished; continue it with --resume {directory.path}")
    experiment = read_toml(directory.path / "experiment.toml")
    weights = directory.read_weights()
    if _digest_of(weights) != directory.read_json("finished.json").get("weights_digest"):
        raise RunDirectoryError(f"{directory.path / 'weights'} was changed since the run ended; run it again")
    data = directory.read_json("data.json")
    if sorted(data.get("sites", {})) != sorted(weights):
        raise RunDirectoryError(f"{directory.path / 'data.json'} does not describe the sites of this run")

    def rebuild() -> nn.Module:
        resolved = Experiment.resolve(experiment, task)
        known = task or find_task(resolved.task)
        return _seeded_model(resolved.seed, known, resolved.data_options(known))

    return RunResult(
        experiment=experiment,
        environment=directory.read_json("environment.json"),
        score_rows=directory.read_table("scores.csv", SCORE_COLUMNS),
        traffic_rows=directory.read_table("traffic.csv", TRAFFIC_COLUMNS),
        layers=directory.read_json("layers.json"),
        data=data,
        weights=weights,
        build_model=rebuild,
        timing=directory.read_json("timing.json"),
        path=directory.path,
    )


def _digest_of(weights: Mapping[str, Weights]) -> str:
    return digest({f"{site}/{name}": w for site, own in weights.items() for name, w in own.items()})


def load_result(path: Path | str, *, task: Task | None = None) -> RunResult:
    """A finished run, read from the directory it was written to; give the `task` again if it was your own."""
    return read_result(RunDirectory.open(Path(path)), task)


def run_experiments(
    experiments: Sequence[Experiment],
    places: Sequence[RunDirectory | Path | None],
    task: Task | None = None,
    listener: Listener | None = None,
    *,
    overwrite: bool = False,
    home: Path | None = None,
) -> list[RunResult]:
    """Runs experiments side by side in one process; those already finished are read instead.

    A place is a directory to go on in, a path where one is made once the data have been found usable, or
    None for a run that leaves no files. With `home`, what belongs to the comparison is noted there first.
    """
    for place in places:
        if isinstance(place, Path):
            RunDirectory.check_free(place, overwrite=overwrite)
    grounds: dict[str, Ground] = {}
    directories: list[RunDirectory] = []
    works = []
    try:
        with limited_threads(max(experiment.threads for experiment in experiments)):
            unfinished = [
                None if isinstance(place, RunDirectory) and place.is_finished else _ground(experiment, task, grounds)
                for experiment, place in zip(experiments, places, strict=True)
            ]
            for experiment, ground in zip(experiments, unfinished, strict=True):
                if ground:
                    experiment.build_algorithm().check_layers(ground.learner.layers)
            if home is not None:
                write_comparison(home, experiments)
            for experiment, place, ground in zip(experiments, places, unfinished, strict=True):
                directory = _start_directory(place, experiment, overwrite) if isinstance(place, Path) else place
                directories += [directory] if directory else []
                if ground:
                    works.append(Run(experiment, ground, directory, listener, beside=len(places)).rounds())
                elif directory:
                    works.append(_already(read_result(directory, task)))
            return drive(gather(works))
    finally:
        for directory in directories:
            directory.unlock()


def _ground(experiment: Experiment, task: Task | None, known: dict[str, Ground]) -> Ground:
    shared = experiment.model_dump_json(exclude={"algorithm", "rounds", "participation", "selection", "eval_point"})
    if shared not in known:
        known[shared] = prepare_ground(experiment, task or find_task(experiment.task))
    return known[shared]


def _start_directory(path: Path, experiment: Experiment, overwrite: bool) -> RunDirectory:
    made_with = environment(experiment.device, experiment.threads)
    return RunDirectory.create(path, experiment.to_toml(), made_with, overwrite=overwrite)


async def _already(result: RunResult) -> RunResult:
    return result


@contextmanager
def limited_threads(count: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def reopen_directory(path: Path, task: Task | None = None) -> tuple[Experiment, RunDirectory]:
    """A run directory and its experiment, locked, with a note in it if the software has changed since."""
    directory = RunDirectory.open(path)
    experiment = Experiment.resolve(read_toml(path / "experiment.toml"), task)
    directory.lock()
    recorded = directory.read_json("environment.json")
    now = environment(experiment.device, experiment.threads)
    known = [recorded, *recorded.get("resumed_with", [])]
    if not directory.is_finished and all(any(past.get(k) != v for k, v in now.items()) for past in known):
        directory.write_json("environment.json", {**recorded, "resumed_with": [*recorded.get("resumed_with", []), now]})
    return experiment, directory


def write_comparison(home: Path, experiments: Sequence[Experiment]) -> None:
    """Notes which runs belong together, and in which order, before the first of them has a directory."""
    if (home / "experiment.toml").exists():
        raise RunDirectoryError(f"{home} holds a single run; choose another directory for --out")
    try:
        home.mkdir(parents=True, exist_ok=True)
    except OSError as problem:
        raise storage_error(home, problem) from problem
    tables = [experiment.to_toml() for experiment in experiments]
    write_atomically(home / COMPARISON, (json.dumps({"experiments": tables}, indent=1) + "\n").encode())


def read_comparison(home: Path) -> list[Experiment] | None:
    """The experiments of a comparison in their order; None where there is none."""
    file = home / COMPARISON
    if not file.is_file():
        return None
    try:
        tables = json.loads(file.read_text(encoding="utf-8"))["experiments"]
        return [Experiment.resolve(tomllib.loads(table)) for table in tables]
    except (OSError, ValueError, KeyError, TypeError) as problem:
        raise RunDirectoryError(f"{file} cannot be read: {problem}") from problem


def run(
    task: str | Task = "digits",
    algorithm: str | Algorithm = "player_fl",
    *,
    rounds: int | None = None,
    seed: int = 0,
    learning_rate: float | None = None,
    settings: Mapping[str, Any] | Sequence[str] = (),
    out: Path | str | None = None,
    overwrite: bool = False,
    device: str = "auto",
    data_dir: Path | str | None = None,
    listener: Listener | None = None,
) -> RunResult:
    """Runs one experiment and gives its result.

    `task` is a name, a folder with one file per site, FILE.py:NAME, or your own `Task` (see `own_task`); `algorithm`
    a name or an instance. `settings` takes everything else an experiment file can say, as
    {"training.batch_size": 16} or ["training.batch_size=16"].
    With `out`, the run is kept in that directory and can be resumed; without, nothing is written. `data_dir` is where
    dataset files are ($PLAYERFL_DATA, else the user's cache, where it is not given).
    """
    own = task if isinstance(task, Task) else None
    given: dict[str, Any] = {"task": own.name if own else task, "seed": seed, "device": device}
    if rounds is not None:
        given["rounds"] = rounds
    if learning_rate is not None:
        given["training"] = {"learning_rate": learning_rate}
    given["algorithm"] = _algorithm_table(algorithm)
    pairs = settings.items() if isinstance(settings, Mapping) else map(parse_setting, settings)
    for key, value in pairs:
        given = with_setting(given, key, value)
    experiment = Experiment.resolve(given, own)
    place = None if out is None else Path(out)
    with use_data_directory(None if data_dir is None else Path(data_dir)):
        return run_experiments([experiment], [place], own, listener, overwrite=overwrite)[0]


def resume(path: Path | str, *, task: Task | None = None, listener: Listener | None = None) -> RunResult:
    """Continues an interrupted run; give the `task` again if it was your own."""
    experiment, directory = reopen_directory(Path(path), task)
    return run_experiments([experiment], [directory], task, listener)[0]


def _algorithm_table(algorithm: str | Algorithm) -> dict[str, Any]:
    if isinstance(algorithm, str):
        return {"name": algorithm}
    for name, kind in ALGORITHMS.items():
        if type(algorithm) is kind:
            return {"name": name, **algorithm.__dict__}
    raise ConfigError(
        f"{type(algorithm).__name__} is not in playerfl.algorithms.ALGORITHMS; add it there under a name first"
    )
