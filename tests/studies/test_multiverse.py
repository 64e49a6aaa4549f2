"""The multiverse: every protocol ranked, each run trained once, and the summary checked by counting."""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Mapping
from pathlib import Path
from statistics import mean, median
from typing import Any

import pytest

from playerfl.errors import ConfigError
from playerfl.runs.result import RunResult
from playerfl.studies.directory import StudyDirectory
from playerfl.studies.multiverse.api import MultiverseResult, read_plan, run_multiverse
from playerfl.studies.multiverse.plan import MultiversePlan

EXPERIMENTS = Path(__file__).parents[2] / "experiments"
SMALL: dict[str, Any] = {
    "name": "small",
    "task": "synthetic",
    "algorithms": ["local", "fedavg", "fedper"],
    "learning_rates": [0.03, 0.003],
    "seeds": 3,
    "tuning_seeds": 2,
    "settings": {"rounds": 3, "data": {"rows": 60, "sites": 2}, "training": {"batch_size": 16}},
    "trained": {
        "schedule": {
            "none": {},
            "some": {"by_algorithm": {"local": {"training": {"schedule": "exponential"}}}},
        }
    },
    "computed": {"rates": ["loss", "f1"], "selection": ["by_owner", "client_best"], "measure": ["f1", "loss"]},
}


@pytest.fixture(scope="module")
def ranked(tmp_path_factory: pytest.TempPathFactory) -> MultiverseResult:
    out = tmp_path_factory.mktemp("multiverse")
    return run_multiverse(MultiversePlan.resolve(SMALL), out / "small", backend="serial")


def protocols(result: MultiverseResult) -> list[dict[str, str]]:
    with (result.path / "protocols.csv").open(newline="") as table:
        return list(csv.DictReader(table))


def reported(run: RunResult, selection: str, split: str, metric: str) -> float:
    """What a run reports, from its table of scores."""
    scores = run.scores
    rounds = run.rounds_chosen_by(selection)
    stage = scores[(scores.split == split) & (scores.metric == metric)]
    values = {
        site: float(stage[(stage.site == site) & (stage["round"] == r)].value.iloc[0]) for site, r in rounds.items()
    }
    return sum(values[site] * n for site, n in run.num_examples.items()) / sum(run.num_examples.values())


def test_a_row_for_every_protocol_and_method(ranked: MultiverseResult) -> None:
    rows = protocols(ranked)
    assert len(rows) == 2 * 2 * 2 * 2 * 3
    assert {row["schedule"] for row in rows} == {"none", "some"}
    content = json.loads((ranked.path / "multiverse.json").read_text())
    assert len(content["protocols"]) == 16
    assert [factor["kind"] for factor in content["factors"]] == ["trained", "computed", "computed", "computed"]


def test_a_score_is_the_median_of_the_runs_at_the_rate_tuned_by_what_is_reported(ranked: MultiverseResult) -> None:
    study = StudyDirectory.open(ranked.path / "universes" / "none")
    runs = {
        (run.algorithm, run.experiment["training"]["learning_rate"], run.experiment["seed"]): run
        for run in study.results()
    }
    for row in protocols(ranked):
        if row["schedule"] != "none" or row["rates"] != "loss" or row["measure"] != "f1":
            continue
        method, selection = row["method"], row["selection"]
        tuned = {
            rate: mean(reported(runs[method, rate, seed], selection, "validation", "loss") for seed in (1001, 1002))
            for rate in SMALL["learning_rates"]
        }
        rate = min(tuned, key=lambda r: tuned[r])
        scores = [reported(runs[method, rate, seed], selection, "test", "f1") for seed in (1, 2, 3)]
        assert float(row["score"]) == pytest.approx(median(scores))


def test_only_the_named_method_trains_with_the_schedule(ranked: MultiverseResult) -> None:
    for universe, decaying in (("none", set()), ("some", {"local"})):
        lines = StudyDirectory.open(ranked.path / "universes" / universe).study.lines
        schedules = {line.experiment.algorithm["name"]: line.experiment.training.schedule for line in lines}
        assert {name for name, schedule in schedules.items() if schedule == "exponential"} == decaying


def test_ranks_follow_mean_ranks_within_each_protocol(ranked: MultiverseResult) -> None:
    for ranking in ranked.ranked.protocols:
        assert sum(ranking.mean_ranks) == pytest.approx(1 + 2 + 3)
        better = [sum(other < own for other in ranking.mean_ranks) for own in ranking.mean_ranks]
        assert ranking.ranks == tuple(1 + count for count in better)


def test_the_summary_counts_protocols(ranked: MultiverseResult) -> None:
    by_protocol: dict[tuple[str, ...], dict[str, Mapping[str, str]]] = {}
    for row in protocols(ranked):
        by_protocol.setdefault(tuple(list(row.values())[:4]), {})[row["method"]] = row
    for line in ranked.ranked.summary:
        own = [methods[line.method] for methods in by_protocol.values()]
        assert line.first == mean(row["rank"] == "1" for row in own)
        assert line.median_rank == median(int(row["rank"]) for row in own)
        if line.method != "fedavg":
            ahead = [float(m[line.method]["mean_rank"]) < float(m["fedavg"]["mean_rank"]) for m in by_protocol.values()]
            assert line.ahead_of["fedavg"] == mean(ahead)


def test_nothing_is_trained_twice(ranked: MultiverseResult) -> None:
    def changed() -> dict[Path, int]:
        return {file: file.stat().st_mtime_ns for file in ranked.path.rglob("*.safetensors")}

    before, rows = changed(), protocols(ranked)
    more = {**SMALL, "computed": {**SMALL["computed"], "measure": ["f1", "accuracy", "loss"]}}
    again = run_multiverse(MultiversePlan.resolve(more), ranked.path, backend="serial")
    assert changed() == before
    assert len(again.ranked.protocols) == 24
    # As it was, for the other tests.
    run_multiverse(MultiversePlan.resolve(SMALL), ranked.path, backend="serial")
    assert protocols(ranked) == rows
    assert read_plan(ranked.path, None)[0] == MultiversePlan.resolve(SMALL)


def test_the_projects_own_multiverses_can_be_read() -> None:
    heart = MultiversePlan.from_toml(EXPERIMENTS / "heart_multiverse.toml")
    sizes = [len(factor.values) for factor in heart.factors if factor.kind == "computed"]
    assert len(heart.universes) * math.prod(sizes) >= 200


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"computed": {"rates": ["printed"]}}, "prints no learning rates"),
        ({"computed": {"selection": ["best"]}}, "by_owner"),
        ({"computed": {"measure": []}}, "at least 1"),
        ({"trained": {"selection": {"a": {}}}}, "not allowed in \\[trained\\]"),
        ({"trained": {"batch": {}}}, "at least one choice"),
        ({"trained": {"a/b": {"c": {}}}}, "must be letters"),
        ({"trained": {"batch": {"small": {"training": {"batch": 3}}}}}, "unknown key"),
        ({"trained": {"method": {"a": {}}}}, "cannot be called"),
        ({"trained": {"x": {"a": {"by_algorithm": 3}}}}, "must be a table"),
        ({"computed": {"rates": ["loss", "loss"]}}, "twice"),
        ({"settings": {"confusions": "never"}, "computed": {"rates": ["loss"]}}, "confusion matrices"),
        ({"task": "nothing"}, "nothing"),
        ({"seeds": 1}, "seeds = 1"),
    ],
)
def test_a_mistake_in_the_file_is_named(changes: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        MultiversePlan.resolve({**SMALL, **changes})


def test_entries_of_one_algorithm_are_methods_apart(tmp_path: Path) -> None:
    given = {
        **SMALL,
        "algorithms": ["local", {"name": "fedprox", "mu": 0.1}, {"name": "fedprox", "mu": 50.0}],
        "trained": {},
        "computed": {"rates": ["loss"], "selection": ["last"], "measure": ["loss"]},
    }
    result = run_multiverse(MultiversePlan.resolve(given), tmp_path, backend="serial")
    assert result.ranked.methods == ("local", "fedprox mu=0.1", "fedprox mu=50.0")
    (ranking,) = result.ranked.protocols
    assert len(set(ranking.scores)) == 3


def test_only_rates_of_the_grid_are_tuned_over() -> None:
    """The paper prints 0.1 for pFedMe, which is not in its grid; it is trained for "printed", and never tuned to."""
    given = {**SMALL, "task": "heart", "algorithms": ["fedavg", "pfedme"], "learning_rates": "paper"}
    given |= {"settings": {}, "trained": {}}
    multiverse = MultiversePlan.resolve({**given, "computed": {"rates": ["printed", "loss"], "measure": ["loss"]}})
    for universe in multiverse.universes:
        assert {method: len(known.grid) for method, known in universe.methods.items()} == {"fedavg": 5, "pfedme": 5}
        assert ("pfedme", multiverse.printed_rate("pfedme")) in universe.lines
        assert multiverse.printed_rate("pfedme") not in universe.methods["pfedme"].grid


def test_no_two_universes_share_a_directory() -> None:
    trained = {"one": {"a": {}, "a-b": {}}, "two": {"b-c": {}, "c": {}}}
    names = [universe.name for universe in MultiversePlan.resolve({**SMALL, "trained": trained}).universes]
    assert len(set(names)) == len(names) == 4
