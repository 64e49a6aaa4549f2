"""The three moments at which the paper looks at layers, and every site's weights at each."""

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
    """Moment, then site: models after one epoch alone, after all of them alone, and after the last federated round.

    The federated models are the sites' own, after the local training of the last round: once averaged they would all
    be one, and as alike as can be. Where `federated` holds models already, they are taken. `watch` gives a listener
    for each of the runs.
    """
    runs: dict[str, dict[str, Any]] = {
        FIRST_EPOCH: {"algorithm": {"name": "local"}, "rounds": 1},
        INDEPENDENT: {"algorithm": {"name": "local"}},
    }
    if isinstance(federated, str):
        runs[FEDERATED] = {"algorithm": {"name": federated}, "eval_point": "post_local"}
    found: dict[str, dict[str, Weights]] = {}
    for moment, changes in runs.items():
        own = {key: value for key, value in table.items() if key not in changes}
        experiment = Experiment.resolve({**own, **changes, "selection": "last"}, task)
        if experiment.training.local_epochs != 1 and moment == FIRST_EPOCH:
            raise ConfigError("a round must be one epoch here; leave training.local_epochs at 1")
        result = drive(Run(experiment, setup, listener=watch(moment, experiment.rounds)).rounds())
        found[moment] = {site: result.weights[site] for site in result.sites}
    if not isinstance(federated, str):
        found[FEDERATED] = {site: federated[site] for site in sorted(federated)}
    return found
