"""The oracle sweep: train at every cut, and see what the recommended one costs against the best."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from statistics import fmean, stdev
from typing import Any

import torch

from playerfl.analysis.cka import gram, representations, similarity_between_sites
from playerfl.analysis.layer_analysis import analysis_table, common_inputs, load_weights
from playerfl.engine.scheduler import drive
from playerfl.errors import ConfigError
from playerfl.layers.layer_map import LayerMap, LayerName
from playerfl.layers.recommend import recommend
from playerfl.layers.split import transition_point
from playerfl.runs.api import limited_threads
from playerfl.runs.experiment import Experiment, find_task
from playerfl.runs.result import RunResult
from playerfl.runs.run import Run
from playerfl.runs.setup import Setup, prepare_setup
from playerfl.tasks.task import Task
from playerfl.weights import Weights, squared_distance, weighted_mean

RECOMMENDED = "recommended (sensitivity)"
LAST_ONLY = "last layer private"
CKA_DROP = "largest CKA drop"
DIVERGENCE = "weight divergence"
EVERYTHING = "federate everything"
NOTHING = "federate nothing"
RANDOM = "random cut"


@dataclass(frozen=True)
class CutScore:
    """How well sites did on average with one cut and seed, as larger-is-better numbers."""

    seed: int
    cut: int
    validation: float
    test: float


@dataclass(frozen=True)
class Regret:
    """What one way of choosing costs against the best cut, over seeds."""

    way: str
    cuts: tuple[int, ...]
    """One a seed; empty for the random cut, which is the mean over 1 … L-1."""
    validation: tuple[float, ...]
    """Best minus chosen, one a seed: never negative."""
    test: tuple[float, ...]
    """The same on test data, against the cut that was best on validation: chance may make it negative."""


@dataclass(frozen=True)
class Sweep:
    """Scores of every cut, and the regret of every way of choosing one."""

    task: str
    layers: tuple[LayerName, ...]
    metric: str
    rounds: int
    scores: Sequence[CutScore]
    chosen: Mapping[str, Mapping[int, int]]
    """Way of choosing, then seed: the cut."""

    @property
    def seeds(self) -> list[int]:
        return sorted({score.seed for score in self.scores})

    def of(self, seed: int) -> dict[int, CutScore]:
        """One seed's scores by cut."""
        return {score.cut: score for score in self.scores if score.seed == seed}

    def best_cut(self, seed: int) -> int:
        """The best on validation data; of equals the one that federates less."""
        own = self.of(seed)
        return min(own, key=lambda cut: (-own[cut].validation, cut))

    def regrets(self) -> list[Regret]:
        """In the order in which the ways were asked, the random cut last."""
        found = []
        for way, cuts in self.chosen.items():
            pairs = [(self.of(seed)[self.best_cut(seed)], self.of(seed)[cuts[seed]]) for seed in self.seeds]
            found.append(
                Regret(
                    way,
                    tuple(cuts[seed] for seed in self.seeds),
                    tuple(best.validation - own.validation for best, own in pairs),
                    tuple(best.test - own.test for best, own in pairs),
                )
            )
        inner = range(1, len(self.layers))
        if inner:
            bests = [self.of(seed)[self.best_cut(seed)] for seed in self.seeds]
            drawn = [[self.of(seed)[cut] for cut in inner] for seed in self.seeds]
            found.append(
                Regret(
                    RANDOM,
                    (),
                    tuple(b.validation - fmean(s.validation for s in own) for b, own in zip(bests, drawn, strict=True)),
                    tuple(b.test - fmean(s.test for s in own) for b, own in zip(bests, drawn, strict=True)),
                )
            )
        return found

    def to_json(self) -> dict[str, Any]:
        return {
            "task": self.task,
            "layers": list(self.layers),
            "metric": self.metric,
            "rounds": self.rounds,
            "scores": [asdict(score) for score in self.scores],
            "best_cuts": {str(seed): self.best_cut(seed) for seed in self.seeds},
            "regrets": [asdict(regret) for regret in self.regrets()],
        }


def spread(values: Sequence[float]) -> float:
    """The standard deviation over seeds; 0 for a single one."""
    return stdev(values) if len(values) > 1 else 0.0


def sweep_cuts(
    task: str | Task,
    *,
    rounds: int | None = None,
    seeds: Sequence[int] = (0, 1, 2),
    settings: Mapping[str, Any] | Sequence[str] = (),
    watch: Callable[[int], Callable[[], None]] = lambda total: lambda: None,
) -> Sweep:
    """Trains with every cut from none to all layers, and asks each way of choosing for its cut.

    All ways but the recommendation look at the sites' models after the first epoch alone. The score is macro-F1 (minus
    the loss where targets are no classes), averaged over sites by their examples, at the round each site's validation
    loss chooses. `watch` is told the number of runs, and gives what is called after each.
    """
    if not seeds:
        raise ConfigError("give at least one seed")
    chosen_task = task if isinstance(task, Task) else find_task(task)
    given = analysis_table(chosen_task, rounds, settings)
    scores: list[CutScore] = []
    chosen: dict[str, dict[int, int]] = {}
    tick: Callable[[], None] | None = None
    names: tuple[LayerName, ...] = ()
    metric, number = "", 0
    for seed in seeds:
        table = {**given, "seed": seed}
        base = Experiment.resolve(table, chosen_task)
        with limited_threads(base.threads):
            setup = prepare_setup(base, chosen_task)
            names, number = setup.learner.layers.names, base.rounds
            metric = "f1" if "f1" in setup.learner.metrics else "loss"
            tick = tick or watch(len(seeds) * (len(names) + 2))
            profiles: Mapping[str, Any] = {}
            for cut in range(len(names) + 1):
                fixed = {"name": "player_fl", "rule": "fixed", "fixed_cut": cut}
                result = drive(Run(Experiment.resolve({**table, "algorithm": fixed}, chosen_task), setup).rounds())
                scores.append(CutScore(seed, cut, *(_average(result, split, metric) for split in _SPLITS)))
                profiles = result.layers["profiles"]
                tick()
            # The first epoch is the same whatever the cut, so every run has measured the same.
            answers = {
                RECOMMENDED: recommend(profiles, resamples=0).cut.index,
                **_by_models(table, chosen_task, setup),
            }
            tick()
        for way, cut in answers.items():
            chosen.setdefault(way, {})[seed] = cut
    return Sweep(chosen_task.name, names, metric, number, scores, chosen)


_SPLITS = ("validation", "test")


def _average(result: RunResult, split: str, metric: str) -> float:
    """Over sites, weighted by their examples, at each site's chosen round; a loss with its sign turned."""
    chosen, sizes = result.chosen_rounds, result.num_examples
    values = {
        str(client): float(value)
        for stage, round_, client, own_split, name, value in result.score_rows
        if (stage, own_split, name) == ("round", split, metric) and round_ == chosen[str(client)]
    }
    mean = sum(values[site] * sizes[site] for site in values) / sum(sizes[site] for site in values)
    return -mean if metric == "loss" else mean


def _by_models(table: Mapping[str, Any], task: Task, setup: Setup) -> dict[str, int]:
    """The cuts that other ways choose, from the sites' models after one epoch alone."""
    alone = {**table, "algorithm": {"name": "local"}, "rounds": 1, "selection": "last"}
    models = drive(Run(Experiment.resolve(alone, task), setup).rounds()).weights
    for site, weights in models.items():
        if not all(bool(entry.isfinite().all()) for entry in weights.values()):
            raise ConfigError(f"training diverged at {site} in the first epoch; try a smaller training.learning_rate")
    layers = setup.learner.layers
    count = len(layers.names)
    found = {LAST_ONLY: max(count - 1, 0)}
    if len(models) > 1:
        found[CKA_DROP] = _cka_drop(setup, models)
        found[DIVERGENCE] = divergence_cut(models, layers)
    return {**found, EVERYTHING: count, NOTHING: 0}


def divergence_cut(models: Mapping[str, Weights], layers: LayerMap) -> int:
    """Where the sites' weights begin to differ: the largest jump of mean ‖θ_c - θ̄‖ / ‖θ̄‖ from layer to layer."""
    centre = weighted_mean([(weights, 1.0) for _, weights in sorted(models.items())])
    nothing = {name: torch.zeros_like(tensor) for name, tensor in centre.items()}
    drift = {}
    for layer in layers.names:
        trained = [name for name in layers.entries[layer] if name not in layers.frozen | layers.buffers]
        own = {name: centre[name] for name in trained}
        size = squared_distance(own, nothing)
        apart = [squared_distance(own, weights) ** 0.5 for _, weights in sorted(models.items())]
        drift[layer] = fmean(apart) / size**0.5 if size else 0.0
    return transition_point(drift, "max_jump").index


def _cka_drop(setup: Setup, models: Mapping[str, Weights]) -> int:
    """Before the layer at which the sites' representations lose most of their similarity; logits count here."""
    layers, model = setup.learner.layers, setup.build_model()
    inputs = common_inputs({site: data.train for site, data in setup.sites.items()}, 512)
    grams = {}
    for site, weights in models.items():
        load_weights(model, weights)
        grams[site] = {layer: gram(x) for layer, x in representations(model, inputs, layers).items()}
    alike = similarity_between_sites(grams)
    known = [layer for layer in layers.names if layer in next(iter(alike.values()))]
    means = [fmean(own[layer] for own in alike.values()) for layer in known]
    drops = [before - after for before, after in pairwise(means)]
    if not drops:
        return len(layers.names)
    return layers.names.index(known[drops.index(max(drops)) + 1])
