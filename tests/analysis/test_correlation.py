"""Rank correlation against scipy, and its interval."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from playerfl.analysis.correlation import correlate, spearman

NUMBERS = st.lists(st.floats(-5, 5).map(lambda x: round(x, 1)), min_size=4, max_size=4)


@settings(max_examples=30, deadline=None)
@given(NUMBERS, NUMBERS)
def test_spearman_equals_scipys(left: list[float], right: list[float]) -> None:
    from scipy.stats import spearmanr

    rho = spearman(left, right)
    if len(set(left)) > 1 and len(set(right)) > 1:
        assert rho == pytest.approx(spearmanr(left, right).statistic, abs=1e-9)
    else:
        assert math.isnan(rho)


def test_unknown_layers_are_left_out() -> None:
    assert spearman([1, 2, 3, 4], [3, 2, 1, math.nan]) == -1.0
    assert math.isnan(spearman([1, 2], [1, 2]))


def test_the_interval_spans_the_curves() -> None:
    correlation = correlate({i: ([1, 2, 3], [1, 2, 3] if i % 2 else [3, 2, 1]) for i in range(20)})
    assert correlation is not None
    assert correlation.value == 0.0
    assert correlation.low == pytest.approx(-0.44, abs=0.07)  # ± 1.96 / √20
    assert correlation.high == pytest.approx(0.44, abs=0.07)
    assert (correlation.curves, correlation.layers) == (20, 3)
    assert correlate({0: ([1, 1, 1], [1, 2, 3])}) is None


def test_one_curve_has_no_interval() -> None:
    correlation = correlate({0: ([1, 2, 3], [1, 3, 2])})
    assert correlation is not None
    assert (correlation.value, correlation.curves) == (0.5, 1)
    assert math.isnan(correlation.low)
    assert math.isnan(correlation.high)
