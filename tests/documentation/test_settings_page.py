"""The reference of settings: complete, and as the code has it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from command_line import playerfl
from playerfl.algorithms import ALGORITHMS
from playerfl.errors import PlayerflError
from playerfl.runs.experiment import Experiment, MergeOptions, TrainingOptions
from playerfl.runs.settings import QUESTIONS, Setting, question_of, settings_of
from playerfl.studies.plan import Study
from playerfl.tasks import TASKS
from playerfl.tasks.folder import FolderOptions
from settings_page import sections, settings_page

CLASSES = (
    (Experiment, ""),
    (TrainingOptions, "training"),
    (MergeOptions, "merge"),
    (Study, "study"),
    *((options, "data") for options in dict.fromkeys((*(task.options for task in TASKS.values()), FolderOptions))),
    *((kind, "algorithm") for kind in ALGORITHMS.values()),
)
ALL = [setting for kind, table in CLASSES for setting in settings_of(kind, table)]


def test_every_setting_says_what_it_means_and_which_question_it_touches() -> None:
    unexplained = sorted({setting.name for setting in ALL if not setting.meaning})
    assert not unexplained, f"write a sentence below these fields: {unexplained}"
    tables = {"training", "data"}
    unasked = sorted({setting.name for setting in ALL if setting.question not in QUESTIONS} - tables)
    assert not unasked, f"add these to a question in playerfl.runs.settings: {unasked}"


def test_every_setting_is_on_the_page() -> None:
    names = set(re.findall(r"^\| `([\w.]+)` \|", settings_page(), flags=re.MULTILINE))
    assert {setting.name for setting in ALL} - names == {"algorithm", "training", "merge", "data"}, "these are sections"
    assert all(settings or "settings are those of" in about for _, about, settings in sections())


def test_every_table_of_the_page_has_whole_rows() -> None:
    for line in settings_page().splitlines():
        if line.startswith("|"):
            assert len(re.findall(r"(?<!\\)\|", line)) == 6, line
            assert line.count("`") % 2 == 0, line


@pytest.mark.parametrize(
    ("setting", "values", "default"),
    [
        ("training.momentum", "number; at least 0, below 1", "0.0"),
        ("training.optimizer", '"adamw" or "sgd"', '"adamw"'),
        ("early_stopping", "integer, or none; at least 1", "none"),
        ("data.alpha", "number; above 0", "0.5"),
        ("algorithm.keep", "number; at least 0, at most 1", "0.7"),
        ("algorithm.inner_steps", "integer; at least 1", "5"),
        ("seeds", "list: integer", "[1, 2, 3, 4, 5]"),
    ],
)
def test_types_limits_and_defaults_are_read_from_the_code(setting: str, values: str, default: str) -> None:
    found = next(known for known in ALL if known.name == setting)
    assert "; ".join(filter(None, (found.kind, found.allowed))) == values
    assert found.default_text == default


@pytest.mark.parametrize(
    "setting", [s for s in ALL if s.name.startswith("algorithm.") and s.allowed], ids=lambda s: s.name
)
def test_the_limits_of_hyper_parameters_hold(setting: Setting) -> None:
    name = setting.name.partition(".")[2]
    kinds = [kind for kind in ALGORITHMS.values() if setting in settings_of(kind, "algorithm")]
    refused = {"at least 0": -1, "at least 1": 0, "above 0": 0}[setting.allowed.split(", ")[0]]
    for kind in kinds:
        with pytest.raises(PlayerflError, match=name):
            kind(**{name: refused})


def test_a_new_setting_of_a_known_table_has_a_question() -> None:
    assert question_of("something_new", "data") == "data"
    assert question_of("something_new", "") == ""


def test_the_command_line_shows_meanings(tmp_path: Path) -> None:
    output = playerfl("list", "settings", cwd=tmp_path)
    assert output.returncode == 0
    assert "Rows per optimiser step" in output.stdout
    assert "Communication rounds" in output.stdout
    assert '"by_owner", "client_best", "round_best" or "last"' in output.stdout
    assert "number, above 0, at most 1" in output.stdout
