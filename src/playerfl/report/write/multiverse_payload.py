"""The numbers a page carries for a multiverse: its protocols, and the verdict on every method."""

from __future__ import annotations

from typing import Any

from playerfl.report.compute.multiverse import Multiverse
from playerfl.report.names import method_name
from playerfl.report.view.multiverse import factor_name, finding
from playerfl.runs.measures.declared import declared_as

# Numbers of a multiverse that a page carries at most: a protocol has four for each method; each takes some five bytes.
_MOST_NUMBERS = 400_000


def multiverse_payload(multiverse: Multiverse) -> dict[str, Any] | None:
    """What the script draws from; None if a page could not hold it."""
    methods, factors = multiverse.methods, multiverse.factors
    if 4 * len(methods) * len(multiverse.protocols) > _MOST_NUMBERS:
        return None
    names = [factor.name for factor in factors]
    rivals = [multiverse.rival(method) for method in methods]
    lines = [multiverse.of(method) for method in methods]
    return {
        "methods": [method_name(method) for method in methods],
        "subject": methods.index(multiverse.subject),
        "factors": [{"name": f.name, "label": factor_name(f.name), "values": f.values} for f in factors],
        "measure": multiverse.measure,
        "percent": [declared_as(measure).in_percent for measure in factors[multiverse.measure].values],
        "findings": [finding(multiverse, method) for method in methods],
        "decidedBy": [names.index(line.decided_by) if line.best_rank < line.worst_rank else None for line in lines],
        "rivals": [None if rival is None else methods.index(rival) for rival in rivals],
        "orders": [multiverse.ordered(method) for method in methods],
        "medians": [multiverse.median_ranks(method) for method in methods],
        "protocols": [
            {
                "choices": protocol.choices,
                "scores": [None if score is None else float(f"{score:.5g}") for score in protocol.scores],
                "meanRanks": [round(rank, 4) for rank in protocol.mean_ranks],
                "ranks": protocol.ranks,
            }
            for protocol in multiverse.protocols
        ],
    }
