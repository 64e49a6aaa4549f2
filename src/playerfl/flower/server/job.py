"""Job: what is fixed before a job starts, checked to fit together."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from torch import nn

from playerfl.algorithms import Algorithm
from playerfl.errors import ConfigError
from playerfl.flower.deployment import Deployment
from playerfl.flower.site.privacy import check_privacy
from playerfl.flower.wire.envelopes import Envelope
from playerfl.flower.wire.secure import check_secure
from playerfl.layers.layer_map import state_entries
from playerfl.runs.experiment import Experiment
from playerfl.runs.files import DataFile
from playerfl.runs.setup import seeded_model
from playerfl.tasks.load import load_task
from playerfl.tasks.task import Task
from playerfl.version import __version__
from playerfl.weights import Weights, digest


@dataclass(frozen=True)
class Job:
    """A deployment with everything the server derives from it. The server has no data."""

    deployment: Deployment
    experiment: Experiment
    algorithm: Algorithm
    build_model: Callable[[], nn.Module]
    initial: Weights
    """The seeded initial model; sites check that theirs is the same."""

    @classmethod
    def of(cls, deployment: Deployment, task: Task | None = None) -> Job:
        """`task`: default: the experiment's own, found by its name."""
        experiment = checked_experiment(deployment)
        task = task or load_task(experiment.task)
        options = experiment.data_options(task)
        build_model = partial(seeded_model, experiment.seed, task.for_options(options), options)
        model = build_model()
        entries = state_entries(model)
        buffers = entries.keys() - dict(model.named_parameters()).keys()
        check_privacy(deployment.privacy, statistics_travel=experiment.bn_stats == "follow" and bool(buffers))
        initial = {name: entry.detach().clone() for name, entry in entries.items()}
        return cls(deployment, experiment, experiment.build_algorithm(), build_model, initial)

    @property
    def header(self) -> Envelope:
        """The part that all envelopes of the job have in common."""
        deployment = self.deployment
        return Envelope(
            deployment.job, "", deployment.experiment, __version__, digest(self.initial), privacy=deployment.privacy
        )

    @property
    def description(self) -> DataFile:
        """Like `Setup.description`, as far as it is known without data."""
        return {
            "notes": [],
            "sites": {},
            "partition_hash": None,
            "paper": None,
            "model": {name: list(entry.shape) for name, entry in self.initial.items()},
            # As requested: each site decides for itself whether its model can be stacked.
            "trainer": self.experiment.trainer,
        }


def checked_experiment(deployment: Deployment) -> Experiment:
    """The experiment of a deployment; ConfigError if the two do not go together."""
    experiment = Experiment.from_resolved(deployment.experiment)
    if deployment.privacy.secure_range:
        check_secure(experiment.build_algorithm(), deployment.needed)
    if experiment.selection == "round_best" and deployment.needed < len(deployment.sites):
        raise ConfigError(
            f'selection = "round_best" compares rounds over all sites; add --min-sites {len(deployment.sites)}, '
            'or choose selection = "client_best"'
        )
    return experiment
