"""Personalised, layer-wise, cross-silo federated learning: which layers to share, and what each site gains.

>>> import playerfl
>>> result = playerfl.run("digits", "player_fl", rounds=1, seed=0)
>>> len(result.sites)
5
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from playerfl.version import __version__

if TYPE_CHECKING:
    from playerfl.errors import PlayerflError
    from playerfl.export.predict import predict
    from playerfl.export.write import export_model
    from playerfl.layers.cut import choose_cut, transition_point
    from playerfl.layers.layer_map import LayerMap
    from playerfl.layers.probe import SensitivityProbe
    from playerfl.layers.recommend import recommend
    from playerfl.layers.recommendation import Recommendation
    from playerfl.layers.sensitivity import federation_sensitivity, layer_importance
    from playerfl.learning.metrics.metric import Metric, metric
    from playerfl.probe.measure import probe_sites
    from playerfl.report.compute.comparison import compare
    from playerfl.report.plots.recommendation import recommendation_figure
    from playerfl.runs.api import load_result, resume, run
    from playerfl.runs.experiment import Experiment
    from playerfl.runs.result import RunResult
    from playerfl.runs.run import StopRun
    from playerfl.studies.api import StudyResult, study
    from playerfl.studies.directory import StudyDirectory
    from playerfl.tasks.task import Task, own_task

# Imported on first use, so that `import playerfl` (and --help) does not import torch.
_HOMES = {
    "Experiment": "playerfl.runs.experiment",
    "LayerMap": "playerfl.layers.layer_map",
    "Metric": "playerfl.learning.metrics.metric",
    "PlayerflError": "playerfl.errors",
    "Recommendation": "playerfl.layers.recommendation",
    "RunResult": "playerfl.runs.result",
    "SensitivityProbe": "playerfl.layers.probe",
    "StopRun": "playerfl.runs.run",
    "StudyDirectory": "playerfl.studies.directory",
    "StudyResult": "playerfl.studies.api",
    "Task": "playerfl.tasks.task",
    "choose_cut": "playerfl.layers.cut",
    "compare": "playerfl.report.compute.comparison",
    "export_model": "playerfl.export.write",
    "federation_sensitivity": "playerfl.layers.sensitivity",
    "layer_importance": "playerfl.layers.sensitivity",
    "load_result": "playerfl.runs.api",
    "metric": "playerfl.learning.metrics.metric",
    "own_task": "playerfl.tasks.task",
    "predict": "playerfl.export.predict",
    "probe_sites": "playerfl.probe.measure",
    "recommend": "playerfl.layers.recommend",
    "recommendation_figure": "playerfl.report.plots.recommendation",
    "resume": "playerfl.runs.api",
    "run": "playerfl.runs.api",
    "study": "playerfl.studies.api",
    "transition_point": "playerfl.layers.cut",
}

__all__ = [
    "Experiment",
    "LayerMap",
    "Metric",
    "PlayerflError",
    "Recommendation",
    "RunResult",
    "SensitivityProbe",
    "StopRun",
    "StudyDirectory",
    "StudyResult",
    "Task",
    "__version__",
    "choose_cut",
    "compare",
    "export_model",
    "federation_sensitivity",
    "layer_importance",
    "load_result",
    "metric",
    "own_task",
    "predict",
    "probe_sites",
    "recommend",
    "recommendation_figure",
    "resume",
    "run",
    "study",
    "transition_point",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'playerfl' has no attribute {name!r}")
    value = getattr(import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
