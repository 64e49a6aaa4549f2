"""MLflowObserver: a run's scores in MLflow while it runs."""

from __future__ import annotations

import math
import os
from pathlib import Path
from time import time

from playerfl.errors import ConfigError
from playerfl.observers.readings import hyper_parameters, profile_figure, run_name, scalars
from playerfl.runs.run import Progress
from playerfl.storage.atomic_files import make_directory

_LONGEST_VALUE = 6000
_AT_ONCE = 1000


class MLflowObserver:
    """Pass it as `listener=` to `playerfl.run`.

    `place` is a local directory for a database (view it with
    `mlflow ui --backend-store-uri sqlite:///DIR/mlflow.db`), or the http address of a tracking server.
    Each run is a run of the MLflow experiment `experiment`.
    """

    def __init__(self, place: Path | str, experiment: str = "playerfl") -> None:
        # A hospital's runs must not be reported to anyone outside it.
        os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
        try:
            import sqlalchemy  # noqa: F401
            from mlflow.tracking import MlflowClient
        except ImportError as problem:
            raise ConfigError("MLflow is not installed; pip install 'playerfl[mlflow]'") from problem
        artifacts = None
        address = str(place)
        if not address.startswith(("http://", "https://", "sqlite:")):
            folder = Path(place).resolve()
            make_directory(folder)
            address, artifacts = f"sqlite:///{folder / 'mlflow.db'}", (folder / "artifacts").as_uri()
        self._client = MlflowClient(tracking_uri=address)
        known = self._client.get_experiment_by_name(experiment)
        self._experiment = (
            known.experiment_id if known else self._client.create_experiment(experiment, artifact_location=artifacts)
        )
        self._runs: dict[str, str] = {}
        self._drawn: set[str] = set()

    def __call__(self, progress: Progress) -> None:
        from mlflow.entities import Metric

        name = run_name(progress)
        if name not in self._runs:
            self._runs[name] = self._start(progress, name)
        run = self._runs[name]
        now = int(1000 * time())
        metrics = [
            Metric(_allowed(tag), value, now, round_)
            for tag, value, round_ in scalars(progress)
            if math.isfinite(value)
        ]
        for begin in range(0, len(metrics), _AT_ONCE):
            self._client.log_batch(run, metrics=metrics[begin : begin + _AT_ONCE])
        if name not in self._drawn and (figure := profile_figure(progress)) is not None:
            self._client.log_figure(run, figure, "layer_profile.png")
            self._drawn.add(name)
        if progress.done:
            self._client.set_terminated(self._runs.pop(name))

    def _start(self, progress: Progress, name: str) -> str:
        run = str(self._client.create_run(self._experiment, run_name=name).info.run_id)
        for key, value in hyper_parameters(progress).items():
            self._client.log_param(run, key, str(value)[:_LONGEST_VALUE])
        return run


def _allowed(tag: str) -> str:
    """A name that MLflow accepts: letters, digits and a few punctuation marks; a site may be called anything."""
    return "".join(c if c.isalnum() or c in "_-./ " else f"_{ord(c):x}_" for c in tag)
