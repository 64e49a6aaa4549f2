"""Learning rates: which ones are tried, and which one is chosen. Only validation scores are used."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from playerfl.paper import facts as paper
from playerfl.runs.result import RunResult, reported_stage

TuningMetric = Literal["loss", "f1", "accuracy"]
RESAMPLES = 1000

# In the order in which they are tried: what the paper's text says, the grid as printed, and a value in between.
_PFEDME_FACTORS = (100, 1, 10)


@dataclass(frozen=True)
class PFedMePreset:
    """pFedMe with constants under which it can train on one of the paper's datasets."""

    lam: float
    learning_rates: tuple[float, ...]


def pfedme_preset(dataset: str) -> PFedMePreset:
    """λ = 0.1, as in the authors' code, and the printed grid times 100, as the paper's text says; largest rate first.

    Studies before protocol 2026.2 use lam = 15 and `paper_grid` instead. With λ = 0.1, rates up to 10 do not overshoot
    (see PFedMe). Heart's largest rate does overshoot, but every method must try the same number of rates.

    >>> pfedme_preset("Heart")
    PFedMePreset(lam=0.1, learning_rates=(50.0, 10.0, 5.0, 1.0, 0.5))
    """
    return PFedMePreset(0.1, tuple(_times(100, paper_grid(dataset, "fedavg"))))


def _times(factor: float, rates: Sequence[float]) -> list[float]:
    # Twelve digits: 100 * 0.0005 is not 0.05.
    return [float(f"{factor * rate:.12g}") for rate in rates]


def paper_grid(dataset: str, algorithm: str) -> list[float]:
    """The rates the paper tried on a dataset, largest first.

    Its text says that pFedMe's "grid is multiplied by 100", but on three datasets the rate it prints is not in that
    grid. For these, the grid is used as printed or times ten, whichever contains the printed rate. All algorithms get
    the same number of rates.

    >>> paper_grid("Heart", "fedavg"), paper_grid("FMNIST", "pfedme")
    ([0.5, 0.1, 0.05, 0.01, 0.005], [0.1, 0.05, 0.01, 0.008])
    """
    grid = sorted(paper.protocol(dataset)["learning_rate_grid"], reverse=True)
    if algorithm != "pfedme":
        return grid
    printed = paper.learning_rates(dataset)["pfedme"]
    grids = [_times(factor, grid) for factor in _PFEDME_FACTORS]
    return next((tried for tried in grids if printed in tried), grids[0])


def validation_losses(result: RunResult) -> dict[int, float]:
    """The sites' validation losses after each round, weighted by their training examples.

    If an algorithm has a finishing phase, only the losses after it count, since only they are reported. Rounds in
    which some site was not scored (`participation` with `post_local`) are left out.
    """
    stage = reported_stage(result.score_rows)
    rounds: dict[int, dict[str, float]] = {}
    for row_stage, round_, site, split, metric, value in result.score_rows:
        if metric == "loss" and split == "validation" and row_stage == stage:
            rounds.setdefault(int(round_), {})[str(site)] = float(value)
    shares = result.num_examples
    total = sum(shares.values())
    return {
        round_: sum(loss * shares[site] for site, loss in losses.items()) / total
        for round_, losses in rounds.items()
        if losses.keys() == shares.keys()
    }


def tuned_loss(runs: Sequence[Mapping[int, float] | None]) -> float:
    """A learning rate is judged by this: the mean over its tuning runs per round, then the minimum over rounds.

    A round counts as infinite if any run's loss in it is not finite; all rounds do if a run failed (None).

    >>> tuned_loss([{1: 0.9, 2: 0.5}, {1: 0.7, 2: 0.9}])
    0.7
    >>> tuned_loss([{1: 0.9, 2: float("nan")}, {1: 0.7, 2: 0.1}]), tuned_loss([{1: 0.9}, None])
    (0.8, inf)
    """
    scored = [run for run in runs if run is not None]
    if not scored or len(scored) < len(runs):
        return math.inf
    rounds = set.intersection(*(set(run) for run in scored))
    means = (math.fsum(run[round_] for run in scored) / len(scored) for round_ in rounds)
    return min((mean for mean in means if math.isfinite(mean)), default=math.inf)


def reported_value(result: RunResult, metric: TuningMetric) -> float:
    """What a run would report on validation data: each site's metric in its reported round, weighted by examples.

    NaN if a site diverged or was never scored.
    """
    stage, chosen = reported_stage(result.score_rows), result.chosen_rounds
    values = {
        str(site): float(value)
        for row_stage, round_, site, split, name, value in result.score_rows
        if (row_stage, split, name) == (stage, "validation", metric) and round_ == chosen.get(str(site))
    }
    shares = result.num_examples
    return sum(values.get(site, math.nan) * n for site, n in shares.items()) / sum(shares.values())


def reported_regret(values: Sequence[float | None], metric: TuningMetric) -> float:
    """What a learning rate is judged by: the mean loss, 1 - F1 or 1 - accuracy of its tuning runs. Lower is better.

    Infinite if a run failed (None) or diverged.

    >>> reported_regret([0.25, 0.75], "loss"), reported_regret([0.25, 1.0], "f1"), reported_regret([0.5, None], "f1")
    (0.5, 0.375, inf)
    """
    known = [value for value in values if value is not None and math.isfinite(value)]
    if not known or len(known) < len(values):
        return math.inf
    mean = math.fsum(known) / len(known)
    return mean if metric == "loss" else 1 - mean


def choose_rate(losses: Mapping[float, float]) -> float | None:
    """The rate with the smallest loss (among equals, the largest rate); None if no loss is finite.

    >>> choose_rate({0.1: 0.5, 0.01: 0.4, 0.05: 0.4}), choose_rate({0.1: float("inf")})
    (0.05, None)
    """
    finite = {rate: loss for rate, loss in losses.items() if math.isfinite(loss)}
    return min(finite, key=lambda rate: (finite[rate], -rate)) if finite else None


def tuning_notes(values: Mapping[float, Sequence[float | None]], metric: TuningMetric) -> list[str]:
    """Notes on a choice: that the rate is at the edge of its grid, or that the choice is close.

    `values`: what the tuning runs of each rate report, in the order of their seeds. Runs are resampled together, since
    the runs of one seed share their data.

    >>> tuning_notes({0.1: [0.5, 0.6], 0.01: [0.4, 0.5]}, "loss")
    ['the chosen learning rate 0.01 is the smallest that was tried']
    """
    chosen = choose_rate({rate: reported_regret(runs, metric) for rate, runs in values.items()})
    if chosen is None or len(values) < 2:
        return []
    notes = [
        f"the chosen learning rate {chosen:g} is the {edge} that was tried"
        for edge, rate in (("largest", max(values)), ("smallest", min(values)))
        if rate == chosen
    ]
    finite = [rate for rate, runs in values.items() if math.isfinite(reported_regret(runs, metric))]
    # Ties go to the larger rate, as in `choose_rate`.
    finite.sort(reverse=True)
    table = np.array([values[rate] for rate in finite], dtype=np.float64) * (1 if metric == "loss" else -1)
    draws = np.random.default_rng(0).integers(table.shape[1], size=(RESAMPLES, table.shape[1]))
    wins = np.bincount(table[:, draws].mean(2).argmin(0), minlength=len(finite)) / RESAMPLES
    rivals = [
        f"{rate:g} in {share:.0%}" for rate, share in zip(finite, wins, strict=True) if rate != chosen and share >= 0.1
    ]
    if rivals:
        share = wins[finite.index(chosen)]
        notes.append(
            f"the choice of the learning rate {chosen:g} is close: resampling the tuning runs chooses it in "
            f"{share:.0%} of draws, and {', '.join(rivals)}"
        )
    return notes
