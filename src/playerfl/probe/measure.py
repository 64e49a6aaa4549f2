"""probe_sites: one measured epoch at every site, from a common start, and the cut it recommends."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor, nn

from playerfl.algorithms.shared_layers.player_fl import PLayerFL
from playerfl.data.examples import SiteData, map_tensors
from playerfl.engine.scheduler import drive
from playerfl.engine.transport import InProcess
from playerfl.errors import ConfigError, described
from playerfl.federation.messages import Request
from playerfl.layers.derive import call_model
from playerfl.layers.gradients import preserve_state
from playerfl.layers.layer_map import LayerMap
from playerfl.layers.recommend import recommend
from playerfl.layers.recommendation import Recommendation
from playerfl.layers.sensitivity import Profile
from playerfl.runs.api import limited_threads
from playerfl.runs.experiment import Experiment
from playerfl.runs.result import RunResult
from playerfl.runs.run import Run
from playerfl.runs.settings_table import with_settings
from playerfl.runs.setup import Setup, input_error, prepare_setup
from playerfl.tasks.load import load_task
from playerfl.tasks.task import Task, unsplit_task


@dataclass(frozen=True)
class Measurement:
    """The sites' scores for one or several seeds, and the model they belong to."""

    profiles: Sequence[Mapping[str, Profile]]
    """One mapping per seed, from site to profile."""
    model: nn.Module
    layers: LayerMap
    options: Mapping[str, Any]
    """How PLayer-FL is to decide: rule, threshold and the rest."""
    seconds_per_example: float | None = None
    """What the measured epoch took per example; None if it was not measured now."""

    def recommend(self, **changes: Any) -> Recommendation:
        """The cut and its evidence; `changes` override `options`."""
        options = changed_decision(self.options, changes)
        return recommend(self.profiles, self.model, layers=self.layers, **options)


def probe_sites(
    task: str | Task | Callable[[], nn.Module],
    sites: Mapping[str, object] | Sequence[object] | None = None,
    *,
    loss: Callable[[Any, Tensor], Tensor] | None = None,
    seeds: int | Sequence[int] = 1,
    settings: Mapping[str, Any] | Sequence[str] = (),
    before: Callable[[nn.Module, LayerMap, int], Callable[[], None]] | None = None,
) -> Measurement:
    """Trains one epoch at every site from a common initial model, and measures every layer along the way.

    `task`: what `playerfl.run` takes, or a function that builds your model, together with `sites`: the training data of
    each site as (inputs, targets), a Dataset or a DataLoader. `seeds`: a list of seeds, or their number, counted from
    0. `settings`: as in `playerfl.run` (training.learning_rate, algorithm.threshold …). `before`: called with the
    model, its layers and the number of sites before training starts; it returns a function that is called after each
    site of each seed.

    >>> measurement = probe_sites("synthetic")
    >>> measurement.recommend().cut.layers
    ('fc1', 'fc2', 'fc3', 'fc4')
    """
    chosen = _task(task, sites, loss)
    runs = []
    model, layers, options, tick = None, None, {}, None
    seconds = examples = 0.0
    for seed in range(seeds) if isinstance(seeds, int) else seeds:
        experiment = _experiment(chosen, seed, settings)
        algorithm = experiment.build_algorithm()
        assert isinstance(algorithm, PLayerFL)
        with limited_threads(experiment.threads):
            setup = prepare_setup(experiment, chosen)
            if model is None:
                model, layers, options = setup.build_model(), setup.learner.layers, decision_options(vars(algorithm))
                _rehearse(model, setup.learner.loss, setup.sites)
                if before:
                    tick = before(model, layers, len(setup.sites))
            began = time.perf_counter()
            runs.append(measure_sites(experiment, setup, algorithm, tick))
            seconds += time.perf_counter() - began
            examples += sum(profile.num_examples for profile in runs[-1].values())
    if model is None or layers is None:
        raise ConfigError("give at least one seed")
    return Measurement(runs, model, layers, options, seconds / examples)


def _rehearse(model: nn.Module, loss: Callable[[Any, Tensor], Tensor], sites: Mapping[str, SiteData]) -> None:
    """Runs two examples of every site through model and loss, so that errors appear now and not hours into training."""
    for site, data in sites.items():
        with preserve_state(model):
            model.eval()
            inputs, targets = next(iter(data.train.batches(2)))
            try:
                output = call_model(model, map_tensors(inputs, lambda x: x.cpu()))
            except Exception as problem:
                raise input_error(f"{site}'s inputs", model, inputs, problem) from problem
            try:
                value = loss(output, targets.cpu())
            except Exception as problem:
                raise ConfigError(f"the loss failed at {site}: {described(problem)}") from problem
        if not isinstance(value, Tensor):
            raise ConfigError(
                f"the loss returned {type(value).__name__}; it must return a tensor, one value per example or a mean"
            )
        if not value.requires_grad:
            raise ConfigError("the loss does not depend on the model's trainable parameters, so it cannot be trained")


def _task(
    task: str | Task | Callable[[], nn.Module],
    sites: Mapping[str, object] | Sequence[object] | None,
    loss: Callable[[Any, Tensor], Tensor] | None,
) -> Task:
    if isinstance(task, str | Task):
        if sites is not None or loss is not None:
            raise ConfigError("a task has its own sites and loss; pass sites and loss only with a model of your own")
        return task if isinstance(task, Task) else load_task(task)
    if sites is None:
        raise ConfigError("pass the sites' data with the model: a mapping from site names to (inputs, targets)")
    return unsplit_task(task, sites, loss)


def _experiment(task: Task, seed: int, settings: Mapping[str, Any] | Sequence[str]) -> Experiment:
    given: dict[str, Any] = {"task": task.name, "seed": seed, "algorithm": {"name": "player_fl"}}
    experiment = Experiment.resolve(with_settings(given, settings), task)
    if experiment.algorithm["name"] != "player_fl":
        raise ConfigError(f"only player_fl measures layers; algorithm.name cannot be {experiment.algorithm['name']!r}")
    return experiment


def decision_options(settings: Mapping[str, Any]) -> dict[str, Any]:
    """How an algorithm with these settings decides, as keyword arguments of `recommend`."""
    names = ("rule", "threshold", "on_no_transition", "client_weight", "normalise", "reduce")
    options = {name: settings[name] for name in names if name in settings}
    # A fixed cut does not depend on the measurement, so the default rule is used instead.
    return {**options, "rule": "layer_ratio", "threshold": None} if options.get("rule") == "fixed" else options


def changed_decision(options: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """How to decide after `changes`: a new rule comes with its own threshold, unless one is given with it.

    >>> changed_decision({"rule": "layer_ratio", "threshold": 3.0}, {"rule": "max_jump"})
    {'rule': 'max_jump'}
    """
    decided = {**options, **changes}
    if "rule" in changes and "threshold" not in changes:
        decided.pop("threshold", None)
    return decided


def measure_sites(
    experiment: Experiment, setup: Setup, algorithm: PLayerFL, tick: Callable[[], None] | None = None
) -> dict[str, Profile]:
    """PLayer-FL's first exchange and nothing else: bit for bit what a full run measures."""
    run = Run(experiment, setup, algorithm=algorithm)
    transport = InProcess(algorithm, run.clients, experiment.seed, run.evaluation)
    profiles = {}
    for site, client in run.clients.items():
        drive(transport.call({site: Request(("prepare",), algorithm.server_send(run.server, site))}))
        profiles[site] = Profile.from_json(client.memory["profile"])
        if tick:
            tick()
    return profiles


def measured_in(*results: RunResult) -> Measurement:
    """The scores that finished runs stored, one run per seed."""
    runs = []
    for result in results:
        profiles = result.layers.get("profiles", {})
        if not profiles:
            raise ConfigError(
                f"{result.path or 'this run'} has no layer scores, because {result.algorithm} measures none; "
                "probe a run of player_fl or one of its variants"
            )
        runs.append({site: Profile.from_json(profile) for site, profile in profiles.items()})
    first = results[0]
    model = first.build_model()
    return Measurement(runs, model, layers_of(first, model), decision_options(first.experiment["algorithm"]))


def layers_of(result: RunResult, model: nn.Module) -> LayerMap:
    """The layers of a run, as it stored them."""
    policies = {"tie_policy": result.experiment["tie_policy"], "statistics": result.experiment["bn_stats"]}
    stored = [(layer["name"], layer["entries"]) for layer in result.layers["layers"]]
    # A run stores each entry once; only the model knows which other layers use it.
    return replace(LayerMap.from_groups(model, stored, **policies), tied=LayerMap.of(model, **policies).tied)
