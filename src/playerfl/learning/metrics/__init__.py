"""Metrics: functions with declarations. `catalogue` has those that come with the package, by name."""

from playerfl.learning.metrics.classes import DIVERGED, accuracy, f1_of_counts, macro_f1, predictions
from playerfl.learning.metrics.metric import Metric, metric
from playerfl.learning.metrics.scoring import of_many

__all__ = ["DIVERGED", "Metric", "accuracy", "f1_of_counts", "macro_f1", "metric", "of_many", "predictions"]
