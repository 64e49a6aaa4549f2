"""Job: everything that is fixed before a job starts, checked for consistency."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from playerfl.algorithms import Algorithm
from playerfl.data.schema import Schema
from playerfl.engine.loop import fitting_sites
from playerfl.errors import ConfigError
from playerfl.flower.deployment import Deployment
from playerfl.flower.server.model_layers import ModelLayers
from playerfl.flower.site.privacy import check_privacy
from playerfl.flower.wire.envelopes import Envelope
from playerfl.flower.wire.secure import check_secure
from playerfl.layers.layer_map import frozen_entries, state_entries
from playerfl.learning.losses import never_negative
from playerfl.learning.metrics.catalogue import chosen_metrics
from playerfl.learning.metrics.metric import MetricRecord
from playerfl.runs.experiment import Experiment
from playerfl.runs.files import DataFile
from playerfl.runs.measures.declared import metric_records
from playerfl.runs.setup import frozen_record, positive_class, seeded_model
from playerfl.tasks.load import load_task
from playerfl.tasks.named_models import with_model
from playerfl.tasks.task import Task
from playerfl.version import __version__
from playerfl.weights import Weights, digest

LEAST_OWN_LOSS = -1e6
"""For a task's own loss, which may be negative: without any bound, one site's loss would choose the best round."""


@dataclass(frozen=True)
class MetricsDeclared:
    """What a report must know about the metrics that sites send: above all, which direction is better."""

    metrics: Mapping[str, MetricRecord] = field(default_factory=dict)
    positive: int = 1
    classes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Job:
    """A deployment with everything the server derives from it. The server has no data."""

    deployment: Deployment
    experiment: Experiment
    algorithm: Algorithm
    initial: Weights
    """The seeded initial model; sites check that theirs is the same."""
    layers: ModelLayers
    schema: Schema | None = None
    """The columns and classes of the server's own template, if it has one."""
    declared: MetricsDeclared = field(default_factory=MetricsDeclared)
    least_loss: float = LEAST_OWN_LOSS
    """The lowest loss that a site can have measured."""

    @classmethod
    def of(cls, deployment: Deployment, task: Task | None = None) -> Job:
        """The job of a deployment; `task` defaults to the experiment's."""
        experiment = checked_experiment(deployment)
        task = with_model(task or load_task(experiment.task), experiment.model)
        options = experiment.data_options(task)
        adapted = task.for_options(options)
        model = seeded_model(experiment.seed, adapted, options)
        entries = state_entries(model)
        initial = {name: entry.detach().clone() for name, entry in entries.items()}
        layers = ModelLayers.of(model, experiment, task)
        positive = positive_class(experiment, adapted)
        declared = MetricsDeclared(
            metric_records(chosen_metrics(experiment.metrics, adapted.metrics, positive)), positive, adapted.classes
        )
        algorithm = experiment.build_algorithm()
        if layers.as_registered is not None:
            check_privacy(deployment.privacy, algorithm, layers.as_registered, initial)
        least_loss = 0.0 if never_negative(adapted.loss) else LEAST_OWN_LOSS
        return cls(deployment, experiment, algorithm, initial, layers, adapted.schema, declared, least_loss)

    @property
    def header(self) -> Envelope:
        """The part that all envelopes of the job have in common."""
        deployment = self.deployment
        return Envelope(
            deployment.job,
            "",
            deployment.experiment,
            __version__,
            digest(self.initial),
            privacy=deployment.privacy,
            merge_sites=merged_sites(deployment, self.experiment),
        )

    @property
    def description(self) -> DataFile:
        """Like `Setup.description`, as far as it is known without data."""
        described: DataFile = {
            "notes": [],
            "sites": {},
            "partition_hash": None,
            "paper": None,
            "model": {name: list(entry.shape) for name, entry in self.initial.items()},
            # As requested: each site decides for itself whether its model can be stacked.
            "trainer": self.experiment.trainer,
            "metrics": dict(self.declared.metrics),
        }
        described.update(frozen_record(self.initial, frozen_entries(self.layers.model)))
        if self.declared.positive != 1:
            described["positive_class"] = self.declared.positive
        if self.declared.classes:
            described["class_names"] = list(self.declared.classes)
        return described


def merged_sites(deployment: Deployment, experiment: Experiment) -> int:
    """The smallest number of sites whose uploads are merged in any round."""
    return min(deployment.needed, fitting_sites(len(deployment.sites), experiment.participation))


def checked_experiment(deployment: Deployment) -> Experiment:
    """The experiment of a deployment; ConfigError if they are incompatible."""
    experiment = Experiment.from_resolved(deployment.experiment)
    if experiment.unseen:
        raise ConfigError(
            f"unseen = {', '.join(experiment.unseen)}: only a run on one machine has sites that join after training; "
            "leave unseen out, and give only sites that train"
        )
    if deployment.privacy.secure_range:
        check_secure(experiment.build_algorithm(), merged_sites(deployment, experiment))
        if not experiment.merge.build().is_mean:
            raise ConfigError(
                "secure aggregation shows the server only the mean of all uploads; merge.rule and merge.clip_norm need "
                "the uploads themselves, so leave out one or the other"
            )
    if experiment.selection in ("by_owner", "round_best") and deployment.needed < len(deployment.sites):
        raise ConfigError(
            f'selection = "{experiment.selection}" compares rounds over all sites; '
            f'add --min-sites {len(deployment.sites)}, or choose selection = "client_best"'
        )
    return experiment
