"""The three moments at which the paper examines layers, and every site's weights at each."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from playerfl.engine.scheduler import drive
from playerfl.errors import ConfigError
from playerfl.runs.experiment import Experiment
from playerfl.runs.run import Listener, Run
from playerfl.runs.setup import Setup
from playerfl.tasks.task import Task
from playerfl.weights import Weights

FIRST_EPOCH = "after the first epoch"
INDEPENDENT = "end of independent training"
FEDERATED = "end of federated training"
MOMENTS = (FIRST_EPOCH, INDEPENDENT, FEDERATED)


def weights_at_moments(
    table: Mapping[str, Any],
    task: Task,
    setup: Setup,
    *,
    federated: str | Mapping[str, Weights] = "fedavg",
    watch: Callable[[str, int], Listener | None] = lambda name, rounds: None,
) -> dict[str, dict[str, Weights]]:
    """Models by moment and site: after one epoch of training alone, after all of them, after the last federated round.

    The federated models are those after the local training of the last round: once averaged, they would all be
    identical. If `federated` holds models, those are used. `watch` returns a listener for each of the runs.
    """
    runs: dict[str, dict[str, Any]] = {
        FIRST_EPOCH: {"algorithm": {"name": "local"}, "rounds": 1},
        INDEPENDENT: {"algorithm": {"name": "local"}},
    }
    if isinstance(federated, str):
        runs[FEDERATED] = {"algorithm": {"name": federated}, "eval_point": "post_local"}
    weights: dict[str, dict[str, Weights]] = {}
    for moment, changes in runs.items():
        kept = {key: value for key, value in table.items() if key not in changes}
        experiment = Experiment.resolve({**kept, **changes, "selection": "last"}, task)
        if experiment.training.local_epochs != 1 and moment == FIRST_EPOCH:
            raise ConfigError("an analysis needs rounds of one epoch; leave training.local_epochs at 1")
        result = drive(Run(experiment, setup, listener=watch(moment, experiment.rounds)).rounds())
        weights[moment] = {site: result.weights[site] for site in result.sites}
    if not isinstance(federated, str):
        weights[FEDERATED] = {site: federated[site] for site in sorted(federated)}
    return weights
