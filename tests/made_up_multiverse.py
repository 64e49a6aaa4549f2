"""Invented multiverses: given protocols and mean ranks, with the ranks and the summary that follow from them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import mean, median, pvariance
from typing import Any

Given = tuple[Sequence[int], Sequence[float | None], Sequence[float]]
"""A protocol: its choices, and for each method its score and mean rank."""


def made_up_multiverse(
    methods: Sequence[str], factors: Mapping[str, Sequence[str]], protocols: Sequence[Given], name: str = "heart"
) -> dict[str, Any]:
    """The content of a multiverse.json. One of the factors must be `measure`; `loss` is better if lower."""
    ranked = [
        {
            "choices": list(choices),
            "scores": list(scores),
            "mean_ranks": list(means),
            "ranks": [1 + sum(other < own for other in means) for own in means],
        }
        for choices, scores, means in protocols
    ]
    return {
        "format": "playerfl multiverse 1",
        "name": name,
        "task": name,
        "runs": 20,
        "tuning_runs": 5,
        "methods": list(methods),
        "factors": [
            {
                "name": factor,
                "kind": "computed" if factor in ("rates", "selection", "measure") else "trained",
                "values": list(values),
            }
            for factor, values in factors.items()
        ],
        "protocols": ranked,
        "summary": [_summary(number, methods, factors, ranked) for number in range(len(methods))],
        "measures": {measure: "lower" if measure == "loss" else "higher" for measure in factors["measure"]},
    }


def _summary(
    number: int, methods: Sequence[str], factors: Mapping[str, Sequence[str]], protocols: Sequence[dict[str, Any]]
) -> dict[str, Any]:
    ranks = [protocol["ranks"][number] for protocol in protocols]
    explained = {}
    for position, factor in enumerate(factors):
        groups: dict[int, list[int]] = {}
        for protocol, rank in zip(protocols, ranks, strict=True):
            groups.setdefault(protocol["choices"][position], []).append(rank)
        between = sum(len(group) * (mean(group) - mean(ranks)) ** 2 for group in groups.values()) / len(ranks)
        explained[factor] = between / pvariance(ranks) if pvariance(ranks) else 0.0
    deciding = max(explained, key=lambda factor: explained[factor])
    rivals = [r for r in ("fedavg", "local", "fedper", "player_fl_random") if r in methods and r != methods[number]]
    return {
        "method": methods[number],
        "first": mean(rank == 1 for rank in ranks),
        "top_three": mean(rank <= 3 for rank in ranks),
        "ahead_of": {
            rival: mean(p["mean_ranks"][number] < p["mean_ranks"][methods.index(rival)] for p in protocols)
            for rival in rivals
        },
        "median_rank": median(ranks),
        "best_rank": min(ranks),
        "worst_rank": max(ranks),
        "decided_by": deciding,
        "decided_share": explained[deciding],
    }
