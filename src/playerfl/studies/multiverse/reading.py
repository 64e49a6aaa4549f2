"""What a finished run would report under each combination of selection, data and measure."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from typing import Literal, NamedTuple

import numpy as np

from playerfl.runs.result import RunResult, reported_stage
from playerfl.studies.multiverse.plan import F1_OF, Measure

Split = Literal["validation", "test"]


class Reading(NamedTuple):
    """A way of reading a run: which rounds count, on which data, by which measure."""

    selection: str
    split: Split
    measure: Measure


def read_run(result: RunResult, selections: Sequence[str], measures: Sequence[Measure]) -> dict[Reading, float]:
    """The value of every reading: over sites, weighted by training examples. NaN if a site diverged."""
    stage = reported_stage(result.score_rows)
    recorded = {
        (str(site), int(round_), str(split), str(metric)): float(value)
        for row_stage, round_, site, split, metric, value in result.score_rows
        if row_stage == stage
    }
    shares = result.num_examples
    weights = np.array(list(shares.values())) / sum(shares.values())
    splits: tuple[Split, ...] = ("validation", "test")
    values = {}
    for selection in selections:
        chosen = result.rounds_chosen_by(selection)
        for split, measure in product(splits, measures):
            if measure in F1_OF:
                scores = result.f1(F1_OF[measure], split=split, rounds=chosen)
            else:
                scores = {site: recorded[site, round_, split, measure] for site, round_ in chosen.items()}
            by_site = [scores.get(site, np.nan) for site in shares]
            values[Reading(selection, split, measure)] = float(np.dot(weights, by_site))
    return values
