"""Learning-rate schedules against torch's own, in loops written out in this file."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import lr_scheduler

import federations
from federations import QUICK, federate, largest_difference
from playerfl.algorithms import ALGORITHMS, Algorithm, PFedMe
from playerfl.errors import ConfigError
from playerfl.learning.schedules import Schedule
from playerfl.runs.api import run_experiments
from playerfl.runs.experiment import Experiment
from playerfl.runs.result import RunResult
from playerfl.runs.settings_table import with_settings
from playerfl.tasks.task import Task, own_task

ROUNDS, LOCAL_EPOCHS = 4, 3
EXPONENTIAL = {"training.schedule": "exponential", "training.schedule_factor": 0.7}
COSINE = {"training.schedule": "cosine"}
Scheduler = Callable[[torch.optim.Optimizer], lr_scheduler.LRScheduler]
TORCH: dict[str, tuple[dict[str, Any], Scheduler]] = {
    "exponential": (EXPONENTIAL, lambda o: lr_scheduler.ExponentialLR(o, 0.7)),
    "cosine": (COSINE, lambda o: lr_scheduler.CosineAnnealingLR(o, ROUNDS * LOCAL_EPOCHS)),
}
OPTIMIZERS: dict[str, tuple[dict[str, Any], Callable[[Any], torch.optim.Optimizer]]] = {
    "sgd": ({"training.optimizer": "sgd"}, lambda p: torch.optim.SGD(p, lr=0.01)),
    "adamw": ({}, lambda p: torch.optim.AdamW(p, lr=0.01)),
    "amsgrad": ({"training.amsgrad": True}, lambda p: torch.optim.AdamW(p, lr=0.01, amsgrad=True)),
}


def double_sites() -> dict[str, tuple[Tensor, Tensor]]:
    return {name: (x.double(), y) for name, (x, y) in federations.sites().items()}


def double_model() -> nn.Module:
    return federations.mlp().double()


def whole_batch_task() -> Task:
    """Every site trains on all of its rows, in one batch."""
    sites = {site: {"train": rows, "validation": rows, "test": rows} for site, rows in double_sites().items()}
    return own_task(double_model, sites)


WHOLE_BATCH = {"training.batch_size": 1000, "data.accept_small_sites": True, "training.local_epochs": LOCAL_EPOCHS}


def initial_model(algorithm: str | Algorithm) -> nn.Module:
    model = double_model()
    model.load_state_dict(federations.build(algorithm, whole_batch_task(), **WHOLE_BATCH).setup.initial)
    return model


def assert_found(result: RunResult, site: str, expected: nn.Module) -> None:
    for name, weight in result.weights[site].items():
        torch.testing.assert_close(weight, expected.state_dict()[name], atol=1e-12, rtol=0)


@pytest.mark.parametrize("trainer", ["loop", "stacked"])
@pytest.mark.parametrize("schedule", TORCH)
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_rates_fall_over_rounds_and_local_epochs_as_in_torch(optimizer: str, schedule: str, trainer: str) -> None:
    (settings, scheduler), (own_settings, build) = TORCH[schedule], OPTIMIZERS[optimizer]
    settings = {**WHOLE_BATCH, **settings, **own_settings, "trainer": trainer}
    found = federate("local", whole_batch_task(), rounds=ROUNDS, **settings)
    assert found.data["trainer"] == trainer
    for site, (inputs, targets) in double_sites().items():
        model = initial_model("local")
        steps = build(model.parameters())
        rates = scheduler(steps)
        for _ in range(ROUNDS * LOCAL_EPOCHS):
            steps.zero_grad()
            F.cross_entropy(model(inputs), targets).backward()  # type: ignore[no-untyped-call]
            steps.step()
            rates.step()
        assert_found(found, site, model)


@pytest.mark.parametrize("trainer", ["loop", "stacked"])
def test_both_rates_of_pfedme_fall(trainer: str) -> None:
    lam, rate, local_rate, factor = 2.0, 0.01, 0.3, 0.7
    algorithm = PFedMe(lam=lam, inner_steps=2, local_learning_rate=local_rate)
    found = federate(algorithm, whole_batch_task(), rounds=1, trainer=trainer, **WHOLE_BATCH, **EXPONENTIAL)
    for site, (inputs, targets) in double_sites().items():
        model = initial_model(algorithm)
        copies = [parameter.detach().clone() for parameter in model.parameters()]
        for epoch in range(LOCAL_EPOCHS):
            for _ in range(2):
                slopes = torch.autograd.grad(F.cross_entropy(model(inputs), targets), list(model.parameters()))
                with torch.no_grad():
                    for theta, slope, w in zip(model.parameters(), slopes, copies, strict=True):
                        theta -= rate * factor**epoch * (slope + lam * (theta - w))
            with torch.no_grad():
                for theta, w in zip(model.parameters(), copies, strict=True):
                    w -= local_rate * factor**epoch * lam * (w - theta)
        assert_found(found, site, model)


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", federations.quick_for(ALGORITHMS, "fedrep", "ditto", "pfedme", "player_fl"))
def test_the_stacked_trainer_follows_the_schedule_of_the_loop(algorithm: str) -> None:
    """Batches of 8 at sites of three sizes: their epochs end at different steps of a stack."""
    task = federations.double_task()
    settings = {**COSINE, "training.local_epochs": 2}
    stacked, loop = (federate(algorithm, task, trainer=t, **settings) for t in ("stacked", "loop"))
    assert (stacked.data["trainer"], loop.data["trainer"]) == ("stacked", "loop")
    assert largest_difference(stacked, loop) < 1e-10
    assert largest_difference(loop, federate(algorithm, task, trainer="loop")) > 1e-4


@pytest.mark.slow
def test_schedules_share_a_stack_and_keep_their_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    from playerfl.learning.stacked import training

    stacks: list[int] = []
    train = training._Stack.train

    def counted(stack: training._Stack) -> list[Any]:
        stacks.append(len(stack.jobs))
        return train(stack)

    monkeypatch.setattr(training._Stack, "train", counted)
    task = federations.task()

    def experiment(schedule: str, seed: int) -> Experiment:
        settings = {**QUICK, "training.local_epochs": 2, "training.schedule": schedule}
        return Experiment.resolve(with_settings({"seed": seed, "rounds": 3, "algorithm": "fedavg"}, settings), task)

    experiments = [experiment(schedule, seed) for schedule in ("constant", "exponential", "cosine") for seed in (0, 1)]
    together = run_experiments(experiments, [None] * len(experiments), task)
    assert set(stacks) == {len(experiments) * 3}
    for one, beside in zip(experiments, together, strict=True):
        (alone,) = run_experiments([one], [None], task)
        assert alone.score_rows == beside.score_rows
        assert largest_difference(alone, beside) == 0


def test_a_factor_of_one_changes_no_bit() -> None:
    def run(**settings: Any) -> RunResult:
        return federate("fedavg", **settings, **{"training.local_epochs": 2})

    same = run(**{"training.schedule": "exponential", "training.schedule_factor": 1.0})
    assert largest_difference(run(), same) == 0


def test_every_training_of_a_round_uses_the_rates_of_that_round() -> None:
    schedule = Schedule("exponential", 0.5, rounds=4)
    assert schedule.factors(3, 2, local_epochs=2) == (0.5**6, 0.5**7)
    assert schedule.factors(3, 1, local_epochs=2) == (0.5**6,)
    assert schedule.factors(3, 4, local_epochs=2) == (0.5**6, 0.5**7, 0.5**7, 0.5**7)
    assert schedule.factors(4, 2, local_epochs=2) == (1.0, 1.0)
    last = Schedule("cosine", rounds=50).factors(49, 1)[0]
    assert 0 < last < 1e-3


@pytest.mark.parametrize("schedule", ["constant", "cosine"])
def test_a_factor_without_an_exponential_schedule_is_refused(schedule: str) -> None:
    training = {"schedule": schedule, "schedule_factor": 0.5}
    with pytest.raises(ConfigError, match=f"schedule_factor = 0.5 has no effect with schedule = '{schedule}'"):
        Experiment.resolve({"task": "digits", "training": training})


def test_the_factor_defaults_to_nine_tenths_and_reads_back() -> None:
    experiment = Experiment.resolve({"task": "digits", "training": {"schedule": "exponential"}})
    assert experiment.training.plan(rounds=7).schedule == Schedule("exponential", 0.9, 7)
    assert Experiment.from_resolved(experiment.to_toml()).training == experiment.training
    assert "schedule_factor" not in Experiment.resolve({"task": "digits"}).to_toml()
