"""Computes one ranking per protocol from the runs of all universes, and which choice decides it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import product
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.stats import rankdata

from playerfl.report.compute.multiverse import Factor, MethodSummary, ProtocolRanking
from playerfl.studies.multiverse.plan import HIGHER_IS_BETTER, Measure, MultiversePlan, Universe
from playerfl.studies.multiverse.reading import Reading
from playerfl.studies.rates import TuningMetric, choose_rate, reported_regret

COMPARED_WITH = ("fedavg", "local", "fedper", "player_fl_random")
Values = Mapping[tuple[str, float, int], Mapping[Reading, float]]
"""What the runs of one universe would report: by method, rate and seed."""


def rank_protocols(
    multiverse: MultiversePlan, methods: Sequence[str], universes: Sequence[Values]
) -> list[ProtocolRanking]:
    """The ranking under every protocol. `universes`: in the order of `multiverse.universes`."""
    computed = multiverse.computed
    trained = list(product(*(range(len(choices)) for choices in multiverse.trained.values())))
    rankings = []
    for choices, universe, values in zip(trained, multiverse.universes, universes, strict=True):
        for i, j, k in product(*(range(len(v)) for v in (computed.rates, computed.selection, computed.measure))):
            rates, selection, measure = computed.rates[i], computed.selection[j], computed.measure[k]
            chosen = [_rate(multiverse, universe, values, method, rates, selection, measure) for method in methods]
            reading = Reading(selection, "test", measure)
            table = np.array(
                [
                    [_value(values, method, rate, seed, reading) for method, rate in zip(methods, chosen, strict=True)]
                    for seed in multiverse.reported_seeds
                ]
            )
            rankings.append(_ranking((*choices, i, j, k), table, higher=HIGHER_IS_BETTER[measure]))
    return rankings


def _rate(
    multiverse: MultiversePlan,
    universe: Universe,
    values: Values,
    method: str,
    rates: str,
    selection: str,
    measure: Measure,
) -> float | None:
    if rates == "printed":
        return multiverse.printed_rate(universe.methods[method].algorithm)
    # If a macro-F1 is reported, rates are tuned by that same macro-F1.
    tuned_by: Measure = "loss" if rates == "loss" else measure if measure.startswith("f1") else "f1"
    reading = Reading(selection, "validation", tuned_by)
    by_rate = {
        rate: [_value(values, method, rate, seed, reading) for seed in multiverse.rate_seeds]
        for rate in universe.methods[method].grid
    }
    # Every macro-F1 is judged alike, whichever classes it averages over.
    kind: TuningMetric = "loss" if rates == "loss" else "f1"
    return choose_rate({rate: reported_regret(reported, kind) for rate, reported in by_rate.items()})


def _value(values: Values, method: str, rate: float | None, seed: int, reading: Reading) -> float:
    """NaN if the run failed, or if no rate could be chosen."""
    run = None if rate is None else values.get((method, rate, seed))
    return math.nan if run is None else run[reading]


def _ranking(choices: tuple[int, ...], table: NDArray[np.float64], *, higher: bool) -> ProtocolRanking:
    """`table`: the scores by run and method. A missing score is ranked last.

    >>> _ranking((0,), np.array([[0.5, 0.7, 0.7], [0.2, 0.6, np.nan]]), higher=True).mean_ranks
    (2.5, 1.25, 2.25)
    """
    worst = np.where(np.isnan(table), np.inf, -table if higher else table)
    mean_ranks = rankdata(worst, axis=1).mean(0)
    scores = [None if np.isnan(column).any() else float(np.median(column)) for column in table.T]
    ranks = rankdata(mean_ranks.round(9), method="min").astype(int)
    return ProtocolRanking(choices, tuple(scores), tuple(mean_ranks.tolist()), tuple(ranks.tolist()))


def summary(
    methods: Sequence[str], factors: Sequence[Factor], rankings: Sequence[ProtocolRanking]
) -> tuple[MethodSummary, ...]:
    """For each method: how often it is first or ahead of others, and which factor explains most of its rank."""
    ranks = np.array([ranking.ranks for ranking in rankings])
    means = np.array([ranking.mean_ranks for ranking in rankings])
    choices = np.array([ranking.choices for ranking in rankings])
    lines = []
    for m, method in enumerate(methods):
        shares = {f.name: explained(ranks[:, m], choices[:, i]) for i, f in enumerate(factors)}
        decided_by = max(shares, key=lambda name: shares[name])
        ahead_of = {
            rival: float((means[:, m] < means[:, methods.index(rival)]).mean())
            for rival in COMPARED_WITH
            if rival in methods and rival != method
        }
        lines.append(
            MethodSummary(
                method=method,
                first=float((ranks[:, m] == 1).mean()),
                top_three=float((ranks[:, m] <= 3).mean()),
                ahead_of=ahead_of,
                median_rank=float(np.median(ranks[:, m])),
                best_rank=int(ranks[:, m].min()),
                worst_rank=int(ranks[:, m].max()),
                decided_by=decided_by,
                decided_share=shares[decided_by],
            )
        )
    return tuple(lines)


def explained(ranks: NDArray[Any], choices: NDArray[Any]) -> float:
    """The share of a rank's variance that one factor explains: the variance of the mean ranks of its choices, over the
    total. 0 if the rank never varies.

    >>> explained(np.array([1, 1, 5, 5]), np.array([0, 0, 1, 1]))
    1.0
    >>> explained(np.array([1, 5, 1, 5]), np.array([0, 0, 1, 1]))
    0.0
    """
    total = float(ranks.var())
    if total == 0:
        return 0.0
    parts = [ranks[choices == choice] for choice in np.unique(choices)]
    between = sum(len(part) * (float(part.mean()) - float(ranks.mean())) ** 2 for part in parts) / len(ranks)
    return between / total
