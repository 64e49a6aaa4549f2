"""Statistics of a comparison: intervals, ranks, tests and effect sizes, on plain arrays.

A score that is not a number counts as worse than any number (`worst_for_nan`), so an algorithm gains nothing by
diverging. docs/report.md gives every formula with its source.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

RESAMPLES = 1000
_SEED = 20240
# Percent on either side of a 95 % interval; 2.5 itself would change the last bits of stored intervals.
_TAIL = 50 * (1 - 0.95)

# With fewer runs, the 95 % interval of a median is just their range: five differences of one sign are not rare enough
# (2 · 0.5⁵ > 5 %).
ENOUGH_RUNS = 6

POWER = 0.8
"""The chance of showing a difference that a study is planned for."""

# Elements that one bootstrap may hold at once: 160 MB of float64.
_AT_ONCE = 20_000_000


def worst_for_nan(values: Array, *, lower_is_better: bool) -> Array:
    """The same with the worst possible score in place of NaN.

    >>> worst_for_nan(np.array([0.5, np.nan]), lower_is_better=True).tolist()
    [0.5, inf]
    """
    return np.where(np.isnan(values), np.inf if lower_is_better else -np.inf, values)


def bootstrap_interval(
    statistic: Callable[[Array], Array], runs: Array, *, resamples: int = RESAMPLES
) -> tuple[Array, Array]:
    """The percentile bootstrap interval of a statistic over runs, which are the last axis of `runs`.

    With one run there is no interval (NaN).

    >>> low, high = bootstrap_interval(median, np.array([1.0, 2.0, 3.0]))
    >>> float(low), float(high)
    (1.0, 3.0)
    """
    if runs.shape[-1] < 2:
        none = np.full_like(statistic(runs), np.nan)
        return none, none
    return percentile_interval(resampled(statistic, runs, resamples=resamples))


def resampled(statistic: Callable[[Array], Array], runs: Array, *, resamples: int = RESAMPLES) -> Array:
    """A statistic of runs drawn with replacement: the last axis of `runs` becomes one value per resample.

    `statistic` reduces the last axis. The same runs are drawn for all leading axes, so pairs stay paired; the
    draws are the same every time.
    """
    count = runs.shape[-1]
    draws = np.random.default_rng(_SEED).integers(count, size=(resamples, count))
    step = max(1, _AT_ONCE // max(1, runs.size))
    return np.concatenate(
        [statistic(runs[..., draws[begin : begin + step]]) for begin in range(0, resamples, step)], axis=-1
    )


def percentile_interval(values: Array) -> tuple[Array, Array]:
    """The bounds of the middle 95 % of the resamples (the last axis)."""
    low, high = percentiles(values, (_TAIL, 100 - _TAIL))
    return low, high


def percentiles(values: Array, points: Sequence[float]) -> Array:
    """Percentiles over the last axis; interpolation between two infinities gives infinity, not NaN."""
    huge = np.finfo(np.float64).max / 4
    finite = np.percentile(np.clip(values, -huge, huge), points, axis=-1)
    return np.where(finite > huge / 1e6, np.inf, np.where(finite < -huge / 1e6, -np.inf, finite))


def median(runs: Array) -> Array:
    """The median over the last axis."""
    return np.asarray(np.median(runs, axis=-1))


def mean(runs: Array) -> Array:
    """The mean over the last axis; NaN if it has infinities of both signs."""
    with np.errstate(invalid="ignore"):
        return np.asarray(np.mean(runs, axis=-1))


def ranks(scores: Array, *, lower_is_better: bool) -> Array:
    """Ranks of treatments (columns) within each block (row): 1 is best, ties share the average.

    A block with a NaN has no ranks.

    >>> ranks(np.array([[0.9, 0.7, 0.9]]), lower_is_better=False).tolist()
    [[1.5, 3.0, 1.5]]
    """
    # As scipy's rankdata, whose import takes as long as the rest of a small report.
    ordered = scores if lower_is_better else -scores
    before = np.sum(ordered[:, None, :] < ordered[:, :, None], axis=2)
    tied = np.sum(ordered[:, None, :] == ordered[:, :, None], axis=2)
    return np.where(np.isnan(scores).any(axis=1, keepdims=True), np.nan, before + (tied + 1) / 2)


@dataclass(frozen=True)
class Friedman:
    """Whether treatments differ at all: tie-corrected χ², and Iman and Davenport's F, which is less conservative."""

    treatments: int
    blocks: int
    chi2: float
    p: float
    f: float
    f_p: float
    """NaN where every block gives the same order: F is then infinite, even with two blocks."""
    kendall_w: float
    """Agreement of the blocks on the order of treatments, 0 to 1: the effect size of this test."""

    @property
    def df(self) -> int:
        return self.treatments - 1

    @property
    def f_df(self) -> tuple[int, int]:
        return self.treatments - 1, (self.treatments - 1) * (self.blocks - 1)


def friedman(scores: Array) -> Friedman:
    """Friedman's test of blocks (rows) × treatments (columns); at least 2 blocks and 3 treatments.

    >>> test = friedman(np.array([[1.0, 2.0, 3.0], [1.0, 3.0, 2.0], [1.0, 2.0, 3.0]]))
    >>> round(test.chi2, 9), round(test.f, 9), round(test.kendall_w, 9)
    (4.666666667, 7.0, 0.777777778)
    """
    return friedman_of_ranks(ranks(scores, lower_is_better=True))


def friedman_of_ranks(positions: Array) -> Friedman:
    """The same from the ranks within each block, which need not be 1 to k: treatments may share a place.

    χ² = (k-1) · Σ_j (Σ_i d_ij)² / Σ_ij d_ij², where d are the distances from the block's mean rank. For ranks in which
    ties share the average this is Friedman's χ² with the correction for ties.
    """
    from scipy.stats import chi2 as chi2_distribution
    from scipy.stats import f as f_distribution

    blocks, treatments = positions.shape
    distances = positions - positions.mean(axis=1, keepdims=True)
    spread = float(np.sum(distances**2))
    if spread == 0:
        # Every block ties throughout.
        return Friedman(treatments, blocks, 0.0, 1.0, 0.0, 1.0, 0.0)
    chi2 = (treatments - 1) * float(np.sum(distances.sum(axis=0) ** 2)) / spread
    p = float(chi2_distribution.sf(chi2, treatments - 1))
    most = blocks * (treatments - 1)
    f = (blocks - 1) * chi2 / (most - chi2) if most - chi2 > 1e-12 * most else np.nan
    f_p = float(f_distribution.sf(f, treatments - 1, (treatments - 1) * (blocks - 1)))
    return Friedman(treatments, blocks, chi2, p, float(f), f_p, chi2 / most)


def critical_difference(treatments: int, blocks: int) -> float:
    """Mean ranks further apart than this differ (Nemenyi):  CD = q/√2 · √(k(k+1) / 6N).

    >>> round(critical_difference(12, 7), 2)
    6.3
    """
    return float(_studentised(treatments) / np.sqrt(2) * _rank_error(treatments, blocks))


@cache
def _studentised(treatments: int) -> float:
    from scipy.stats import studentized_range

    return float(studentized_range.ppf(0.95, treatments, np.inf))


def _rank_error(treatments: int, blocks: int) -> float:
    # The standard error of a difference of mean ranks.
    return float(np.sqrt(treatments * (treatments + 1) / (6 * blocks)))


def nemenyi(mean_ranks: Array, blocks: int) -> Array:
    """Nemenyi's p-value of every pair of treatments: how rare their distance in mean rank would be.

    >>> nemenyi(np.array([1.0, 2.0, 3.0]), 3)[0].round(4).tolist()
    [1.0, 0.4385, 0.038]
    """
    from scipy.stats import studentized_range

    treatments = len(mean_ranks)
    distances = np.abs(mean_ranks[:, None] - mean_ranks[None, :])
    # Each distance costs a numerical integration, so equal ones are computed once.
    different, places = np.unique(distances, return_inverse=True)
    tails = studentized_range.sf(np.sqrt(2) * different / _rank_error(treatments, blocks), treatments, np.inf)
    p_values = np.asarray(tails)[places].reshape(distances.shape)
    return np.where(distances == 0, 1.0, np.clip(p_values, 0, 1))


def wilcoxon_holm(scores: Array) -> tuple[Array, Array]:
    """Wilcoxon's signed-rank p-value of every pair of treatments: uncorrected, and Holm-corrected over all pairs.

    Blocks in which a pair ties are left out; a pair that ties everywhere has p = 1.
    """
    count = scores.shape[1]
    first, second = np.triu_indices(count, 1)
    single = wilcoxon(differences(scores.T[first], scores.T[second]))
    raw, corrected = np.ones((count, count)), np.ones((count, count))
    for values, matrix in ((single, raw), (holm(single), corrected)):
        matrix[first, second] = matrix[second, first] = values
    return raw, corrected


def wilcoxon(rows: Array) -> Array:
    """Wilcoxon's two-sided signed-rank p-value of each row of differences.

    As scipy does for a single row: exact without ties; with ties or zeros, exact over all signs up to 13 blocks and
    the normal approximation beyond. Given all rows at once, scipy would let one tie change every p-value, and take
    seconds to enumerate the signs.

    >>> wilcoxon(np.array([[1.0, 2.0, 3.0, 4.0], [1.0, 1.0, 1.0, 0.0]])).tolist()
    [0.125, 0.25]
    """
    from scipy import stats

    blocks = rows.shape[1]
    sizes = np.sort(np.abs(rows), axis=1)
    tied = np.any(sizes == 0, axis=1) | np.any(sizes[:, 1:] == sizes[:, :-1], axis=1)
    p_values = np.ones(len(rows))
    by_signs = tied & (blocks <= 13)
    if (plain := ~tied).any():
        p_values[plain] = stats.wilcoxon(rows[plain], axis=-1).pvalue
    if (rough := tied & ~by_signs & np.any(rows != 0, axis=1)).any():
        p_values[rough] = stats.wilcoxon(rows[rough], axis=-1, method="asymptotic").pvalue
    if by_signs.any():
        p_values[by_signs] = _over_all_signs(rows[by_signs])
    return p_values


def _over_all_signs(rows: Array) -> Array:
    """Exact: the share of all 2ⁿ choices of signs that give a rank sum at least as extreme."""
    blocks = rows.shape[1]
    weights = _weights(rows)
    seen = np.sum(weights * (rows > 0), axis=1)
    signs = (np.arange(2**blocks)[:, None] >> np.arange(blocks)) & 1
    sums = signs.astype(np.float64) @ weights.T
    ends = np.minimum(np.mean(sums >= seen, axis=0), np.mean(sums <= seen, axis=0))
    return np.asarray(np.minimum(1.0, 2 * ends))


def _weights(rows: Array) -> Array:
    """Ranks of the sizes in each row (the last axis), zeros left out and given no weight."""
    from scipy.stats import rankdata

    is_zero = rows == 0
    # Zeros are the smallest, so without them every other rank is less by their number.
    ranked = rankdata(np.abs(rows), axis=-1) - np.sum(is_zero, axis=-1, keepdims=True)
    return np.where(is_zero, 0.0, ranked)


def holm(p_values: Array) -> Array:
    """Holm's step-down correction: the smallest times m, the next times m - 1, never decreasing, at most 1.

    >>> holm(np.array([0.01, 0.04, 0.03])).tolist()
    [0.03, 0.06, 0.06]
    """
    order = np.argsort(p_values, kind="stable")
    stepped = np.maximum.accumulate(p_values[order] * np.arange(len(p_values), 0, -1))
    corrected = np.empty_like(p_values)
    corrected[order] = np.minimum(1.0, stepped)
    return corrected


def rank_biserial(first: Array, second: Array) -> Array:
    """The effect size that goes with Wilcoxon's test, over the last axis: (W⁺ − W⁻) / (W⁺ + W⁻).

    1 where `first` is always larger.

    >>> float(rank_biserial(np.array([3.0, 2.0, 1.0]), np.array([1.0, 1.0, 4.0])))    # differences 2, 1, -3
    0.0
    """
    rows = differences(first, second)
    weights = _weights(rows)
    return np.asarray(np.sum(np.sign(rows) * weights, axis=-1) / np.maximum(np.sum(weights, axis=-1), 1.0))


def spearman(first: Array, second: Array) -> Array:
    """Spearman's rank correlation over the last axis; NaN where one side is constant.

    >>> float(spearman(np.array([1.0, 2.0, 3.0, 4.0]), np.array([1.0, 10.0, 100.0, 50.0])).round(12))
    0.8
    """
    from scipy.stats import rankdata

    ranked = (rankdata(side, axis=-1) for side in (first, second))
    one, other = (side - side.mean(axis=-1, keepdims=True) for side in ranked)
    with np.errstate(invalid="ignore"):
        return np.asarray(np.sum(one * other, -1) / np.sqrt(np.sum(one * one, -1) * np.sum(other * other, -1)))


def detectable(rows: Array) -> Array:
    """The smallest mean difference that these runs could have shown, from the spread of the differences (last axis).

    That is, with a power of 80 % in a paired t-test at 5 %. NaN with one run, or if a run diverged.

    >>> detectable(np.array([0.0, 1.0, 2.0, 3.0, 4.0])).round(2).tolist(), detectable(np.array([1.0])).tolist()
    (2.66, nan)
    """
    if rows.shape[-1] < 2:
        return np.full(rows.shape[:-1], np.nan)
    with np.errstate(invalid="ignore"):
        return np.asarray(_detectable_deviations(rows.shape[-1]) * np.std(rows, axis=-1, ddof=1))


@cache
def _detectable_deviations(runs: int) -> float:
    """The same in standard deviations of the differences."""
    from scipy.optimize import brentq
    from scipy.stats import nct, t

    critical = float(t.ppf(0.975, runs - 1))
    # The other tail is negligible here. Far above the solution, scipy's noncentral t is NaN.
    most = 1.5 * critical + 2
    shift = brentq(lambda shift: float(nct.sf(critical, runs - 1, shift)) - POWER, 0.0, most)
    return float(shift / np.sqrt(runs))


def smallest_wilcoxon_p(blocks: int) -> float:
    """The smallest two-sided p-value that this many blocks can give: all differences have one sign.

    >>> smallest_wilcoxon_p(7)
    0.015625
    """
    return min(1.0, 2.0 ** (1 - blocks))


def differences(first: Array, second: Array) -> Array:
    """first - second for ranking, where two infinite scores (both diverged) are equal.

    An infinite difference becomes a finite one larger than all others of its row, since scipy would drop it.
    """
    rows = apart(first, second)
    largest = np.max(np.abs(rows), axis=-1, keepdims=True, initial=1.0, where=np.isfinite(rows))
    return np.where(np.isinf(rows), np.sign(rows) * 2 * largest, rows)


def apart(first: Array, second: Array) -> Array:
    """first - second, where equal infinities differ by 0."""
    with np.errstate(invalid="ignore"):
        return np.where(first == second, 0.0, first - second)


def cliques(mean_ranks: Array, difference: float) -> list[tuple[int, ...]]:
    """The largest groups of neighbouring treatments whose mean ranks do not differ: the bars of the diagram.

    >>> cliques(np.array([1.0, 1.5, 3.0]), 1.6)
    [(0, 1), (1, 2)]
    """
    order = np.argsort(mean_ranks, kind="stable")
    groups: list[tuple[int, ...]] = []
    last = 0
    for start in range(len(order)):
        end = start
        while end + 1 < len(order) and mean_ranks[order[end + 1]] - mean_ranks[order[start]] <= difference:
            end += 1
        if end > max(start, last):
            groups.append(tuple(int(i) for i in order[start : end + 1]))
            last = end
    return groups
