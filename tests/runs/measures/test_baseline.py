"""The majority class as a baseline, computed from the class counts that a run records."""

from __future__ import annotations

import math
from collections import Counter

import numpy as np
import pytest

import playerfl
from made_up_runs import made_up
from playerfl.data.examples import TensorExamples
from playerfl.runs.measures.baseline import baseline_scores
from playerfl.tasks import TASKS


def test_scores_are_those_of_predicting_one_class_for_every_test_example() -> None:
    """Independent: labels as lists, the prediction repeated, F1 from hits, misses and false alarms of every class."""
    result = playerfl.run("digits", "local", rounds=1, settings={"data.sites": 3, "training.batch_size": 64})
    sites = TASKS["digits"].load_sites(TASKS["digits"].options.model_validate({"sites": 3}))
    found = baseline_scores(result)
    assert found is not None and found.keys() == sites.keys()
    for name, site in sites.items():
        assert isinstance(site.train, TensorExamples) and isinstance(site.test, TensorExamples)
        train, test = site.train.targets.tolist(), site.test.targets.tolist()
        predicted = [Counter(sorted(train)).most_common(1)[0][0]] * len(test)
        pairs = list(zip(test, predicted, strict=True))
        assert found[name]["accuracy"] == pytest.approx(np.mean([true == text for true, text in pairs]))
        f1 = []
        for label in {*test, *predicted}:
            hits = sum(pair == (label, label) for pair in pairs)
            wrong = sum((true == label) != (text == label) for true, text in pairs)
            f1.append(2 * hits / (2 * hits + wrong))
        assert found[name]["f1"] == pytest.approx(np.mean(f1))
        if set(test) <= set(train):
            assert found[name]["loss"] == pytest.approx(np.mean([-math.log(train.count(y) / len(train)) for y in test]))
        else:
            assert "loss" not in found[name]


def test_the_loss_is_the_tasks_own() -> None:
    """Heart: -α_y (1 - p_y)³ log p_y, with p the class frequencies of the training data."""
    counts = ({"0": 3, "1": 1}, {"0": 1, "1": 1})
    found = baseline_scores(made_up(task="heart", sites=("a",), classes=[counts], data={"accept_small_sites": True}))
    alpha = TASKS["heart"].loss.alpha  # type: ignore[attr-defined]
    by_hand = [-alpha[label] * (1 - p) ** 3 * math.log(p) for label, p in enumerate((0.75, 0.25))]
    assert found is not None and found["a"]["loss"] == pytest.approx(np.mean(by_hand))


@pytest.mark.parametrize(
    ("task", "classes"),
    [("digits", ({"0": 3}, {"0": 1, "1": 1})), ("own", ({"0": 3, "1": 1}, {"0": 1, "1": 1}))],
    ids=["a class without training examples", "a task that is not bundled"],
)
def test_a_loss_that_cannot_be_computed_is_left_out(task: str, classes: tuple[dict[str, int], dict[str, int]]) -> None:
    found = baseline_scores(made_up(task=task, sites=("a",), classes=[classes]))
    assert found == {"a": {"accuracy": 0.5, "f1": pytest.approx(1 / 3)}}


def test_of_equally_frequent_classes_the_smallest_is_predicted() -> None:
    found = baseline_scores(made_up(sites=("a",), classes=[({"10": 2, "9": 2}, {"9": 3, "10": 1})]))
    assert found is not None and found["a"]["accuracy"] == 0.75


@pytest.mark.parametrize(
    "classes",
    [({"0": 3}, {}), ({}, {"0": 3}), ({"0.5": 3}, {"0.5": 3}), ({"1" * 5000: 3}, {"0": 3}), ({"0": -3}, {"0": 3})],
    ids=[
        "no test classes",
        "no training classes",
        "targets that are no classes",
        "a number too long",
        "less than none",
    ],
)
def test_without_class_counts_there_is_no_baseline(classes: tuple[dict[str, int], dict[str, int]]) -> None:
    assert baseline_scores(made_up()) is None
    known = ({"0": 3}, {"0": 3})
    assert baseline_scores(made_up(sites=("a", "b"), classes=[known, classes])) is None
