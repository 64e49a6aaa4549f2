"""The oracle sweep: train with every cut, and compare the recommended one with the best."""

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
from playerfl.layers.cut import transition_point
from playerfl.layers.layer_map import LayerMap, LayerName
from playerfl.layers.recommend import recommend
from playerfl.runs.api import limited_threads
from playerfl.runs.experiment import Experiment
from playerfl.runs.result import RunResult
from playerfl.runs.run import Run
from playerfl.runs.setup import Setup, prepare_setup
from playerfl.tasks.load import load_task
from playerfl.tasks.task import Task
from playerfl.weights import Weights, squared_distance, weighted_mean

RECOMMENDED = "recommended (sensitivity)"
LAST_ONLY = "last layer private"
CKA_DROP = "largest CKA drop"
DIVERGENCE = "weight divergence"
EVERYTHING = "share everything"
NOTHING = "share nothing"
RANDOM = "random cut"
_SPLITS = ("validation", "test")


@dataclass(frozen=True)
class CutScore:
    """The sites' average scores with one cut and seed; larger is better."""

    seed: int
    cut: int
    validation: float
    test: float


@dataclass(frozen=True)
class Regret:
    """What one way of choosing a cut loses relative to the best cut, over seeds."""

    way: str
    cuts: tuple[int, ...]
    """One per seed; empty for the random cut, which is the mean over 1 … L-1."""
    validation: tuple[float, ...]
    """Best minus chosen, one per seed: never negative."""
    test: tuple[float, ...]
    """The same on test data, against the cut that was best on validation data: may be negative by chance."""


@dataclass(frozen=True)
class Sweep:
    """The scores of every cut, and the regret of every way of choosing one."""

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
        """The best cut on validation data; a tie goes to the cut that shares fewer layers."""
        scores = self.of(seed)
        return min(scores, key=lambda cut: (-scores[cut].validation, cut))

    def regrets(self) -> list[Regret]:
        """One per way of choosing, the random cut last."""
        inner = range(1, len(self.layers))
        return [
            *(self._regret(way, {seed: [cuts[seed]] for seed in self.seeds}) for way, cuts in self.chosen.items()),
            *([self._regret(RANDOM, dict.fromkeys(self.seeds, inner))] if inner else []),
        ]

    def _regret(self, way: str, cuts: Mapping[int, Sequence[int]]) -> Regret:
        """The regret of the mean over several cuts per seed."""
        losses: dict[str, tuple[float, ...]] = {}
        for split in _SPLITS:
            by_seed = []
            for seed in self.seeds:
                scores = {cut: getattr(score, split) for cut, score in self.of(seed).items()}
                by_seed.append(scores[self.best_cut(seed)] - fmean(scores[cut] for cut in cuts[seed]))
            losses[split] = tuple(by_seed)
        chosen = () if way == RANDOM else tuple(cuts[seed][0] for seed in self.seeds)
        return Regret(way, chosen, **losses)

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
    """The standard deviation over seeds; 0 for a single seed."""
    return stdev(values) if len(values) > 1 else 0.0


def sweep_cuts(
    task: str | Task,
    *,
    rounds: int | None = None,
    seeds: Sequence[int] = (0, 1, 2),
    settings: Mapping[str, Any] | Sequence[str] = (),
    cuts: Sequence[int] | None = None,
    watch: Callable[[int], Callable[[], None]] = lambda total: lambda: None,
) -> Sweep:
    """Trains with every cut from none to all layers, and finds the cut that each way of choosing would pick.

    With `cuts`, only these are trained, and no way of choosing is evaluated.

    All ways except the recommendation use the sites' models after one epoch of training alone. The score is
    macro-F1 (minus the loss if targets are not classes), averaged over sites weighted by their examples, at the round
    chosen by each site's validation loss. `watch` is called with the number of runs and returns a function to call
    after each of them.
    """
    if not seeds:
        raise ConfigError("give at least one seed")
    chosen_task = task if isinstance(task, Task) else load_task(task)
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
            tried = range(len(names) + 1) if cuts is None else cuts
            tick = tick or watch(len(seeds) * (len(tried) + (cuts is None)))
            profiles: Mapping[str, Any] = {}
            for cut in tried:
                fixed = {"name": "player_fl", "rule": "fixed", "fixed_cut": cut}
                result = drive(Run(Experiment.resolve({**table, "algorithm": fixed}, chosen_task), setup).rounds())
                scores.append(CutScore(seed, cut, *(_average(result, split, metric) for split in _SPLITS)))
                profiles = result.layers["profiles"]
                tick()
            if cuts is not None:
                continue
            # The first epoch does not depend on the cut, so all runs have the same profiles.
            answers = {RECOMMENDED: recommend(profiles, resamples=0).cut.index, **_by_models(table, chosen_task, setup)}
            tick()
        for way, cut in answers.items():
            chosen.setdefault(way, {})[seed] = cut
    return Sweep(chosen_task.name, names, metric, number, scores, chosen)


def _average(result: RunResult, split: str, metric: str) -> float:
    """The mean over sites, weighted by their examples, at each site's chosen round; a loss is negated."""
    chosen, sizes = result.chosen_rounds, result.num_examples
    values = {
        str(site): float(value)
        for stage, round_, site, part, name, value in result.score_rows
        if (stage, part, name) == ("round", split, metric) and round_ == chosen[str(site)]
    }
    mean = sum(values[site] * sizes[site] for site in values) / sum(sizes[site] for site in values)
    return -mean if metric == "loss" else mean


def _by_models(table: Mapping[str, Any], task: Task, setup: Setup) -> dict[str, int]:
    """The cuts that the other ways choose, from the sites' models after one epoch of training alone."""
    alone = {**table, "algorithm": {"name": "local"}, "rounds": 1, "selection": "last"}
    models = drive(Run(Experiment.resolve(alone, task), setup).rounds()).weights
    for site, weights in models.items():
        if not all(bool(entry.isfinite().all()) for entry in weights.values()):
            raise ConfigError(f"training diverged at {site} in the first epoch; try a smaller training.learning_rate")
    layers = setup.learner.layers
    count = len(layers.names)
    cuts = {LAST_ONLY: max(count - 1, 0)}
    if len(models) > 1:
        cuts[CKA_DROP] = _cka_drop(setup, models)
        cuts[DIVERGENCE] = divergence_cut(models, layers)
    return {**cuts, EVERYTHING: count, NOTHING: 0}


def divergence_cut(models: Mapping[str, Weights], layers: LayerMap) -> int:
    """Where the sites' weights start to differ: the largest jump of mean ‖θ_c - θ̄‖ / ‖θ̄‖ between layers."""
    centre = weighted_mean([(weights, 1.0) for _, weights in sorted(models.items())])
    nothing = {name: torch.zeros_like(tensor) for name, tensor in centre.items()}
    drift = {}
    for layer in layers.names:
        trained = [name for name in layers.entries[layer] if name not in layers.frozen | layers.buffers]
        middle = {name: centre[name] for name in trained}
        size = squared_distance(middle, nothing)
        distances = [squared_distance(middle, weights) ** 0.5 for _, weights in sorted(models.items())]
        drift[layer] = fmean(distances) / size**0.5 if size else 0.0
    return transition_point(drift, "max_jump").index


def _cka_drop(setup: Setup, models: Mapping[str, Weights]) -> int:
    """The cut before the layer where the sites' representations lose the most similarity; logits included."""
    layers, model = setup.learner.layers, setup.build_model()
    inputs = common_inputs({site: data.train for site, data in setup.sites.items()}, 512)
    grams = {}
    for site, weights in models.items():
        load_weights(model, weights)
        grams[site] = {layer: gram(x) for layer, x in representations(model, inputs, layers).items()}
    alike = similarity_between_sites(grams)
    known = [layer for layer in layers.names if layer in next(iter(alike.values()))]
    means = [fmean(by_layer[layer] for by_layer in alike.values()) for layer in known]
    drops = [before - after for before, after in pairwise(means)]
    if not drops:
        return len(layers.names)
    return layers.names.index(known[drops.index(max(drops)) + 1])
