"""The check and the run agree: what one of them stops, the other refuses."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from command_line import playerfl
from messy_folders import ROWS, at, change, checked, frames, patients
from own_data import csv
from playerfl.errors import PlayerflError
from playerfl.runs.experiment import Experiment
from playerfl.runs.setup import prepare_setup
from playerfl.tasks.folder import folder_task


def run_refuses(folder: Path, options: dict[str, Any]) -> str | None:
    task = folder_task(folder)
    try:
        prepare_setup(Experiment.resolve({"task": str(folder), "algorithm": "local", "data": options}, task), task)
    except PlayerflError as problem:
        return str(problem)
    return None


def gaps_in_one_class(folder: Path) -> None:
    """All rows of a class at a site lack a value."""
    sites = frames()
    sites["west"].loc[sites["west"]["outcome"] == "yes", "age"] = np.nan
    csv(folder, **sites)


def lost_class(folder: Path) -> None:
    sites = frames()
    for frame in sites.values():
        frame.loc[::10, "outcome"] = "moved"
        frame.loc[::10, "age"] = np.nan
    csv(folder, **sites)


def few_groups(folder: Path) -> None:
    sites = {site: frame.assign(patient=np.arange(ROWS) % 2) for site, frame in frames().items()}
    csv(folder, **sites)


def one_group_has_a_class(folder: Path) -> None:
    sites = frames()
    for frame in sites.values():
        frame["patient"] = np.arange(ROWS) // 4
        frame["outcome"] = np.where(frame["patient"] == 7, "ill", "well")
    csv(folder, **sites)


CASES: dict[str, tuple[Callable[[Path], object], dict[str, Any], bool]] = {
    "fine": (lambda folder: csv(folder, **frames()), {}, False),
    "only a target": (
        lambda folder: csv(folder, **{s: f[["outcome"]] for s, f in frames().items()}),
        {},
        True,
    ),
    "all columns dropped": (
        lambda folder: csv(folder, **frames()),
        {"drop_columns": ["age", "pressure", "glucose", "ward"]},
        True,
    ),
    "everything dropped": (
        lambda folder: csv(folder, **frames()),
        {"drop_columns": ["age", "pressure", "glucose", "ward", "outcome"]},
        True,
    ),
    "one row": (
        lambda folder: csv(folder, north=patients(1), south=patients(2, 1)),
        {"accept_small_sites": True},
        True,
    ),
    "three rows": (
        lambda folder: csv(folder, north=patients(1), south=patients(2, 3)),
        {"accept_small_sites": True},
        False,
    ),
    "a small site": (lambda folder: csv(folder, north=patients(1), south=patients(2, 20)), {}, True),
    "a site left with one class": (gaps_in_one_class, {"missing": "drop"}, True),
    "means instead": (gaps_in_one_class, {"missing": "mean"}, False),
    "a class lost everywhere": (lost_class, {"missing": "drop"}, False),
    "no row left": (
        lambda folder: csv(folder, **change(at("west", "age", slice(None), np.nan))),
        {"missing": "drop"},
        True,
    ),
    "two groups": (few_groups, {"group": "patient", "target": "outcome"}, True),
    "a class in one group": (one_group_has_a_class, {"group": "patient"}, False),
    "groups across sites": (one_group_has_a_class, {"group": "patient", "groups_span_sites": True}, False),
    "the group is the target": (few_groups, {"group": "outcome", "target": "outcome"}, True),
    "an unknown code": (lambda folder: csv(folder, **frames()), {"missing_codes": "weight=99"}, True),
    "a setting for images": (lambda folder: csv(folder, **frames()), {"group_pattern": "(.+)_"}, True),
}


@pytest.mark.parametrize("case", CASES)
def test_the_check_stops_what_a_run_refuses(tmp_path: Path, case: str) -> None:
    make, options, is_refused = CASES[case]
    make(tmp_path)
    refused = run_refuses(tmp_path, options)
    stops = [finding.text for finding in checked(tmp_path, **options).having("stop")]
    assert (refused is not None) == is_refused, refused
    assert bool(stops) == is_refused, (stops, refused)


def test_a_class_without_rows_is_named(tmp_path: Path) -> None:
    lost_class(tmp_path)
    texts = [finding.text for finding in checked(tmp_path, missing="drop").having("warning")]
    assert any("no row of class moved is left" in text for text in texts)


def test_splits_of_other_runs_are_tried(tmp_path: Path) -> None:
    """One row of the second class: whether it is for training depends on the split."""
    rare = patients(2)
    rare["outcome"] = np.where(rare.index < 1, "yes", "no")
    folder = csv(tmp_path, north=patients(1), south=rare)
    seed = next(seed for seed in range(20) if not checked(folder, split_seed=seed).having("stop"))
    found = checked(folder, split="per_run", split_seed=seed)
    assert any("every run has its own split" in finding.text for finding in found.having("warning"))
    assert not any("its own split" in finding.text for finding in checked(folder, split_seed=seed).findings)


def test_the_command_prepares_a_run_and_says_what_it_refuses(tmp_path: Path) -> None:
    folder = csv(tmp_path, **frames())
    settings = ("--set", 'metrics=["mae"]')
    said = playerfl("data", "check", str(folder), "--json", *settings, cwd=tmp_path)
    assert said.returncode == 1, said.stdout
    assert '"training"' in said.stdout


@pytest.mark.slow
def test_strict_refuses_on_any_warning(tmp_path: Path) -> None:
    folder = csv(tmp_path, **{s: f.assign(number=range(ROWS))[["number", *f.columns]] for s, f in frames().items()})
    assert playerfl("data", "check", str(folder), "--json", cwd=tmp_path).returncode == 0
    assert playerfl("data", "check", str(folder), "--json", "--strict", cwd=tmp_path).returncode == 1
    strict = ("--set", "data.drop_columns=number", "--strict")
    assert playerfl("data", "check", str(folder), "--json", *strict, cwd=tmp_path).returncode == 0


def test_pictures_of_one_class_at_a_site_are_stopped(tmp_path: Path) -> None:
    from PIL import Image

    rng = np.random.default_rng(0)
    for site, kinds in {"north": ("mole", "scar"), "south": ("mole",)}.items():
        for kind in kinds:
            (tmp_path / site / kind).mkdir(parents=True)
            for i in range(60 // len(kinds)):
                Image.fromarray(rng.integers(0, 255, (8, 8), dtype=np.uint8)).save(tmp_path / site / kind / f"{i}x.png")
    assert run_refuses(tmp_path, {}) is not None
    assert "south has only class mole" in checked(tmp_path).having("stop")[0].text
    assert checked(tmp_path, accept_small_sites=True).having("stop") == []
    assert "only for tables" in checked(tmp_path, kind="classes").having("stop")[0].text


def test_tasks_in_memory_are_checked_as_a_run_does(tmp_path: Path) -> None:
    (tmp_path / "mytask.py").write_text(
        "import torch\nfrom torch import nn\nimport playerfl\n"
        "x, y = torch.randn(20, 4), torch.arange(20) % 2\n"
        "task = playerfl.own_task(lambda: nn.Linear(4, 2), {'north': (x, y), 'south': (x + 1, y)})\n"
    )
    said = playerfl("data", "check", "mytask.py:task", "--json", "--set", "training.batch_size=32", cwd=tmp_path)
    assert said.returncode == 1
    assert "fewer than training.batch_size 32" in said.stdout
