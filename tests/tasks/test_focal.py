"""How tasks choose the form of their focal loss, and that new options leave old files and keys alone."""

from __future__ import annotations

import math

import pytest

import playerfl
from playerfl.errors import ConfigError
from playerfl.learning.losses import FocalLoss
from playerfl.paper import facts as paper
from playerfl.runs.experiment import Experiment
from playerfl.tasks import TASKS
from real_data import needs

NAMES = {"heart": "Heart", "isic2019": "ISIC", "mimic3": "MIMIC"}


@pytest.mark.parametrize("name", NAMES)
def test_the_default_is_the_standard_form_with_the_datasets_gamma(name: str) -> None:
    task = TASKS[name]
    expected = FocalLoss(*paper.focal(NAMES[name]))
    assert task.loss == task.for_options(task.options()).loss == expected


@pytest.mark.parametrize("name", NAMES)
def test_variant_and_gamma_can_be_chosen(name: str) -> None:
    task = TASKS[name]
    options = Experiment.resolve({"task": name, "data": {"focal_variant": "repo", "focal_gamma": 3}}).data_options(task)
    assert task.for_options(options).loss == FocalLoss(3.0, paper.focal(NAMES[name])[1], "repo")


@pytest.mark.parametrize(
    ("option", "sentence"),
    [({"focal_variant": "other"}, "focal_variant = 'other'"), ({"focal_gamma": -1}, "focal_gamma = -1")],
)
def test_other_forms_are_refused(option: dict[str, object], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        Experiment.resolve({"task": "heart", "data": option})


@pytest.mark.parametrize("name", NAMES)
def test_options_at_their_default_are_not_written_so_that_keys_stay(name: str) -> None:
    resolved = Experiment.resolve({"task": name})
    assert not {"focal_variant", "focal_gamma"} & resolved.data.keys()
    assert not {"schedule", "schedule_factor", "amsgrad"} & resolved.model_dump()["training"].keys()
    chosen = {"task": name, "data": {"focal_variant": "repo"}, "training": {"schedule": "cosine", "amsgrad": True}}
    text = Experiment.resolve(chosen).to_toml()
    assert all(line in text for line in ('focal_variant = "repo"', 'schedule = "cosine"', "amsgrad = true"))


@needs("heart")
def test_the_loss_that_is_reported_is_the_chosen_one() -> None:
    def first_loss(**data: object) -> float:
        settings = {"data": {"size": "tiny", **data}, "trainer": "stacked"}
        result = playerfl.run("heart", "local", rounds=1, settings=settings)
        assert result.data["trainer"] == "stacked"
        return next(float(row[5]) for row in result.score_rows if row[3:5] == ("test", "loss"))

    standard, repo = first_loss(), first_loss(focal_variant="repo")
    assert math.isfinite(repo)
    assert repo > 2 * standard
