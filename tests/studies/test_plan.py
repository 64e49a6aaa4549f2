"""Study files: what they say, and one sentence about what they cannot say."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest

from playerfl.algorithms import ALGORITHMS
from playerfl.errors import PlayerflError
from playerfl.studies.plan import Study
from studies.small_studies import SMALL

EXPERIMENTS = Path(__file__).parents[2] / "experiments"
OTHERS = ("thresholds", "multiverse")


def test_counts_of_seeds_are_apart_from_each_other() -> None:
    study = Study.resolve(SMALL)
    assert study.seeds == [1, 2, 3]
    assert study.tuning_seeds == [1001, 1002]
    line = study.lines[1]
    assert (line.task, line.algorithm) == ("synthetic", "fedavg")
    assert [(e.training.learning_rate, e.seed) for e in line.tuning] == [
        (0.01, 1001), (0.01, 1002), (0.001, 1001), (0.001, 1002),
    ]  # fmt: skip
    assert [e.seed for e in line.evaluation(0.01)] == [1, 2, 3]
    assert line.at(0.01, 7).rounds == 2


def test_a_resolved_file_reads_back_the_same() -> None:
    study = Study.resolve({**SMALL, "algorithms": "paper"})
    again = Study.resolve(tomllib.loads(study.to_toml()))
    assert again == study
    assert [line.experiment for line in again.lines] == [line.experiment for line in study.lines]


def test_groups_of_algorithms() -> None:
    assert len(Study.resolve({**SMALL, "algorithms": "paper"}).lines) == 16
    assert len(Study.resolve({**SMALL, "algorithms": "all"}).lines) == len(ALGORITHMS)
    assert len(Study.resolve({**SMALL, "algorithms": "fedavg"}).lines) == 1


def test_tasks_and_algorithms_may_have_separate_settings() -> None:
    study = Study.resolve(
        {
            **SMALL,
            "tasks": ["synthetic", {"name": "synthetic", "rounds": 5, "training": {"local_epochs": 2}}],
            "algorithms": ["fedper", {"name": "fedper", "personal_layers": 2, "learning_rates": [0.5, 0.1]}],
        }
    )
    assert [(line.task, line.algorithm) for line in study.lines][-1] == (
        "synthetic rounds=5 training={'local_epochs': 2}",
        "fedper personal_layers=2 learning_rates=[0.5, 0.1]",
    )
    last = study.lines[-1]
    assert (last.experiment.rounds, last.experiment.training.local_epochs) == (5, 2)
    assert last.experiment.training.batch_size == 16
    assert last.experiment.algorithm["personal_layers"] == 2
    assert last.rates == (0.5, 0.1)


def test_without_rates_the_tasks_own_are_taken_and_nothing_is_tuned() -> None:
    table = {**SMALL, "tasks": ["heart"], "settings": {}}
    del table["learning_rates"]
    study = Study.resolve(table)
    assert [line.rates for line in study.lines] == [(0.05,), (0.1,), (0.1,)]
    assert not any(line.tuning for line in study.lines)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"name": None}, "name = None must be letters"),
        ({"name": "a/b"}, "name = 'a/b' must be letters"),
        ({"tasks": []}, "tasks = .* must be a list of names or tables"),
        ({"tasks": ["hart"]}, "unknown task 'hart'; did you mean 'heart'"),
        ({"tasks": [{"rounds": 3}]}, "must be a name, or a table with a name"),
        ({"tasks": [{"name": "synthetic", "seed": 3}]}, "seed is not allowed in"),
        ({"tasks": [{"name": "synthetic", "data": {"color": 1}}]}, "unknown key 'color'"),
        ({"tasks": ["synthetic", "synthetic"]}, "task 'synthetic' is in the study twice"),
        ({"algorithms": ["fedavgg"]}, "unknown algorithm 'fedavgg'; did you mean 'fedavg'"),
        ({"algorithms": "papers"}, "unknown algorithm 'papers'; did you mean 'paper'"),
        ({"algorithms": [{"name": "fedavg", "mu": 1}]}, "unknown key 'mu'"),
        ({"algorithms": ["local", "local"]}, "algorithm 'local' is in the study twice"),
        ({"learning_rates": "papper"}, "learning_rates = 'papper' must be \"paper\" or a list"),
        ({"learning_rates": "paper"}, "the paper prints no learning rates for 'synthetic'"),
        ({"learning_rates": [0.1, -1]}, "must be .* a list of numbers above 0"),
        ({"learning_rates": [0.1, float("nan")]}, "must be .* a list of numbers above 0"),
        ({"learning_rates": []}, "must be .* a list of numbers above 0"),
        ({"learning_rates": [0.1, 0.1]}, "contains a rate twice"),
        (
            {"algorithms": ["local", {"name": "fedavg", "learning_rates": [0.1]}]},
            "fedavg tries 1 learning rate and local 2 learning rates on synthetic; give every algorithm the same",
        ),
        ({"algorithms": ["paper", "local"]}, "algorithm 'local' is in the study twice"),
        ({"seeds": 0}, "seeds is empty"),
        ({"seeds": "many"}, "seeds = 'many' must be a number of seeds, or a list"),
        ({"seeds": [1, 1]}, "seeds contains a seed twice"),
        ({"seeds": [1001]}, "seed 1001 is in seeds and in tuning_seeds"),
        ({"seeds": 1001}, "seed 1001 is in seeds and in tuning_seeds"),
        ({"tuning_seeds": 0}, "2 learning rates need tuning_seeds"),
        ({"settings": {"task": "digits"}}, "task is not allowed in"),
        ({"settings": {"round": 3}}, "unknown key 'round'; did you mean 'rounds'"),
        ({"settings": {"training": {"learning_rate": 0.1}}}, "give learning_rates or training.learning_rate = 0.1"),
        ({"seeds_per_group": 0}, 'seeds_per_group = 0 must be "auto" or'),
        ({"checkpoint_seconds": -1}, "checkpoint_seconds = -1 is not allowed"),
        ({"keep_weights": "perhaps"}, "keep_weights = 'perhaps' is not allowed"),
        ({"algorithm": "local"}, "unknown key 'algorithm'; did you mean 'algorithms'"),
    ],
    ids=str,
)
def test_bad_studies_get_one_sentence(change: dict[str, Any], sentence: str) -> None:
    with pytest.raises(PlayerflError, match=sentence) as refusal:
        Study.resolve({**SMALL, **change})
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize("key", ["name", "tasks", "algorithms"])
def test_required_keys_are_asked_for(key: str) -> None:
    with pytest.raises(PlayerflError, match=f"{key} is missing in the study; for example {key} = "):
        Study.resolve({k: v for k, v in SMALL.items() if k != key})


@pytest.mark.parametrize(
    "file", sorted(p.name for p in EXPERIMENTS.glob("*.toml") if not any(word in p.stem for word in OTHERS))
)
def test_the_projects_own_study_files_can_be_read(file: str) -> None:
    assert Study.from_toml(EXPERIMENTS / file).lines


@pytest.mark.parametrize("seeds", [10**12, 2**64])
def test_too_many_seeds_are_refused_before_they_are_listed(seeds: int) -> None:
    with pytest.raises(PlayerflError, match="is too many; at most 2,000"):
        Study.resolve({**SMALL, "seeds": seeds})
