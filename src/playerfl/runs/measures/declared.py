"""A metric's declarations for a report: those stored with a run, or else by its name."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from playerfl.learning.metrics.catalogue import find_metric
from playerfl.learning.metrics.metric import Direction, Metric, MetricRecord, Unit, always_defined
from playerfl.runs.files import DataFile


@dataclass(frozen=True)
class Declared:
    """A metric's name and declarations.

    >>> declared_as("brier").lower_is_better, declared_as("f1").title, declared_as("my_own").title
    (True, 'Macro-F1', 'my_own')
    """

    name: str
    title: str
    direction: Direction = "higher"
    unit: Unit = ""
    averaging: str = ""
    bundled: bool = True
    always_defined: bool = True
    """Whether it has a value for any test rows, so that NaN can only mean that a model diverged."""

    @property
    def lower_is_better(self) -> bool:
        return self.direction == "lower"

    @property
    def in_percent(self) -> bool:
        """Whether it is shown in percent."""
        return self.unit == "share"


def metric_records(metrics: Mapping[str, Metric]) -> dict[str, MetricRecord]:
    """The declarations of metrics as a run stores them, in order."""
    return {name: metric.record(bundled=_same(metric, find_metric(name))) for name, metric in metrics.items()}


def _same(metric: Metric, known: Metric | None) -> bool:
    """Whether a metric is that of the catalogue: metrics of probabilities are created for each positive class."""
    if known is None or metric.weighted is None or known.weighted is None:
        return False
    plain, other = (getattr(weighted, "func", weighted) for weighted in (metric.weighted, known.weighted))
    return plain is other


def declared_as(name: str, record: MetricRecord | None = None) -> Declared:
    """The declarations of a metric; one that is not known (a user's own, of an early version): higher is better."""
    if record is not None:
        title = record["title"] or name
        return Declared(
            name,
            title,
            record["direction"],
            record["unit"],
            record["averaging"],
            record["bundled"],
            _always(name, record),
        )
    if name == "loss":
        return Declared(name, "Loss", "lower")
    metric = find_metric(name)
    if metric is not None:
        return Declared(name, metric.title, metric.direction, metric.unit, metric.averaging, True, _always(name))
    # Variants like `f1_true` are shares too.
    share = name.partition("_")[0] in ("f1", "accuracy")
    return Declared(name, name, unit="share" if share else "", bundled=False, always_defined=False)


def _always(name: str, record: MetricRecord | None = None) -> bool:
    metric = find_metric(name)
    return metric is not None and metric.undefined is always_defined and (record is None or record["bundled"])


def declarations(data: Iterable[DataFile], names: Iterable[str]) -> dict[str, Declared]:
    """The declarations of these metrics; where runs disagree, those of the first."""
    records: dict[str, MetricRecord] = {}
    for described in data:
        for name, record in described.get("metrics", {}).items():
            records.setdefault(name, record)
    return {name: declared_as(name, records.get(name)) for name in names}
