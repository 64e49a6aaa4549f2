"""Sensitivity measured again later: it changes nothing, and says whether the cut moves."""

from __future__ import annotations

import json

import pytest

from federations import QUICK, assert_same, build, federate, task
from playerfl.algorithms import PLayerFL
from playerfl.analysis.drift import Drift, Monitored, monitor_drift
from playerfl.analysis.figures import drift_figure
from playerfl.engine.scheduler import drive
from playerfl.errors import ConfigError
from playerfl.layers.recommend import recommend
from playerfl.layers.sensitivity import Profile


@pytest.fixture(scope="module")
def drift() -> Drift:
    return monitor_drift(task(), every=2, rounds=5, settings=QUICK)


@pytest.mark.slow
def test_rounds_are_measured_from_the_first_on(drift: Drift) -> None:
    assert list(drift.rounds) == [1, 3, 5]


def test_the_first_measurement_is_player_fls_own(drift: Drift) -> None:
    cut = federate(PLayerFL(), rounds=1).cut
    assert cut is not None
    assert drift.rounds[1].cut.importance == cut.importance


@pytest.mark.slow
def test_measuring_again_does_not_change_training_by_a_bit() -> None:
    plain = build("player_fl", rounds=4)
    watched = build("player_fl", rounds=4)
    watched.algorithm = Monitored(every=1)
    assert_same(drive(watched.rounds()), drive(plain.rounds()))


def profile(jump_at: int) -> Profile:
    row = tuple(1.0 if layer < jump_at else 50.0 for layer in range(4))
    return Profile(("a", "b", "c", "d"), (row, row), (8, 8), 16)


@pytest.mark.slow
def test_a_cut_that_moves_is_reported(tmp_path: object) -> None:
    result = Drift(
        "t", ("a", "b", "c", "d"), {1: recommend(profile(2)), 6: recommend(profile(2)), 11: recommend(profile(3))}
    )
    assert result.cuts == {1: 2, 6: 2, 11: 3}
    assert result.share_that_stays == 0.5
    assert str(result).endswith("1 of 2 later measurements agree; the cut moves to 3 in round 11")
    assert json.loads(json.dumps(result.to_json()))["cuts"] == {"1": 2, "6": 2, "11": 3}
    figure, axes = drift_figure(result)
    assert "50%" in axes[1].get_title()
    figure.savefig(f"{tmp_path}/drift.png")


def test_a_cut_that_stays_is_reported() -> None:
    result = Drift("t", ("a", "b", "c", "d"), {1: recommend(profile(2)), 6: recommend(profile(2))})
    assert str(result).endswith("the cut does not move")


def test_a_chosen_cut_can_be_monitored() -> None:
    result = monitor_drift(task(), every=1, rounds=2, cut=4, settings=QUICK)
    assert list(result.rounds) == [1, 2]
    with pytest.raises(ConfigError, match="fixed_cut must be between 0 and 4"):
        monitor_drift(task(), cut=9, settings=QUICK)
    with pytest.raises(ConfigError, match="give at least 1"):
        monitor_drift(task(), every=0)
