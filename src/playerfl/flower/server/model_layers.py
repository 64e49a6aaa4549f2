"""ModelLayers: the layers of the server's own model, which decide what sites may say about theirs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from torch import nn

from playerfl.errors import LayerError
from playerfl.federation.messages import SiteId
from playerfl.layers.derive import Granularity
from playerfl.layers.layer_map import BatchNormStatistics, LayerMap, TiePolicy
from playerfl.runs.experiment import Experiment
from playerfl.tasks.task import Task


@dataclass(frozen=True)
class ModelLayers:
    """How the server's model divides into layers: by its own modules, and by a forward pass if it has an example."""

    model: nn.Module
    example: Callable[[], Any]
    """A batch of inputs. May raise anything: most servers have no data."""
    tie_policy: TiePolicy = "first"
    statistics: BatchNormStatistics = "follow"
    granularity: Granularity = "block"

    @classmethod
    def of(cls, model: nn.Module, experiment: Experiment, task: Task) -> ModelLayers:
        """`task`: the experiment's, whose template the server may have."""
        options = experiment.data_options(task)

        def example() -> Any:
            sites = task.for_options(options).load_sites(options)
            return next(iter(sites[min(sites)].train.batches(2)))[0]

        return cls(model, example, experiment.tie_policy, experiment.bn_stats, experiment.granularity)

    @cached_property
    def as_registered(self) -> LayerMap | None:
        """Without an example: in the order in which the model's modules were registered."""
        with suppress(LayerError):
            return self._derived(None)
        return None

    @cached_property
    def as_used(self) -> LayerMap | None:
        """In the order in which data flows; None if the server has no example."""
        try:
            return self._derived(self.example())
        except Exception:  # a user's task may raise anything where it finds no data
            return None

    def _derived(self, example: Any) -> LayerMap:
        return LayerMap.of(
            self.model,
            example,
            tie_policy=self.tie_policy,
            statistics=self.statistics,
            granularity=self.granularity,
        )

    def agreed(self, stated: Mapping[SiteId, LayerMap]) -> LayerMap | None:
        """The layers of the job, given what each site says about its own; None if no site can be right.

        The server's own model decides. Only a server without an example does not know the order of flow; if a site
        then states a different order from that of registration, the one that most sites state is used.
        """
        registered = self.as_registered
        if registered is not None and all(same_layers(layers, registered) for layers in stated.values()):
            return registered
        if self.as_used is not None:
            return self.as_used
        possible = {site: layers for site, layers in sorted(stated.items()) if self._possible(layers)}
        votes = Counter(_form(layers) for layers in possible.values())
        if not votes:
            return None
        most = max(votes.values())
        candidates = [layers for layers in possible.values() if votes[_form(layers)] == most]
        own = [layers for layers in candidates if registered is not None and same_layers(layers, registered)]
        return (own or candidates)[0]

    def _possible(self, layers: LayerMap) -> bool:
        """Whether a map follows from this model and the groups it lists; a site does not decide sizes."""
        try:
            rebuilt = LayerMap.from_groups(self.model, list(layers.entries.items()), self.tie_policy, self.statistics)
        except LayerError:
            return False
        return same_layers(rebuilt, layers)


def same_layers(left: LayerMap, right: LayerMap) -> bool:
    """Whether two maps are equal, order included: two dicts are equal in any order, but a cut depends on it.

    >>> a, b = ("a", ("a.weight",)), ("b", ("b.weight",))
    >>> same_layers(LayerMap(dict([a, b]), {"a": 1, "b": 1}), LayerMap(dict([b, a]), {"a": 1, "b": 1}))
    False
    """
    return left == right and left.names == right.names


def _form(layers: LayerMap) -> tuple[tuple[str, tuple[str, ...]], ...]:
    return tuple(layers.entries.items())
