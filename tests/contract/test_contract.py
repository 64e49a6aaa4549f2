"""What every algorithm must do, beyond the contract that `playerfl selftest NAME` checks."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

import playerfl
from federations import build, federate, quick_for, task
from playerfl.algorithms import ALGORITHMS, PartialAlgorithm
from playerfl.engine.loop import run_rounds
from playerfl.engine.scheduler import drive
from playerfl.runs.run import Progress
from playerfl.selftest.transports import WireTransport

every_algorithm = pytest.mark.parametrize("name", quick_for(ALGORITHMS, "fedavg", "ditto", "fedbabu", "player_fl"))
# The algorithms that keep the most state between rounds.
REMEMBERING = ("fedlama", "fedbabu", "player_fl")
# FedProx and Ditto share all layers.
WITH_PRIVATE_LAYERS = [
    name
    for name, kind in ALGORITHMS.items()
    if issubclass(kind, PartialAlgorithm) and name not in ("fedavg", "fedprox", "ditto")
]


@pytest.mark.parametrize(
    ("name", "selection"),
    [(name, "client_best") for name in ALGORITHMS]
    + [(name, selection) for name in REMEMBERING for selection in ("by_owner", "round_best", "last")],
)
def test_the_kept_model_is_the_one_the_scores_choose(name: str, selection: str) -> None:
    run = build(name, rounds=4, selection=selection)
    result = drive(run.rounds())
    for site in result.sites:
        model = result.model(site)
        (inputs, targets), *_ = run.clients[site].data.test.batches(10_000)
        found = float((model(inputs).argmax(1) == targets).float().mean())
        assert found == pytest.approx(result.site_scores[site]["accuracy"], abs=1e-6)


@pytest.mark.parametrize("name", WITH_PRIVATE_LAYERS)
def test_private_layers_are_never_uploaded(name: str) -> None:
    run = build(name)
    transport = WireTransport(run)
    drive(run_rounds(run.algorithm, run.server, transport, run.experiment.rounds, run, run.evaluation))
    assert isinstance(run.algorithm, PartialAlgorithm)
    private = {e for layer in run.algorithm.personal(run.server) for e in run.server.layers.entries[layer]}
    federated = {e for layer in run.algorithm.federated(run.server) for e in run.server.layers.entries[layer]}
    assert private
    for verbs, _, upload in transport.uploads:
        assert not private & upload.weights.keys()
        assert upload.weights.keys() == (federated if "fit" in verbs else set())


@pytest.mark.parametrize(
    ("name", "model"),
    [
        pytest.param(name, model, marks=() if name in REMEMBERING and model == "mlp" else pytest.mark.slow)
        for name in (*REMEMBERING, "ditto", "pfedla", "fedlp")
        for model in ("mlp", "batch norm", "convolutional")
    ],
)
def test_a_run_killed_after_any_exchange_resumes_to_the_same_files(name: str, model: str, tmp_path: Path) -> None:
    """A copy of the directory made after an exchange is what a kill at that moment leaves.

    The contract resumes every method; these write every kind of file.
    """
    own, whole, left = task(model), tmp_path / "whole", list[Path]()

    def keep(_: Progress) -> None:
        left.append(shutil.copytree(whole, tmp_path / f"left-{len(left)}"))

    settings = {"training.batch_size": 8, "selection": "by_owner"}
    playerfl.run(own, name, rounds=3, settings=settings, out=whole, listener=keep)
    assert len(left) >= 4, "three rounds and the last evaluation"
    for directory in left:
        assert not (directory / "finished.json").exists()
        playerfl.resume(directory, task=own)
        assert_same_files(whole, directory)


def assert_same_files(left: Path, right: Path) -> None:
    """Byte for byte, except for the wall time."""
    files = {path.relative_to(left) for path in left.rglob("*") if path.is_file()}
    assert files == {path.relative_to(right) for path in right.rglob("*") if path.is_file()}
    for file in files - {Path("timing.json")}:
        assert (left / file).read_bytes() == (right / file).read_bytes(), file


@every_algorithm
def test_scoring_after_local_training_covers_every_round(name: str) -> None:
    result = federate(name, eval_point="post_local")
    assert set(result.scores[result.scores["split"] == "test"]["round"]) == {1, 2, 3}


def test_a_site_that_sits_a_round_out_is_still_evaluated() -> None:
    """That every method copes is part of the contract."""
    rows = federate("ditto", rounds=3, participation=0.5).traffic
    assert set(rows[rows["round"] == 2]["verbs"]) == {"evaluate+fit", "evaluate"}
