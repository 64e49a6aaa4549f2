"""Every run with its own split: which options it derives, what the runs of a seed share, and what stays as it was."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import pytest
import torch

import federations
from federations import assert_same
from playerfl.data.examples import tensor_pair
from playerfl.errors import ConfigError
from playerfl.runs.api import run_experiments
from playerfl.runs.experiment import Experiment
from playerfl.runs.setup import Setups, prepare_setup
from playerfl.seeding import seed_for
from playerfl.tasks import TASKS
from playerfl.tasks.task import DataOptions, Task, own_task

PER_RUN = {"split": "per_run"}


def experiment(task: Task, seed: int, algorithm: str = "fedavg", **data: Any) -> Experiment:
    table = {"seed": seed, "rounds": 2, "algorithm": algorithm, "trainer": "stacked", "training": {"batch_size": 8}}
    return Experiment.resolve({**table, "data": data}, task)


def test_a_fixed_split_is_the_options_own() -> None:
    options = DataOptions()
    assert options.split == "fixed"
    assert options.for_run(3) is options


@pytest.mark.parametrize("name", ["synthetic", "heart", "digits", "cifar10", "sent140"])
def test_seeds_of_splits_and_partitions_follow_from_the_runs_seed(name: str) -> None:
    task = TASKS[name]
    given = {"split_seed": 5, "split": "per_run"}
    options = Experiment.resolve({"task": name, "seed": 3, "data": given}).data_options(task)
    derived = {"split_seed": seed_for(5, "run", 3)}
    if "partition_seed" in task.options.model_fields:
        derived["partition_seed"] = seed_for(42, "run", 3)
    assert options == task.options(**given).model_copy(update=derived)
    assert "partition_seed" in derived or name in ("synthetic", "heart", "sent140")


@pytest.mark.parametrize("name", TASKS)
def test_options_are_written_only_if_they_are_set(name: str) -> None:
    plain = Experiment.resolve({"task": name, "data": {"split": "fixed", "shares": [0.64, 0.16, 0.2]}})
    assert not {"split", "shares", "focal_variant", "focal_gamma"} & plain.data.keys()
    assert plain == Experiment.resolve({"task": name})
    chosen = Experiment.resolve({"task": name, "data": {"shares": [0.7, 0.2, 0.1], **PER_RUN}})
    again = Experiment.from_resolved(chosen.to_toml())
    assert 'split = "per_run"' in chosen.to_toml()
    assert again.data_options(TASKS[name]) == chosen.data_options(TASKS[name])
    assert again.data_options(TASKS[name]).shares == (0.7, 0.2, 0.1)


@pytest.mark.parametrize(
    "shares", [[0.7, 0.3], [0.7, 0.2, 0.2], [0.8, 0.2, 0], [0.5, 0.25, "x"], 0.7, [0.7, 0.3, float("nan")], [1, 1, -1]]
)
def test_other_shares_are_refused_in_one_sentence(shares: Any) -> None:
    with pytest.raises(ConfigError) as caught:
        Experiment.resolve({"task": "digits", "data": {"shares": shares}})
    assert str(caught.value) == (
        f"shares = {shares!r} in the data settings of task digits is not allowed: give three numbers above 0 that add "
        "up to 1, for training, validation and test, like [0.7, 0.2, 0.1]"
    )


def test_shares_divide_a_site() -> None:
    sites = {"a": (torch.randn(100, federations.FEATURES), torch.arange(100) % 2)}
    task = own_task(federations.mlp, sites)
    (site,) = task.load_sites(DataOptions(shares=(0.7, 0.2, 0.1))).values()
    assert [len(site.train), len(site.validation), len(site.test)] == [70, 20, 10]


def test_parts_that_were_given_are_noted_not_redrawn() -> None:
    x, y = torch.randn(30, federations.FEATURES), torch.arange(30) % 3
    task = own_task(federations.mlp, {"a": {"train": (x, y), "validation": (x, y), "test": (x, y)}, "b": (x, y)})
    assert prepare_setup(experiment(task, 0), task).description["notes"] == []
    (note,) = prepare_setup(experiment(task, 0, **PER_RUN), task).description["notes"]
    assert note == "these sites come in three parts, which the options do not change: a"


def test_runs_of_a_seed_share_a_split_and_seeds_differ() -> None:
    task = federations.task()
    keys = [(algorithm, seed) for algorithm in ("fedavg", "player_fl") for seed in (1, 2)]
    experiments = [experiment(task, seed, algorithm, **PER_RUN) for algorithm, seed in keys]
    found = dict(zip(keys, run_experiments(experiments, [None] * 4, task), strict=True))
    hashes = {key: result.data["partition_hash"] for key, result in found.items()}
    assert hashes["fedavg", 1] == hashes["player_fl", 1] != hashes["fedavg", 2] == hashes["player_fl", 2]
    shared = [experiment(task, seed) for seed in (1, 2)]
    fixed = {result.data["partition_hash"] for result in run_experiments(shared, [None] * 2, task)}
    assert len(fixed) == 1
    assert fixed.isdisjoint(hashes.values())


def test_a_setup_shares_the_learner_and_equals_that_of_the_run_alone() -> None:
    task = federations.task()
    setups = Setups(task)
    first, second = (setups.of(experiment(task, seed, **PER_RUN)) for seed in (1, 2))
    assert first.learner is second.learner
    alone = prepare_setup(experiment(task, 2, **PER_RUN), task)
    assert second.description == alone.description != first.description
    assert all(torch.equal(entry, alone.initial[name]) for name, entry in second.initial.items())
    for site, data in alone.sites.items():
        assert torch.equal(tensor_pair(data.train)[0], tensor_pair(second.sites[site].train)[0])
    assert setups.of(experiment(task, 2, "ditto", **PER_RUN)) is second


def test_data_of_a_seed_are_dropped_with_its_run() -> None:
    task = federations.task()
    setups = Setups(task)
    setups.of(experiment(task, 1, **PER_RUN))
    other = setups.of(experiment(task, 2, **PER_RUN))
    part = weakref.ref(other.sites["site-0"].train)
    del other
    gc.collect()
    assert part() is None


@pytest.mark.parametrize("algorithm", federations.quick_for(["fedavg", "ditto", "player_fl"], "player_fl"))
def test_a_run_among_others_with_other_splits_is_the_run_alone(algorithm: str) -> None:
    """Bit for bit, though sites of different runs are trained and scored together."""
    task = federations.task()
    crowd = [experiment(task, seed, algorithm, **PER_RUN) for seed in range(6)]
    together = run_experiments(crowd, [None] * 6, task)
    for seed in (0, 4):
        (alone,) = run_experiments([crowd[seed]], [None], task)
        assert alone.data["trainer"] == "stacked"
        assert_same(alone, together[seed])


def test_checked_like_any_other_data() -> None:
    """A split that leaves a site with one class is refused for the seed that drew it, not for the others."""
    x, y = torch.randn(9, federations.FEATURES), torch.tensor([1, 1] + [0] * 7)
    task = own_task(federations.mlp, {"a": (x, y)})
    setups = Setups(task)
    refused = []
    for seed in range(30):
        chosen = experiment(task, seed, **PER_RUN)
        chosen = chosen.model_copy(update={"training": chosen.training.model_copy(update={"batch_size": 2})})
        try:
            setups.of(chosen)
        except Exception as problem:
            assert "a has only class 0 in its training part" in str(problem)
            refused.append(seed)
    assert 0 < len(refused) < 30
