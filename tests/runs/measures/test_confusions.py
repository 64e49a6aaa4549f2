"""Confusion matrices of a run: counted right, the same however it ran and wherever they are kept, and their F1."""

from __future__ import annotations

import math
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import playerfl
from federations import build, double_task, federate, sites, task
from playerfl.engine.scheduler import drive
from playerfl.errors import ConfigError, RunDirectoryError
from playerfl.federation.messages import ConfusionKey
from playerfl.learning.confusion import F1_LABELS, confusion_matrix
from playerfl.runs import confusions, setup
from playerfl.runs.confusions import ConfusionLog, Confusions
from playerfl.runs.directory import RunDirectory
from playerfl.runs.experiment import Experiment
from playerfl.runs.result import RunResult
from playerfl.runs.run import Progress
from playerfl.tasks.task import own_task

OLD = Path(__file__).parents[2] / "written_by_0_1"


def counted(predicted: list[int], true: list[int], classes: int) -> list[list[int]]:
    """In plain Python."""
    pairs = list(zip(true, predicted, strict=True))
    return [[pairs.count((row, column)) for column in range(classes)] for row in range(classes)]


def f1(matrix: list[list[int]], labels: str) -> float:
    """In plain Python, class by class."""
    total, classes = 0.0, 0
    for k in range(len(matrix)):
        true, predicted = sum(matrix[k]), sum(row[k] for row in matrix)
        if labels == "all" or true or (predicted and labels == "true_or_predicted"):
            classes += 1
            total += 2 * matrix[k][k] / (true + predicted) if true + predicted else 0.0
    return total / classes


@pytest.mark.parametrize("trainer", ["loop", "stacked"])
def test_the_matrices_of_the_kept_models_count_what_they_predict(trainer: str) -> None:
    run = build("local", task(), 2, trainer=trainer, selection="last")
    result = drive(run.rounds())
    assert result.data["trainer"] == trainer
    for site, client in run.clients.items():
        for split, examples in (("validation", client.data.validation), ("test", client.data.test)):
            matrix = result.confusions["round", 2, site, split]
            (inputs, targets), *_ = examples.batches(len(examples))
            predicted = result.model(site)(inputs).argmax(1)
            assert matrix.tolist() == counted(predicted.tolist(), targets.tolist(), 3)
            assert int(matrix.sum()) == len(examples)


def scored(result: RunResult) -> dict[ConfusionKey, float]:
    return {tuple(row[:4]): float(row[5]) for row in result.score_rows if row[4] == "f1"}  # type: ignore[misc]


@pytest.mark.parametrize("algorithm", ["fedavg", "fedbabu"])
@pytest.mark.parametrize("selection", ["round_best", "client_best"])
@pytest.mark.parametrize("eval_point", ["post_agg", "post_local"])
def test_every_f1_has_its_matrix_and_its_bits(algorithm: str, selection: str, eval_point: str) -> None:
    result = federate(algorithm, task(), 3, selection=selection, eval_point=eval_point)
    expected = scored(result)
    assert {key[0] for key in expected} == ({"round", "finish"} if algorithm == "fedbabu" else {"round"})
    assert set(result.confusions) == set(expected)
    assert dict(zip(result.confusions, result.confusions.f1("true_or_predicted"), strict=True)) == expected
    assert result.f1() == {site: scores["f1"] for site, scores in result.site_scores.items()}


def test_f1_over_other_classes() -> None:
    two_of_three = {name: (inputs, targets % 2) for name, (inputs, targets) in sites().items()}
    result = federate("fedavg", task(sites=two_of_three), 2, selection="client_best")
    rounds = dict.fromkeys(result.sites, 1)
    for labels in F1_LABELS:
        for split in ("validation", "test"):
            found = result.f1(labels, split=split, rounds=rounds)
            for site in result.sites:
                matrix = result.confusions["round", 1, site, split]
                assert found[site] == pytest.approx(f1(matrix.tolist(), labels), abs=1e-12)
        again = result.with_f1_over(labels)
        assert {site: scores["f1"] for site, scores in again.site_scores.items()} == result.f1(labels)
        assert [row for row in again.score_rows if row[4] != "f1"] == [r for r in result.score_rows if r[4] != "f1"]
    assert all(result.f1("all")[site] < result.f1("true")[site] for site in result.sites)
    with pytest.raises(ConfigError, match="unknown labels 'some'; allowed: all, true, true_or_predicted"):
        result.f1("some")  # type: ignore[arg-type]


@pytest.mark.parametrize("trainer", ["loop", "stacked"])
def test_a_diverged_model_has_no_f1(trainer: str) -> None:
    result = federate(
        "local", task(), 2, trainer=trainer, **{"training.optimizer": "sgd", "training.learning_rate": 1e30}
    )
    last = result.confusions["round", 2, "site-0", "test"]
    assert last.tolist() == [[-1] * 3] * 3
    for labels in F1_LABELS:
        assert all(score != score for score in result.f1(labels, rounds=dict.fromkeys(result.sites, 2)).values())
    assert Confusions.from_rows(result.confusions.rows()) == result.confusions


def test_both_trainers_have_the_same_matrices() -> None:
    stacked, loop = (federate("fedavg", double_task(), 3, trainer=trainer) for trainer in ("stacked", "loop"))
    assert stacked.confusions == loop.confusions
    assert len(loop.confusions) == 3 * 3 * 2


@pytest.mark.parametrize(("setting", "limit", "recorded"), [("auto", 3, True), ("auto", 2, False), ("always", 2, True)])
def test_many_classes_are_recorded_only_if_asked_for(
    setting: str, limit: int, recorded: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(setup._MOST_CLASSES, "auto", limit)
    own = task(sites=sites())  # a new one: the setups of a shared task are kept
    for trainer in ("loop", "stacked"):
        result = federate("fedavg", own, 1, trainer=trainer, confusions=setting)
        assert bool(result.confusions) == recorded


def test_the_setting_is_left_out_of_files_at_its_default() -> None:
    plain = Experiment.resolve({"task": "synthetic"})
    assert "confusions" not in plain.to_toml() and "confusions" not in plain.model_dump()
    never = Experiment.resolve({"task": "synthetic", "confusions": "never"})
    assert Experiment.from_resolved(never.to_toml()).confusions == "never"
    assert not federate("fedavg", task(), 1, confusions="never").confusions
    with pytest.raises(ConfigError, match="confusions = True is not allowed"):
        Experiment.resolve({"task": "synthetic", "confusions": True})


def test_numeric_targets_have_none(tmp_path: Path) -> None:
    x = torch.randn(60, 6)
    numbers = {"a": (x, x.sum(1)), "b": (x, x[:, 0])}
    own = own_task(lambda: torch.nn.Linear(6, 1), numbers, loss=lambda y, t: (y.squeeze(1) - t).square(), metrics={})
    assert not playerfl.run(own, "fedavg", rounds=1, out=tmp_path / "o").confusions
    assert not (tmp_path / "o" / "confusions.csv").exists()


def test_a_directory_keeps_them_and_an_interrupted_run_goes_on_with_them(tmp_path: Path) -> None:
    class Stopped(Exception):  # noqa: N818 it is not an error
        pass

    def stop(progress: Progress) -> None:
        if progress.round == 2:
            raise Stopped

    whole = playerfl.run("synthetic", "fedbabu", rounds=3, out=tmp_path / "whole")
    with pytest.raises(Stopped):
        playerfl.run("synthetic", "fedbabu", rounds=3, out=tmp_path / "stopped", listener=stop)
    table = tmp_path / "stopped" / "confusions.csv"
    with table.open("a") as file:
        file.write("round,9,site-0,te")  # as a kill in the middle of a write leaves it
    resumed = playerfl.resume(tmp_path / "stopped")
    assert resumed.confusions == whole.confusions == playerfl.load_result(tmp_path / "stopped").confusions
    assert table.read_bytes() == (tmp_path / "whole" / "confusions.csv").read_bytes()


def test_a_damaged_table_is_refused_in_one_sentence(tmp_path: Path) -> None:
    playerfl.run("synthetic", "local", rounds=1, out=tmp_path / "o")
    table = tmp_path / "o" / "confusions.csv"
    head, first, *others = table.read_text().splitlines()
    key = first.split(",")[:5]
    for broken in (
        [head, first, first],
        [head, ",".join([*key, "0", "99", "1"])],
        [head, ",".join([*key, "0", "0", "0"])],
        [head, ",".join([*key, "0", "0", str(2**70)])],
        [head, ",".join([*key[:4], "0", "0", "0", "1"])],
        [head, first.replace("round,1,", "round,2,")],
        [head, *reversed([first, *others])],
        [first, *others],
    ):
        table.write_text("\n".join(broken) + "\n")
        with pytest.raises(RunDirectoryError, match=r"confusions\.csv cannot be read|is not a valid run"):
            playerfl.load_result(tmp_path / "o")


def test_old_runs_have_none_and_say_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(OLD)
    old = playerfl.load_result("run")
    assert len(old.confusions) == 0
    with pytest.raises(
        ConfigError, match="has no confusion matrices to compute F1 over other classes from; run it again"
    ):
        old.f1("true")
    shutil.copytree("interrupted_run", tmp_path / "r" / "interrupted_run")
    shutil.copy("tiny.py", tmp_path / "r")
    monkeypatch.chdir(tmp_path / "r")
    resumed = playerfl.resume("interrupted_run")
    assert 0 < len(resumed.confusions) < len(scored(resumed))
    assert RunDirectory.open(Path("interrupted_run")).confusions() == resumed.confusions


@given(
    st.integers(1, 4).flatmap(
        lambda classes: st.lists(
            st.lists(st.tuples(st.integers(-1, classes - 1), st.integers(0, classes - 1)), min_size=1, max_size=6),
            max_size=5,
        ).map(lambda splits: (classes, splits))
    )
)
def test_matrices_read_back_exactly_from_every_form(made: tuple[int, list[list[tuple[int, int]]]]) -> None:
    classes, splits = made
    matrices = {
        ("round", number, "north", "test"): confusion_matrix(
            torch.tensor([p for p, _ in rows]), torch.tensor([t for _, t in rows]), classes
        )
        for number, rows in enumerate(splits)
    }
    arrays = {key: matrix.int().numpy() for key, matrix in matrices.items()}
    log = ConfusionLog()
    for key, matrix in arrays.items():
        log.add({key: matrix})
        log.so_far()
    for held in (
        Confusions.of(arrays),
        log.so_far(),
        Confusions.from_rows(Confusions.of(arrays).rows()),
        Confusions.from_tree(Confusions.of(arrays).tree()),
    ):
        assert {key: matrix.tolist() for key, matrix in held.items()} == {k: m.tolist() for k, m in matrices.items()}
        for labels in F1_LABELS:
            expected = [math.nan if matrix[0, 0] < 0 else f1(matrix.tolist(), labels) for matrix in matrices.values()]
            assert held.f1(labels) == pytest.approx(expected, abs=1e-12, nan_ok=True)


def test_large_matrices_are_packed_as_they_come(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(confusions, "_PENDING_NUMBERS", 100)
    log = ConfusionLog()
    eye = np.eye(9, dtype=np.int32)
    for round_ in range(10):
        log.add({("round", round_, "north", "test"): eye * (round_ + 1)})
        assert len(log._pending) < 2
    assert [int(matrix[0, 0]) for matrix in log.so_far().values()] == list(range(1, 11))
