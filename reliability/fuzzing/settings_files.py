"""Settings: experiment, study and thresholds files, and the command line."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

from reader import NotAnInput

EXPERIMENT = """\
task = "synthetic"
rounds = 2
seed = 3
selection = "client_best"
eval_point = "post_agg"
participation = 1.0
bn_stats = "follow"
device = "cpu"
trainer = "auto"

[data]
sites = 2
rows = 12
features = 3
classes = 2
accept_small_sites = true

[algorithm]
name = "player_fl"
threshold = 2.0

[training]
learning_rate = 0.01
batch_size = 8
optimizer = "adamw"
betas = [0.9, 0.999]
"""
SETTINGS = """\
rounds=3
training.betas=[0.9, 0.99]
algorithm.name=fedavg
data.rows=20
"""
STUDY = """\
name = "small"
tasks = ["synthetic", { name = "heart", rounds = 3, training = { batch_size = 16 } }]
algorithms = ["local", { name = "fedprox", mu = 0.5 }, "player_fl"]
learning_rates = [0.01, 0.001]
seeds = 2
tuning_seeds = [7, 8]
keep_weights = false
seeds_per_group = "auto"

[settings]
rounds = 2
"""
THRESHOLDS = """\
modes = ["running", "post_epoch"]
inits = ["default"]
seeds = 2
tasks = ["heart", { name = "digits", cut = 3, rounds = 2, data = { sites = 3 } }]
"""


def settings() -> dict[str, Any]:
    return tomllib.loads(EXPERIMENT)


def study_settings() -> dict[str, Any]:
    """A study of six tiny runs."""
    shared = {key: settings()[key] for key in ("data", "training", "rounds", "device")}
    shared["training"].pop("learning_rate")
    return {
        "name": "small",
        "tasks": ["synthetic"],
        "algorithms": ["local", "fedavg"],
        "learning_rates": [0.01, 0.001],
        "seeds": 1,
        "tuning_seeds": 1,
        "settings": shared,
    }


def read_experiment(folder: Path) -> object:
    from playerfl.runs.experiment import Experiment

    experiment = Experiment.from_toml(folder / "experiment.toml")
    experiment.build_algorithm()
    return experiment.to_toml()


def read_study_file(folder: Path) -> object:
    from playerfl.studies.plan import Study

    study = Study.from_toml(folder / "study.toml")
    return study.to_toml(), [line.tuning for line in study.lines]


def read_setting(folder: Path) -> object:
    from playerfl.runs.experiment import Experiment
    from playerfl.runs.settings_table import with_settings

    if not (folder / "settings.txt").exists():
        raise NotAnInput
    lines = (folder / "settings.txt").read_text(encoding="utf-8", errors="replace").splitlines()
    return Experiment.resolve(with_settings({"task": "synthetic"}, lines))


def read_thresholds_file(folder: Path) -> object:
    from playerfl.cli.research.thresholds import _study
    from playerfl.runs.settings_table import read_toml

    return _study(read_toml(folder / "thresholds.toml"))


def read_cases(folder: Path) -> object:
    from playerfl.cli.research.thresholds import _summary
    from playerfl.paper.thresholds import Case, CaseTable

    by_setting: dict[tuple[str, str], list[Case]] = {}
    for case in CaseTable(folder / "cases.csv").read():
        by_setting.setdefault((case.mode, case.init), []).append(case)
    return [_summary(cases) for cases in by_setting.values()]


def cases(folder: Path) -> None:
    from playerfl.paper.thresholds import CaseTable, case_of

    importance = {"north": {"a": 1e-4, "b": 2e-4, "c": 3e-3}, "south": {"a": 1e-4, "b": 1e-4, "c": 5e-3}}
    measured = [case_of(t, "running", "default", seed, 2, importance) for t in ("heart", "digits") for seed in (0, 1)]
    CaseTable(folder / "cases.csv").add(measured)
