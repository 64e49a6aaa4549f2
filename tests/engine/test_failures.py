"""A failure in a user's code says at which site, in which round and of which algorithm it happened."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

import playerfl
from command_line import playerfl as command
from federations import QUICK, mlp, sites, task
from playerfl.algorithms import ALGORITHMS, FedAvg
from playerfl.errors import sentence_of
from playerfl.federation.messages import SiteId, Upload
from playerfl.federation.server import Server
from playerfl.learning.stacked import training
from playerfl.tasks.task import Task, own_task

MARK = 77.0
TRAINERS = pytest.mark.parametrize("trainer", ["loop", "stacked"])


def marked(site: str, split: str | None = None) -> dict[str, Any]:
    """Small sites; the rows of one of them (or of one of its splits) carry a mark in their last feature."""
    marked_sites = {}
    for name, (inputs, targets) in sites().items():
        parts = {}
        for part, rows in {"train": slice(0, 16), "validation": slice(16, 24), "test": slice(24, 32)}.items():
            values = inputs[rows].clone()
            values[:, -1] = MARK if name == site and split in (None, part) else 0.0
            parts[part] = (values, targets[rows])
        marked_sites[name] = parts
    return marked_sites


class MarkedModel(torch.nn.Module):
    """Passes the mark of its inputs on to the loss, as an extra column of its output."""

    def __init__(self) -> None:
        super().__init__()
        self.net = mlp()

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([self.net(x * (x != MARK)), x[..., -1:]], dim=-1)


class FailingLoss:
    """Divides by zero at marked rows once a listener has set `begun`, after round 1."""

    begun = False

    def __call__(self, output: Tensor, targets: Tensor) -> Tensor:
        if self.begun and bool((output[..., -1] == MARK).any()):
            1 / 0  # noqa: B018
        return F.cross_entropy(output[..., :-1], targets, reduction="none")


def run_failing(loss: FailingLoss, a_task: Task, trainer: str, algorithm: str = "fedavg", **settings: Any) -> None:
    def begin(progress: playerfl.Progress) -> None:
        loss.begun = progress.round >= 1

    settings = {**QUICK, "trainer": trainer, "data.accept_small_sites": True, **settings}
    playerfl.run(a_task, algorithm, rounds=3, settings=settings, listener=begin)


@TRAINERS
@pytest.mark.parametrize(
    ("split", "settings", "doing"),
    [
        ("train", {}, "training in round 2"),
        ("test", {}, "evaluating the model of round 1"),
        ("validation", {"eval_point": "post_local"}, "evaluating the model of round 2"),
    ],
)
def test_a_failing_loss_is_blamed_on_the_site_whose_rows_it_was_given(
    trainer: str, split: str, settings: dict[str, Any], doing: str
) -> None:
    loss = FailingLoss()
    a_task = own_task(MarkedModel, marked("site-1", split), loss=loss)
    with pytest.raises(ZeroDivisionError) as failure:
        run_failing(loss, a_task, trainer, **settings)
    assert sentence_of(failure.value) == (
        f"site 'site-1' failed while {doing} of fedavg: ZeroDivisionError: division by zero"
    )


@TRAINERS
def test_a_failing_loss_is_blamed_on_the_unseen_site_that_joins(trainer: str) -> None:
    loss = FailingLoss()
    a_task = own_task(MarkedModel, marked("site-1"), loss=loss)
    with pytest.raises(ZeroDivisionError) as failure:
        run_failing(loss, a_task, trainer, unseen=["site-1"])
    assert sentence_of(failure.value) == (
        "site 'site-1' failed while tuning the model of round 3 of fedavg: ZeroDivisionError: division by zero"
    )


def test_a_stack_that_fails_only_as_a_whole_names_all_that_were_in_it(monkeypatch: pytest.MonkeyPatch) -> None:
    train = training.train

    def too_large(jobs: Any) -> Any:
        if len(jobs) > 1:
            raise MemoryError("too large")
        return train(jobs)

    monkeypatch.setattr(training, "train", too_large)
    with pytest.raises(MemoryError) as failure:
        playerfl.run(task(), "fedavg", rounds=1, settings={**QUICK, "trainer": "stacked"})
    assert sentence_of(failure.value) == "models trained together failed ({}): MemoryError: too large".format(
        "; ".join(f"site 'site-{i}' failed while training in round 1 of fedavg" for i in range(3))
    )


def test_a_users_index_error_keeps_its_type() -> None:
    def loss(output: Tensor, targets: Tensor) -> Tensor:
        return F.cross_entropy(output, targets, reduction="none") * [1.0][len(targets)]

    with pytest.raises(IndexError, match="list index out of range"):
        playerfl.run(task(loss=loss), "local", rounds=1, settings=QUICK)


@dataclass(frozen=True)
class FailingMerge(FedAvg):
    def server_merge(self, server: Server, uploads: Mapping[SiteId, Upload]) -> None:
        raise KeyError("momentum")


def test_a_failing_merge_is_blamed_on_the_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(ALGORITHMS, "failing", FailingMerge)
    with pytest.raises(KeyError) as failure:
        playerfl.run(task(), "failing", rounds=1, settings=QUICK)
    assert sentence_of(failure.value) == "the server failed while merging round 1 of failing: KeyError: 'momentum'"


OWN_TASK = '''
import torch
from torch.nn import functional as F
from playerfl.tasks.task import own_task


def loss(output, targets):
    losses = F.cross_entropy(output[..., :-1], targets, reduction="none")
    return losses / weight_of(output)


def weight_of(output):
    """Fails at the training rows of one site, once its two batches of round 1 are over."""
    global calls
    if bool((output[..., -1] == 77.0).any()):
        calls += 1
        return 1 // (calls < LIMIT)
    return 1


calls = 0
LIMIT = 3


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(3, 2)

    def forward(self, x):
        return torch.cat([self.layer(x * (x != 77.0)), x[..., -1:]], dim=-1)


def part(rows, mark):
    inputs = torch.randn(rows, 3, generator=torch.Generator().manual_seed(rows))
    inputs[:, -1] = mark
    return inputs, torch.arange(rows) % 2


north, south = ({"train": part(16, mark), "validation": part(8, 0.0), "test": part(8, 0.0)} for mark in (0.0, 77.0))
task = own_task(Model, {"north": north, "south": south}, loss=loss)
'''


@TRAINERS
def test_the_command_prints_a_sentence_and_the_frames_of_the_users_file(trainer: str, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(OWN_TASK)
    options = ["--rounds", 3, "--quiet", "--set", "training.batch_size=8", "--set", "data.accept_small_sites=true"]
    options += ["--set", f"trainer={trainer}"]
    output = command("run", "mine.py:task", "-a", "fedavg", *options, cwd=tmp_path)
    assert output.returncode == 1
    sentence, *traceback = output.stderr.strip().splitlines()
    assert sentence == (
        "playerfl: site 'south' failed while training in round 2 of fedavg: "
        "ZeroDivisionError: integer division or modulo by zero"
    )
    assert traceback[0] == "Traceback (most recent call last):"
    frames = [line.split(", in ")[1] for line in traceback if line.startswith("  File ")]
    assert frames == ["loss", "weight_of"]
    assert all("mine.py" in line for line in traceback if line.startswith("  File "))
    assert traceback[-1] == "ZeroDivisionError: integer division or modulo by zero"


DIVERGING_TASK = """
import torch
from torch.nn import functional as F
from playerfl.tasks.task import own_task


def loss(output, targets):
    if not output.isfinite().all():
        raise FloatingPointError("the model diverged")
    return F.cross_entropy(output, targets, reduction="none")


def site(seed):
    inputs = torch.randn(60, 3, generator=torch.Generator().manual_seed(seed))
    return inputs, (inputs[:, 0] > 0).long()


task = own_task(lambda: torch.nn.Linear(3, 2), [site(0), site(1)], loss=loss)
"""


def test_a_study_records_where_a_run_failed_and_runs_the_rest_of_its_stack_again(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(DIVERGING_TASK)
    study = {
        "name": "diverging",
        "tasks": [f"{tmp_path / 'mine.py'}:task"],
        "algorithms": ["fedavg"],
        "seeds": 2,
        "tuning_seeds": 1,
        "settings": {"rounds": 2, "training": {"batch_size": 16}, "trainer": "stacked"},
    }
    with_failures = tmp_path / "with failures"
    playerfl.study({**study, "learning_rates": [1e38, 0.01, 0.02]}, out=with_failures, backend="serial", quiet=True)
    (failed,) = (json.loads(file.read_text()) for file in (with_failures / "failed").iterdir())
    assert failed["reason"] == (
        "site 'site-0' failed while training in round 1 of fedavg: FloatingPointError: the model diverged"
    )
    frames = [line.strip() for line in failed["traceback"] if line.startswith("  File ")]
    assert frames == [f'File "{tmp_path / "mine.py"}", line 9, in loss']
    playerfl.study({**study, "learning_rates": [0.01, 0.02]}, out=tmp_path / "without", backend="serial", quiet=True)
    runs = {file.name: file.read_bytes() for file in (tmp_path / "without" / "cells").iterdir()}
    assert runs == {file.name: file.read_bytes() for file in (with_failures / "cells").iterdir()}
