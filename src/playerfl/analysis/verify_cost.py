"""How long `verify_cut` would take: from short runs if they are cheap, else from the measured epoch."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from playerfl.analysis.layer_analysis import analysis_table
from playerfl.analysis.verify import cuts_to_verify
from playerfl.engine.scheduler import drive
from playerfl.layers.recommendation import Recommendation
from playerfl.learning.job import EvalJob
from playerfl.runs.api import limited_threads
from playerfl.runs.experiment import Experiment
from playerfl.runs.run import Run
from playerfl.runs.setup import Setup, prepare_setup
from playerfl.tasks.task import Task

_SHORT_RUNS = (1, 2, 6)
"""Rounds of the runs that are timed; the first one warms up."""
_MOST_SECONDS = 1.0
"""An epoch at all sites that takes longer is not repeated for an estimate."""


def verification_seconds(
    task: Task,
    recommendation: Recommendation,
    seconds_per_example: float,
    *,
    rounds: int | None = None,
    seeds: int = 3,
    settings: Mapping[str, Any] | Sequence[str] = (),
) -> float:
    """Seconds that comparing the cuts would take here and now: training, evaluation and merging.

    `seconds_per_example`: what training cost per example when the layers were measured.
    """
    fixed = {"name": "player_fl", "rule": "fixed", "fixed_cut": recommendation.cut.index}
    experiment = Experiment.resolve({**analysis_table(task, rounds, settings), "algorithm": fixed}, task)
    with limited_threads(experiment.threads):
        began = time.perf_counter()
        setup = prepare_setup(experiment, task)
        preparing = time.perf_counter() - began
        epoch = seconds_per_example * sum(len(data.train) for data in setup.sites.values())
        if epoch > _MOST_SECONDS:
            a_run = experiment.rounds * (experiment.training.local_epochs * epoch + _evaluating(setup))
        else:
            a_run = _extrapolated(experiment, setup)
    return seeds * (preparing + len(cuts_to_verify(recommendation)) * a_run)


def _evaluating(setup: Setup) -> float:
    """Seconds for one evaluation at every site."""
    began = time.perf_counter()
    for data in setup.sites.values():
        EvalJob(setup.learner, setup.initial, {"validation": data.validation, "test": data.test}).run()
    return time.perf_counter() - began


def _extrapolated(experiment: Experiment, setup: Setup) -> float:
    """From two short runs of different length: the difference is the cost of the further rounds."""
    spent = {}
    for rounds in dict.fromkeys(min(rounds, experiment.rounds) for rounds in _SHORT_RUNS):
        run = Run(experiment.model_copy(update={"rounds": rounds}), setup)
        began = time.perf_counter()
        drive(run.rounds())
        spent[rounds] = time.perf_counter() - began
    *_, few, more = (0, 0, *spent)
    a_round = (spent[more] - spent.get(few, 0.0)) / (more - few)
    return spent[more] + max(a_round, 0.0) * (experiment.rounds - more)
