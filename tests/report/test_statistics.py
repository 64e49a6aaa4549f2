"""Every statistic against scipy, scikit-posthocs, and numbers computed by hand."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from playerfl.report.compute.statistics import (
    bootstrap_interval,
    cliques,
    critical_difference,
    detectable,
    friedman,
    holm,
    median,
    nemenyi,
    rank_biserial,
    ranks,
    spearman,
    wilcoxon_holm,
    worst_for_nan,
)

rows_of = st.integers(3, 9)


def table(seed: int, blocks: int, treatments: int, digits: int = 1) -> np.ndarray:
    """Rounded to few digits, so that there are ties."""
    return np.round(np.random.default_rng(seed).normal(size=(blocks, treatments)), digits)


@pytest.mark.parametrize(("blocks", "treatments"), [(2, 3), (7, 12), (50, 16), (5, 3)])
@pytest.mark.parametrize("digits", [0, 1, 9])
def test_friedman_is_scipys_with_iman_and_davenports_f(blocks: int, treatments: int, digits: int) -> None:
    scores = table(blocks, blocks, treatments, digits)
    chi2, p = stats.friedmanchisquare(*scores.T)
    test = friedman(scores)
    assert (test.chi2, test.p) == (pytest.approx(chi2, rel=1e-12), pytest.approx(p, abs=1e-12))
    f = (blocks - 1) * chi2 / (blocks * (treatments - 1) - chi2)
    assert test.f == pytest.approx(f, rel=1e-9)
    assert test.f_p == pytest.approx(stats.f.sf(f, treatments - 1, (treatments - 1) * (blocks - 1)), abs=1e-12)
    assert test.kendall_w == pytest.approx(chi2 / (blocks * (treatments - 1)))
    assert (test.df, test.f_df) == (treatments - 1, (treatments - 1, (treatments - 1) * (blocks - 1)))


def test_blocks_that_all_agree_or_all_tie() -> None:
    agreed = friedman(np.array([[1.0, 2.0, 3.0]] * 4))
    assert (agreed.chi2, agreed.kendall_w) == (pytest.approx(8.0), pytest.approx(1.0))
    assert np.isnan([agreed.f, agreed.f_p]).all()
    tied = friedman(np.ones((4, 3)))
    assert (tied.chi2, tied.p, tied.f_p) == (0.0, 1.0, 1.0)


@given(st.integers(0, 10_000), rows_of, st.integers(2, 8))
def test_ranks_add_up_and_reverse_with_the_direction(seed: int, blocks: int, treatments: int) -> None:
    scores = table(seed, blocks, treatments)
    up, down = ranks(scores, lower_is_better=False), ranks(scores, lower_is_better=True)
    assert np.allclose(up.sum(axis=1), treatments * (treatments + 1) / 2)
    assert np.allclose(up + down, treatments + 1)


def test_ranks_are_scipys() -> None:
    scores = np.array([[0.5, 0.7, 0.5, 0.1], [np.inf, 1.0, np.inf, 2.0], [np.nan, 1.0, 2.0, 3.0], [1.0, 1.0, 1.0, 1.0]])
    for sign, lower_is_better in ((1, True), (-1, False)):
        theirs = stats.rankdata(sign * scores, axis=1)
        assert np.array_equal(ranks(scores, lower_is_better=lower_is_better), theirs, equal_nan=True)


@pytest.mark.parametrize(("blocks", "treatments"), [(3, 3), (7, 12), (20, 5)])
def test_nemenyi_is_scikit_posthocs(blocks: int, treatments: int) -> None:
    posthocs = pytest.importorskip("scikit_posthocs", reason="compared with scikit-posthocs where it is installed")
    scores = table(1, blocks, treatments)
    mean = ranks(scores, lower_is_better=True).mean(axis=0)
    theirs = posthocs.posthoc_nemenyi_friedman(scores).to_numpy()
    assert np.max(np.abs(nemenyi(mean, blocks) - theirs)) < 1e-9


def test_the_critical_difference_is_where_nemenyis_p_is_five_percent() -> None:
    assert critical_difference(12, 7) == pytest.approx(6.2983, abs=1e-4)
    for treatments, blocks in ((3, 10), (12, 7)):
        apart = np.zeros(treatments)
        apart[0] = critical_difference(treatments, blocks)
        assert nemenyi(apart, blocks)[0, 1] == pytest.approx(0.05, abs=1e-9)


# scipy loops over all signs: with 13 blocks, its limit, one pair takes five seconds, so there is only one.
@pytest.mark.parametrize("blocks", [2, 3, 7, pytest.param(13, marks=pytest.mark.slow), 14, 30, 60])
@pytest.mark.parametrize("digits", [0, 1, 9])
def test_wilcoxon_is_scipys_pair_by_pair(blocks: int, digits: int) -> None:
    treatments = 2 if blocks == 13 else 3
    scores = table(blocks, blocks, treatments, digits)
    raw, _ = wilcoxon_holm(scores)
    for i in range(treatments):
        for j in range(i):
            difference = scores[:, i] - scores[:, j]
            if np.all(difference == 0):
                assert raw[i, j] == 1.0
                continue
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                theirs = stats.wilcoxon(difference).pvalue
            assert raw[i, j] == raw[j, i] == pytest.approx(theirs, abs=1e-9)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2))
def test_holm_is_scikit_posthocs(seed: int) -> None:
    posthocs = pytest.importorskip("scikit_posthocs", reason="compared with scikit-posthocs where it is installed")
    scores = table(seed, 9, 4, 9)
    theirs = posthocs.posthoc_wilcoxon([list(column) for column in scores.T], p_adjust="holm").to_numpy()
    _, corrected = wilcoxon_holm(scores)
    off = ~np.eye(4, dtype=bool)
    assert np.max(np.abs(corrected[off] - theirs[off])) < 1e-9


@given(st.lists(st.floats(0, 1), min_size=1, max_size=12))
def test_holm_never_lowers_a_p_value_and_keeps_their_order(p_values: list[float]) -> None:
    corrected = holm(np.array(p_values))
    assert np.all(corrected >= np.array(p_values) - 1e-15)
    assert np.all(corrected <= 1)
    assert np.all(np.diff(corrected[np.argsort(p_values, kind="stable")]) >= 0)


def test_rank_biserial_by_hand() -> None:
    """Differences 4, 3, 2, -1 with ranks 4, 3, 2, 1: (9 - 1) / 10."""
    assert rank_biserial(np.array([4.0, 3.0, 2.0, 0.0]), np.array([0.0, 0.0, 0.0, 1.0])) == pytest.approx(0.8)
    assert rank_biserial(np.ones(3), np.ones(3)) == 0.0
    assert rank_biserial(np.arange(1.0, 4.0), np.zeros(3)) == 1.0


@pytest.mark.parametrize("digits", [0, 9])
def test_spearman_is_scipys_row_by_row(digits: int) -> None:
    left, right = table(1, 6, 12, digits), table(2, 1, 12, digits)[0]
    expected = [stats.spearmanr(row, right).statistic for row in left]
    np.testing.assert_allclose(spearman(left, right), expected)
    assert np.isnan(spearman(np.ones(5), np.arange(5.0)))


@pytest.mark.parametrize(("runs", "deviations"), [(3, 3.26), (5, 1.68), (10, 1.00), (50, 0.40)])
def test_the_detectable_difference_is_found_in_four_of_five_studies(runs: int, deviations: float) -> None:
    """The numbers are those of tables for the paired t-test (two-sided, 5 %, power 80 %)."""
    spread = np.zeros(runs)
    spread[:2] = np.sqrt((runs - 1) / 2) * np.array([1, -1])
    assert float(detectable(spread)) == pytest.approx(deviations, abs=0.005)
    drawn = np.random.default_rng(runs).normal(float(detectable(spread)), 1, size=(20_000, runs))
    assert np.mean(stats.ttest_1samp(drawn, 0, axis=1).pvalue < 0.05) == pytest.approx(0.8, abs=0.012)


def test_what_could_be_detected_is_unknown_with_one_run_or_a_diverged_one() -> None:
    assert np.isnan(detectable(np.array([0.1])))
    assert np.isnan(detectable(np.array([0.1, np.inf, 0.2])))
    assert detectable(np.array([[0.1, 0.1], [0.1, 0.3]])).shape == (2,)


def test_the_bootstrap_is_scipys_up_to_the_draws() -> None:
    runs = np.random.default_rng(0).normal(size=40)
    low, high = bootstrap_interval(median, runs, resamples=20_000)
    theirs = stats.bootstrap(
        (runs,), np.median, n_resamples=20_000, method="percentile", rng=np.random.default_rng(1)
    ).confidence_interval
    assert (float(low), float(high)) == pytest.approx((theirs.low, theirs.high), abs=0.02)


def test_the_interval_of_three_runs_is_their_range_and_one_run_has_none() -> None:
    low, high = bootstrap_interval(median, np.array([0.2, 0.9, 0.5]))
    assert (float(low), float(high)) == (0.2, 0.9)
    assert all(np.isnan(end) for end in bootstrap_interval(median, np.array([0.5])))


def test_resamples_keep_pairs() -> None:
    """Two rows that differ by a constant differ by it in every resample."""
    first = np.random.default_rng(0).normal(size=11)
    low, high = bootstrap_interval(median, np.stack([first, first + 1]))
    assert np.allclose([low[1] - low[0], high[1] - high[0]], 1)


def test_large_inputs_are_resampled_in_parts_with_the_same_result(monkeypatch: pytest.MonkeyPatch) -> None:
    runs = np.random.default_rng(0).normal(size=(5, 7))
    whole = bootstrap_interval(median, runs)
    monkeypatch.setattr("playerfl.report.compute.statistics._AT_ONCE", 100)
    assert np.array_equal(whole, bootstrap_interval(median, runs))


def test_nan_is_worse_than_any_score() -> None:
    losses = worst_for_nan(np.array([0.4, np.nan, 0.5]), lower_is_better=True)
    low, high = bootstrap_interval(median, losses)
    assert (median(losses), float(low), float(high)) == (0.5, 0.4, np.inf)
    diverged = worst_for_nan(np.full(3, np.nan), lower_is_better=False)
    assert [float(end) for end in bootstrap_interval(median, diverged)] == [-np.inf, -np.inf]


def test_runs_that_diverged_rank_last_and_tie_with_each_other() -> None:
    scores = np.array([[0.9, -np.inf, -np.inf]])
    assert ranks(scores, lower_is_better=False).tolist() == [[1.0, 2.5, 2.5]]
    raw, _ = wilcoxon_holm(np.array([[0.9, -np.inf, -np.inf], [0.8, -np.inf, -np.inf], [0.7, 0.6, 0.5]]))
    assert (raw[0, 1], raw[1, 2]) == (0.25, 1.0)


@pytest.mark.parametrize(
    ("mean", "difference", "bars"),
    [
        ([1.0, 1.5, 3.0], 1.6, [(0, 1), (1, 2)]),
        ([3.0, 1.0, 2.0], 5.0, [(1, 2, 0)]),
        ([1.0, 5.0, 9.0], 1.0, []),
        ([1.0, 1.2, 1.4, 9.0], 1.0, [(0, 1, 2)]),
    ],
)
def test_bars_join_the_largest_groups_only(mean: list[float], difference: float, bars: list[tuple[int, ...]]) -> None:
    assert cliques(np.array(mean), difference) == bars
