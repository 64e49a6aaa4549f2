"""Observers write the progress of a run, with the real libraries, into a local directory."""

from __future__ import annotations

import builtins
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import playerfl
from federations import federate, task
from playerfl.errors import ConfigError, PlayerflError
from playerfl.observers import together
from playerfl.observers.readings import hyper_parameters, profile_figure, scalars
from playerfl.runs.result import RunResult
from playerfl.runs.run import Progress

ROUNDS = 2


def watched(listener: Callable[[Progress], None], algorithm: str = "player_fl") -> RunResult:
    settings = {"training.batch_size": 8, "training.learning_rate": 0.01}
    return playerfl.run(task(), algorithm, rounds=ROUNDS, settings=settings, listener=listener)


def progress_of(algorithm: str = "player_fl") -> tuple[list[Progress], RunResult]:
    seen: list[Progress] = []
    return seen, watched(seen.append, algorithm)


def average(result: RunResult, metric: str, round_: int) -> float:
    own = {
        row[2]: float(row[5])
        for row in result.score_rows
        if row[:2] == ("round", round_) and row[3:5] == ("test", metric)
    }
    return sum(v * result.num_examples[str(site)] for site, v in own.items()) / sum(result.num_examples.values())


def test_readings_are_the_scores_of_the_run_and_their_average() -> None:
    seen, result = progress_of()
    found = {(name, round_): value for progress in seen for name, value, round_ in scalars(progress)}
    for stage, round_, site, split, metric, value in result.score_rows:
        assert stage == "round"
        assert found[f"{split}/{metric}/{site}", round_] == value
    for round_ in range(1, ROUNDS + 1):
        assert found["test/f1/average", round_] == pytest.approx(average(result, "f1", round_))


def test_a_finishing_phase_has_separate_names() -> None:
    names = {name for progress in progress_of("local_adaptation")[0] for name, _, _ in scalars(progress)}
    assert {"test/f1/average", "finish/test/f1/average"} <= names


def test_hyper_parameters_are_named_as_in_the_experiment_file() -> None:
    settings = hyper_parameters(progress_of()[0][0])
    assert settings["algorithm.name"] == "player_fl"
    assert settings["training.learning_rate"] == 0.01
    assert settings["rounds"] == ROUNDS


def test_the_profile_is_drawn_once_there_is_a_cut() -> None:
    figure = profile_figure(progress_of()[0][-1])
    assert figure is not None
    assert "shared" in figure.axes[0].get_title()
    assert profile_figure(progress_of("fedavg")[0][-1]) is None


def test_watching_changes_nothing() -> None:
    plain = federate("player_fl", rounds=ROUNDS, **{"selection": "client_best"})
    assert watched(together()).score_rows == plain.score_rows


@pytest.mark.slow
def test_tensorboard_shows_scores_settings_and_the_profile(tmp_path: Path) -> None:
    event_accumulator = pytest.importorskip(
        "tensorboard.backend.event_processing.event_accumulator", reason="the extra 'tensorboard' is not installed"
    )
    from playerfl.observers.tensorboard import TensorBoardObserver

    result = watched(TensorBoardObserver(tmp_path))
    (folder,) = tmp_path.iterdir()
    assert folder.name.endswith("-player_fl-seed0")
    seen = event_accumulator.EventAccumulator(str(folder)).Reload()
    for site in result.sites:
        points = [(event.step, event.value) for event in seen.Scalars(f"test/f1/{site}")]
        rows = [r for r in result.score_rows if (r[2], r[3], r[4]) == (site, "test", "f1")]
        assert points == [(row[1], pytest.approx(row[5], abs=1e-6)) for row in rows]
    assert seen.Scalars("test/f1/average")[-1].value == pytest.approx(average(result, "f1", ROUNDS), abs=1e-6)
    assert seen.Images("layer profile")
    (settings,) = seen.Tensors("settings/text_summary")
    assert b"training.learning_rate | 0.01" in settings.tensor_proto.string_val[0]


def test_a_place_that_tensorboard_cannot_write_to_is_named(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard", reason="the extra 'tensorboard' is not installed")
    from playerfl.observers.tensorboard import TensorBoardObserver

    (tmp_path / "file").touch()
    with pytest.raises(PlayerflError, match=r"cannot write .*file/logs: Not a directory"):
        watched(TensorBoardObserver(tmp_path / "file" / "logs"))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
def test_mlflow_shows_scores_settings_and_the_profile(tmp_path: Path) -> None:
    tracking = pytest.importorskip("mlflow.tracking", reason="the extra 'mlflow' is not installed")
    from playerfl.observers.mlflow import MLflowObserver

    result = watched(MLflowObserver(tmp_path))
    client = tracking.MlflowClient(tracking_uri=f"sqlite:///{tmp_path / 'mlflow.db'}")
    experiment = client.get_experiment_by_name("playerfl")
    (run,) = client.search_runs([experiment.experiment_id])
    assert run.info.status == "FINISHED"
    assert run.data.params["training.learning_rate"] == "0.01"
    for site in result.sites:
        history = sorted((m.step, m.value) for m in client.get_metric_history(run.info.run_id, f"test/f1/{site}"))
        rows = [r for r in result.score_rows if (r[2], r[3], r[4]) == (site, "test", "f1")]
        assert history == [(row[1], row[5]) for row in rows]
    assert run.data.metrics["test/f1/average"] == pytest.approx(average(result, "f1", ROUNDS))
    assert list((tmp_path / "artifacts").rglob("layer_profile.png"))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
def test_mlflow_takes_any_site_name_and_leaves_out_nan(tmp_path: Path) -> None:
    tracking = pytest.importorskip("mlflow.tracking", reason="the extra 'mlflow' is not installed")
    from federations import sites
    from playerfl.observers.mlflow import MLflowObserver

    odd = dict(zip(("St. Mary's <b>", "Ærø"), sites(2).values(), strict=True))
    for rate in (1e-3, 1e30):
        settings = {"training.batch_size": 8, "training.learning_rate": rate}
        playerfl.run(task(sites=odd), "fedavg", rounds=1, settings=settings, listener=MLflowObserver(tmp_path))
    client = tracking.MlflowClient(tracking_uri=f"sqlite:///{tmp_path / 'mlflow.db'}")
    diverged, trained = client.search_runs([client.get_experiment_by_name("playerfl").experiment_id])
    assert "test/f1/St. Mary_27_s _3c_b_3e_" in trained.data.metrics
    assert "test/f1/St. Mary_27_s _3c_b_3e_" not in diverged.data.metrics


@pytest.mark.slow
@pytest.mark.parametrize(
    ("module", "observer", "missing"),
    [
        ("playerfl.observers.tensorboard", "TensorBoardObserver", "torch.utils.tensorboard"),
        ("playerfl.observers.mlflow", "MLflowObserver", "mlflow.tracking"),
    ],
)
def test_a_missing_library_is_named_with_what_to_install(
    module: str, observer: str, missing: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    import importlib

    kind = getattr(importlib.import_module(module), observer)
    real = builtins.__import__

    def without(name: str, *arguments: Any, **options: Any) -> Any:
        if name == missing:
            raise ImportError(name)
        return real(name, *arguments, **options)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(ConfigError, match=r"pip install 'playerfl\["):
        kind(tmp_path)
