"""RunGrid: results by task, algorithm and seed."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np

from playerfl.paper import facts as paper
from playerfl.report.compute.comparison import declared_metrics, global_scores
from playerfl.report.compute.statistics import Array, median, resampled, worst_for_nan
from playerfl.report.names import method_labels, task_labels
from playerfl.runs.measures.baseline import baseline_scores
from playerfl.runs.measures.declared import Declared
from playerfl.runs.measures.row_intervals import resampled_scores
from playerfl.runs.result import RunResult

F1Labels = Literal["true_or_predicted", "true", "all"]

MAJORITY = "Majority class"
TRAINING_MEAN = "Training mean"
"""The baseline of tasks with classes, and of those with numbers. It uses one run per seed, and only the data recorded
with that run. Both have the key MAJORITY among the algorithms."""
Splits = Literal["fixed", "per_run", "mixed", "unknown"]
"""Whether the runs of a method share one split of the data, each have their own, or share some."""
SiteScores = Mapping[str, Mapping[str, float]]


@dataclass(frozen=True)
class Placed:
    """A result and where it belongs."""

    task: str
    algorithm: str
    seed: int
    result: RunResult


@dataclass(frozen=True)
class RunGrid:
    """Every result by task, algorithm and seed; tasks and algorithms in the paper's order, others after them."""

    runs: tuple[Placed, ...]
    notes: tuple[str, ...] = ()
    f1_labels: F1Labels = "true_or_predicted"
    """The classes that macro-F1 averages over."""

    @cached_property
    def tasks(self) -> list[str]:
        printed = {name: number for number, name in enumerate(paper.facts()["datasets"])}
        labels = {run.task: printed.get(str(run.result.data.get("paper")), len(printed)) for run in self.runs}
        return sorted(labels, key=lambda label: (labels[label], label))

    @cached_property
    def tasks_overlap(self) -> bool:
        """Whether some tasks are one task with other sites left out, so that they are not independent of each other."""
        same = {
            json.dumps([run.result.experiment["task"], run.result.experiment["data"]], sort_keys=True)
            for run in self.runs
        }
        return len(same) < len(self.tasks) and any(run.result.experiment.get("unseen") for run in self.runs)

    @cached_property
    def algorithms(self) -> list[str]:
        order = {name: number for number, name in enumerate(paper.ALGORITHM_NAMES)}
        labels = {run.algorithm: order.get(run.result.algorithm, len(order)) for run in self.runs}
        return sorted(labels, key=lambda label: (labels[label], label))

    def results(self, task: str, algorithm: str) -> dict[int, RunResult]:
        """The runs of one cell by seed."""
        return self._cells.get((task, algorithm), {})

    def cells(self) -> Iterator[tuple[str, str, dict[int, RunResult]]]:
        """Task, algorithm and runs of every cell that has runs."""
        for task in self.tasks:
            for algorithm in self.algorithms:
                if results := self.results(task, algorithm):
                    yield task, algorithm, results

    @cached_property
    def _cells(self) -> dict[tuple[str, str], dict[int, RunResult]]:
        cells: dict[tuple[str, str], dict[int, RunResult]] = {}
        for run in self.runs:
            cells.setdefault((run.task, run.algorithm), {})[run.seed] = run.result
            if self._majorities[self._data_of(run)]:
                cells.setdefault((run.task, MAJORITY), {}).setdefault(run.seed, run.result)
        return cells

    @cached_property
    def _majorities(self) -> dict[tuple[str, str], SiteScores]:
        """By task and split; empty for all runs of a task if any of them records no class counts."""
        by_data: dict[tuple[str, str], SiteScores] = {}
        for run in self.runs:
            if self._data_of(run) not in by_data:
                by_data[self._data_of(run)] = baseline_scores(run.result, self.f1_labels) or {}
        unknown = {task for (task, _), scores in by_data.items() if not scores}
        return {key: {} if key[0] in unknown else scores for key, scores in by_data.items()}

    @staticmethod
    def _data_of(run: Placed) -> tuple[str, str]:
        return run.task, str(run.result.data["partition_hash"])

    def baseline_name(self, tasks: Sequence[str]) -> str:
        """What the baseline predicts on these tasks."""
        of_classes = {
            any("classes" in record["train"] for record in run.result.data["sites"].values())
            for run in self.runs
            if run.task in tasks
        }
        if len(of_classes) > 1:
            return f"{MAJORITY} or {TRAINING_MEAN.lower()}"
        return TRAINING_MEAN if of_classes == {False} else MAJORITY

    def classes(self, task: str) -> int:
        """How many classes a task has at its sites, as far as its runs record them."""
        labels: set[str] = set()
        for run in self.runs:
            if run.task == task:
                for record in run.result.data["sites"].values():
                    for part in (record["train"], record.get("test", record["train"])):
                        labels.update(part.get("classes", {}))
        return len(labels)

    def positive_name(self, task: str) -> str:
        """The class that metrics of two classes are about."""
        run = next(run.result for run in self.runs if run.task == task)
        names = run.data.get("class_names", [])
        return names[run.positive_class] if run.positive_class < len(names) else f"number {run.positive_class}"

    def splits(self, task: str) -> Splits:
        """What the partition hashes of a task's runs show. If each method has only one run, they count as one split."""
        hashes = [
            [run.data["partition_hash"] for run in results.values()]
            for of_task, _, results in self.cells()
            if of_task == task and len(results) > 1
        ]
        if any(None in of_method for of_method in hashes):
            return "unknown"
        if all(len(set(of_method)) == 1 for of_method in hashes):
            return "fixed"
        return "per_run" if all(len(set(of_method)) == len(of_method) for of_method in hashes) else "mixed"

    def redraws_sites(self, task: str) -> bool:
        """Whether a site's number of examples differs between runs, so that it keeps nothing but its name."""
        sizes: dict[str, set[int]] = {}
        for run in self.runs:
            for site, record in run.result.data["sites"].items():
                # At another institution, only the number of training examples is known, which may vary with the split.
                if run.task == task and "validation" in record and "test" in record:
                    examples = (record["train"], record["validation"], record["test"])
                    sizes.setdefault(site, set()).add(sum(part["examples"] for part in examples))
        return any(len(of_site) > 1 for of_site in sizes.values())

    @cached_property
    def alike(self) -> dict[str, list[tuple[str, ...]]]:
        """By task: groups of algorithms that give the same bits in every score of every run."""
        alike = {}
        for task in self.tasks:
            groups: dict[bytes, list[str]] = {}
            for algorithm in self.algorithms:
                if seeds := sorted(self.results(task, algorithm)):
                    scores = np.concatenate([self.scores(task, algorithm, metric).ravel() for metric in self.metrics])
                    # Methods that diverged everywhere have nothing else in common.
                    if np.isfinite(scores).any():
                        groups.setdefault(np.array(seeds).tobytes() + scores.tobytes(), []).append(algorithm)
            alike[task] = [tuple(group) for group in groups.values() if len(group) > 1]
        return alike

    def plain_name(self, algorithm: str) -> str:
        """The algorithm's name, without the settings that distinguish variants."""
        return next(run.result.algorithm for run in self.runs if run.algorithm == algorithm)

    def player_fl_first(self, algorithms: Sequence[str]) -> list[str]:
        """The same algorithms, starting with PLayer-FL as it is meant: with a cut that it measures."""

        def place(name: str) -> int:
            settings = next(run.result.experiment["algorithm"] for run in self.runs if run.algorithm == name)
            return 2 if settings["name"] != "player_fl" else int(settings.get("rule") == "fixed")

        return sorted(algorithms, key=place)

    def printed_name(self, task: str) -> str | None:
        """What the paper calls this task, if it is one of the paper's."""
        name = next(run.result.data.get("paper") for run in self.runs if run.task == task)
        return None if name is None else str(name)

    @cached_property
    def declared(self) -> dict[str, Declared]:
        """The metrics of all runs with their declarations, the loss last."""
        return declared_metrics([run.result for run in self.runs])

    @property
    def metrics(self) -> list[str]:
        return list(self.declared)

    def sites(self, task: str, metric: str | None = None) -> list[str]:
        """The sites that every run of a task has, and where this metric has a value."""
        return [site for site in self._sites[task] if metric is None or site not in self.undefined(task, metric)]

    def undefined(self, task: str, metric: str) -> dict[str, str]:
        """The sites at which a metric has no value in some run, although no model diverged, and why."""
        return self._undefined.get((task, metric), {})

    @cached_property
    def _undefined(self) -> dict[tuple[str, str], dict[str, str]]:
        reasons: dict[tuple[str, str], dict[str, str]] = {}
        for run in self.runs:
            for metric in self.metrics:
                if of_run := run.result.undefined(metric):
                    reasons.setdefault((run.task, metric), {}).update(of_run)
        return reasons

    @cached_property
    def _sites(self) -> dict[str, list[str]]:
        shared: dict[str, set[str]] = {}
        for run in self.runs:
            shared.setdefault(run.task, set(run.result.sites)).intersection_update(run.result.sites)
        return {task: sorted(sites) for task, sites in shared.items()}

    def scores(
        self,
        task: str,
        algorithm: str,
        metric: str,
        seeds: Sequence[int] | None = None,
        *,
        global_model: bool = False,
    ) -> Array:
        """Test scores at each site's chosen round: sites × runs, with the worst possible score in place of NaN.

        With `global_model`, FedAvg's scores are those of one model for all sites; see `global_scores`.
        """
        results = self.results(task, algorithm)
        wanted = sorted(results) if seeds is None else seeds
        by_run: list[SiteScores] = [
            self._majorities[task, str(results[seed].data["partition_hash"])]
            if algorithm == MAJORITY
            else global_scores(results[seed])
            if global_model
            else results[seed].site_scores
            for seed in wanted
        ]
        sites = self.sites(task, metric)
        scores = np.array([[of_run[site].get(metric, math.nan) for of_run in by_run] for site in sites])
        scores = scores.reshape(len(sites), len(wanted))
        return worst_for_nan(scores, lower_is_better=self.declared[metric].lower_is_better)

    def row_resamples(self, task: str, algorithm: str, metric: str, seeds: Sequence[int]) -> Array | None:
        """Scores in resamples of each site's test rows: sites × resamples × runs; None if they cannot be computed.

        That takes outcomes of every row in every run, and a metric whose code comes with the package.
        """
        known = self.declared[metric].bundled and (metric != "f1" or self.f1_labels == "true_or_predicted")
        if algorithm == MAJORITY or not known or not seeds:
            return None
        by_run = [self._resampled_rows(task, algorithm, metric, seed) for seed in seeds]
        return None if any(of_run is None for of_run in by_run) else np.stack([r for r in by_run if r is not None], -1)

    def _resampled_rows(self, task: str, algorithm: str, metric: str, seed: int) -> Array | None:
        key = (task, algorithm, metric, seed)
        if key not in self._rows:
            run = self.results(task, algorithm)[seed]
            by_site = [
                resampled_scores(run.outcomes[site], metric, site, positive=run.positive_class)
                if site in run.outcomes
                else None
                for site in self.sites(task, metric)
            ]
            known = [scores for scores in by_site if scores is not None]
            self._rows[key] = np.stack(known) if known and len(known) == len(by_site) else None
        return self._rows[key]

    @cached_property
    def _rows(self) -> dict[tuple[str, str, str, int], Array | None]:
        return {}

    def resampled_medians(
        self, task: str, algorithm: str, metric: str, seeds: Sequence[int], *, global_model: bool = False
    ) -> Array:
        """Each site's median over runs, in every bootstrap resample of the runs: sites × resamples."""
        key = (task, algorithm, metric, tuple(seeds), global_model)
        if key not in self._resampled:
            scores = self.scores(task, algorithm, metric, seeds, global_model=global_model)
            self._resampled[key] = resampled(median, scores)
        return self._resampled[key]

    @cached_property
    def _resampled(self) -> dict[tuple[str, str, str, tuple[int, ...], bool], Array]:
        return {}

    def examples(
        self, task: str, algorithm: str, seeds: Sequence[int] | None = None, metric: str | None = None
    ) -> Array:
        """Training examples: sites (where this metric has a value) × runs."""
        results = self.results(task, algorithm)
        wanted = sorted(results) if seeds is None else seeds
        sites = self.sites(task, metric)
        examples = [[results[seed].num_examples[site] for seed in wanted] for site in sites]
        return np.array(examples, float).reshape(len(sites), len(wanted))


def arrange(results: Sequence[RunResult], f1_labels: F1Labels = "true_or_predicted") -> RunGrid:
    """Groups runs by task and algorithm, and names both."""
    tasks = task_labels(results)
    labels: list[str] = [""] * len(results)
    for task in set(tasks):
        members = [i for i, label in enumerate(tasks) if label == task]
        names = method_labels([results[i] for i in members])
        for i, name in zip(members, names, strict=True):
            labels[i] = name
    places: dict[tuple[str, str, int], Placed] = {}
    notes = []
    for result, task, algorithm in zip(results, tasks, labels, strict=True):
        seed = int(result.experiment["seed"])
        place = (task, algorithm, seed)
        if place in places:
            notes.append(f"{algorithm} on {task} with seed {seed} was run more than once; {result.path} is left out")
        else:
            places[place] = Placed(task, algorithm, seed, result)
    runs = tuple(places.values())
    return RunGrid(runs, tuple(notes + _other_data(runs)), f1_labels)


def _other_data(runs: Sequence[Placed]) -> list[str]:
    hashes: dict[tuple[str, int], set[str]] = {}
    for run in runs:
        hashes.setdefault((run.task, run.seed), set()).add(str(run.result.data.get("partition_hash")))
    return [
        f"runs on {task} with seed {seed} do not use the same data (their partition hashes differ); "
        "differences between their algorithms may be due to that"
        for (task, seed), different in hashes.items()
        if len(different) > 1
    ]
