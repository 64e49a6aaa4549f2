"""PLayer-FL-1 and PLayer-FL+1: the measured cut, moved by one layer."""

from __future__ import annotations

import pytest

from algorithms.recorder import LAYERS
from federations import assert_same, federate, task
from playerfl.algorithms import PLayerFL, PLayerFLMinusOne, PLayerFLPlusOne

BY = {PLayerFLMinusOne: -1, PLayerFLPlusOne: 1}
shifts = pytest.mark.parametrize("shifted", BY)


def fixed(cut: int) -> PLayerFL:
    return PLayerFL(rule="fixed", fixed_cut=cut)


@shifts
@pytest.mark.parametrize("measured", [1, 2, 3, 4])
def test_the_cut_is_moved_by_one_or_stays_with_a_warning(shifted: type[PLayerFL], measured: int) -> None:
    cut = federate(shifted(rule="fixed", fixed_cut=measured), rounds=1).cut
    assert cut is not None
    assert cut.index == min(max(measured + BY[shifted], 1), 4)
    assert cut.federated == LAYERS[: cut.index]
    assert any("no room" in warning for warning in cut.warnings) == (cut.index == measured)


@pytest.mark.slow
@shifts
@pytest.mark.parametrize("model", ["mlp", "batch norm", "dropout", "convolutional"])
def test_a_measured_cut_is_moved_too(shifted: type[PLayerFL], model: str) -> None:
    measured = federate(PLayerFL(), task(model)).cut
    found = federate(shifted(), task(model))
    assert measured is not None
    assert found.cut is not None
    assert found.cut.index == min(max(measured.index + BY[shifted], 1), len(measured.layers))
    assert_same(found, federate(fixed(found.cut.index), task(model)))
