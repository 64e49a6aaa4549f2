"""The limit cases of `playerfl selftest`, with models that selftest does not have, and scores as well as weights."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest

from algorithms.recorder import assert_same_models, build_own
from federations import task
from playerfl.algorithms import Algorithm
from playerfl.engine.scheduler import drive
from playerfl.runs.result import RunResult
from playerfl.selftest.identities import Identity, limit_cases

ROUNDS = 3
LAYERS = {"batch norm": 3, "dropout": 3, "convolutional": 3, "frozen first layer": 4}


@cache
def result_of(algorithm: Algorithm, model: str, bn_stats: str, sites: int) -> RunResult:
    return drive(build_own(algorithm, task(model, sites), ROUNDS, bn_stats=bn_stats).rounds())


def cases() -> list[Any]:
    setups = [*((model, "follow") for model in LAYERS), ("batch norm", "local")]
    return [
        pytest.param(case, model, bn_stats, id=f"{model}, {bn_stats}: {case.left.name}", marks=slow)
        for model, bn_stats in setups
        for number, case in enumerate(limit_cases(LAYERS[model], ROUNDS))
        for slow in [() if (model, bn_stats, number % 4) == ("batch norm", "follow", 0) else pytest.mark.slow]
    ]


@pytest.mark.parametrize(("case", "model", "bn_stats"), cases())
def test_a_limit_case_holds(case: Identity, model: str, bn_stats: str) -> None:
    left, right = (result_of(side.algorithm, model, bn_stats, side.sites) for side in (case.left, case.right))
    assert_same_models(left, right)
    if "after the merge" not in case.left.name:  # else each round's personal model is scored one message later
        assert scores_by_round(left) == scores_by_round(right)


def scores_by_round(result: RunResult) -> set[Any]:
    return {row for row in result.score_rows if row[0] == "round"}
