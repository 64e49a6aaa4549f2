from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from playerfl.errors import ConfigError, PlayerflError
from playerfl.runs.experiment import Experiment
from playerfl.runs.settings_table import with_settings


def resolved(**settings: Any) -> Experiment:
    dotted = {key.replace("__", "."): value for key, value in settings.items()}
    return Experiment.resolve(with_settings({"task": "digits"}, dotted))


def test_a_resolved_experiment_reads_back_as_itself(tmp_path: Path) -> None:
    experiment = resolved(algorithm__name="player_fl", training__learning_rate=0.1, data__alpha=3)
    file = tmp_path / "experiment.toml"
    file.write_text(experiment.to_toml())
    assert Experiment.from_toml(file) == experiment


def test_the_users_settings_win_over_the_tasks_which_win_over_the_general() -> None:
    assert resolved().rounds == 30
    assert resolved(rounds=2).rounds == 2
    assert resolved().training.batch_size == 16
    assert resolved().training.local_epochs == 1


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"task": "digit"}, "unknown task 'digit'; did you mean 'digits'? allowed: "),
        ({"algorithm__name": "fedavgg"}, "unknown algorithm 'fedavgg'; did you mean 'fedavg'?"),
        ({"round": 3}, "unknown key 'round'; did you mean 'rounds'?"),
        ({"training__learning_rat": 3}, "unknown key 'learning_rat'; did you mean 'learning_rate'?"),
        ({"algorithm__treshold": 3}, "unknown key 'treshold' in the settings of player_fl; did you mean 'threshold'?"),
        ({"data__alhpa": 3}, "unknown key 'alhpa' in the data settings of task digits; did you mean 'alpha'?"),
        ({"rounds": 0}, "rounds = 0 is not allowed: it must be at least 1"),
        ({"seed": -1}, "seed = -1 is not allowed"),
        ({"data__alpha": 0}, "alpha = 0 in the data settings of task digits is not allowed: it must be above 0"),
        (
            {"data__alpha": "much"},
            "alpha = 'much' in the data settings of task digits is not allowed: it must be a number",
        ),
        ({"data__sites": 2.5}, "sites = 2.5"),
        ({"training__learning_rate": float("nan")}, "learning_rate = nan"),
        ({"training__optimizer": "adam"}, "optimizer = 'adam' is not allowed: it must be 'adamw' or 'sgd'"),
        (
            {"training__optimizer": "sgd", "training__amsgrad": True},
            "amsgrad = true is an option of adamw; sgd has no second moments",
        ),
        ({"device": "gpu"}, "unknown device 'gpu'"),
        ({"device": "cuda"}, "device 'cuda' is not available here; available: cpu"),
        ({"selection": "best"}, "selection = 'best' is not allowed"),
        ({"algorithm__rule": "steepest"}, "rule = 'steepest'"),
        ({"algorithm__rule": "fixed"}, 'rule="fixed" and fixed_cut belong together'),
        ({"algorithm": 3}, "algorithm must be a table with a name, not 3"),
        ({"data": 3}, "data must be a table, not 3"),
    ],
)
def test_bad_settings_are_explained_in_one_sentence(settings: dict[str, Any], sentence: str) -> None:
    with pytest.raises(PlayerflError) as caught:
        resolved(**settings)
    assert sentence in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "text",
    ["rounds = ", "\x00", "[training\n", "rounds = " + "9" * 5000, "rounds = " + "[" * 100_000, "a = '\0'"],
    ids=range(6),
)
def test_a_broken_or_missing_file_is_named(tmp_path: Path, text: str) -> None:
    file = tmp_path / "broken.toml"
    file.write_text(text)
    with pytest.raises(ConfigError, match=r"broken\.toml is not a TOML file"):
        Experiment.from_toml(file)
    with pytest.raises(ConfigError, match="is not a TOML file"):
        Experiment.from_resolved(text)
    with pytest.raises(ConfigError, match="cannot read"):
        Experiment.from_toml(tmp_path / "absent.toml")


@pytest.mark.parametrize("value", ["9" * 5000, "[" * 100_000])
def test_a_setting_that_no_number_can_hold_is_a_text(value: str) -> None:
    from playerfl.runs.settings_table import parse_setting

    assert parse_setting(f"rounds={value}") == ("rounds", value)


def test_an_error_is_one_line_that_a_terminal_can_show() -> None:
    text = str(ConfigError("a\nb\r\n\x1b[31mred\x1b[0m\u202e " + "x" * 9000 + " end"))
    assert text.startswith("a b  \\x1b[31mred")
    assert text.endswith(" end")
    assert text.isprintable()
    assert len(text) < 1600


@pytest.mark.parametrize(
    ("key", "value"), [("algorithm__name", []), ("algorithm__name", {}), ("device", 3), ("device", [])]
)
def test_names_of_another_kind_are_refused(key: str, value: Any) -> None:
    with pytest.raises(ConfigError, match="unknown"):
        resolved(**{key: value})
